"""Linear layers with weights packed once for oneDNN.

`F.linear` in float32 costs two to three times as much for four rows as for one, because it packs the weight in every call; with
the weight packed beforehand, four rows cost as much as one, which decides whether speculation pays on a CPU. The results differ
from `F.linear` only in the order of sums, a few units in the last place.
"""

from __future__ import annotations

from typing import TypeGuard

import torch

_ROWS_HINT = 16
"""Row count that the packing is optimised for: measured best for verifying a few rows, and no worse for one row or prefill."""
_FEWEST_WEIGHTS = 2**17
"""A packed product has an overhead of about 9 microseconds; below this size `F.linear` is faster despite packing."""


def available() -> bool:
    """Whether this build of torch and this machine have the packed product."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class PrepackedLinear(torch.nn.Module):
    """Stands in for a float32 `torch.nn.Linear` on the CPU; inference only.

    linear: weight [out, in], bias [out] or None. The packed copy replaces the original, which may be freed.
    """

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _ROWS_HINT)
        self.was_read = False
        """Whether `weight` was accessed."""

    @property
    def weight(self) -> torch.Tensor:
        """float32 [out, in], unpacked at every access."""
        self.was_read = True
        return self._packed.to_dense()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """float32 [..., in] to [..., out]."""
        return torch.ops.mkldnn._linear_pointwise(rows, self._packed, self.bias, "none", [], "")


def held_bytes(model: torch.nn.Module) -> int:
    """Bytes of a model's weights, packed ones included."""
    packed = [module for module in model.modules() if isinstance(module, PrepackedLinear)]
    plain = sum(parameter.nbytes for parameter in model.parameters())
    return plain + sum(4 * linear.in_features * linear.out_features for linear in packed)


def prepack(model: torch.nn.Module) -> None:
    """Replace the large plain float32 CPU `Linear`s of `model` in place; a no-op where the packed product is not available."""
    if not available():
        return
    # no list of the replaced layers, which would keep a second copy of the weights alive
    for parent in [module for module in model.modules() if not isinstance(module, torch.nn.Linear)]:
        for name, child in list(parent.named_children()):
            if _gains(child):
                setattr(parent, name, PrepackedLinear(child).eval())


def unpack_what_is_read(model: torch.nn.Module) -> None:
    """Restore plain `Linear`s where a model reads weights directly in its forward pass, as Mamba does: unpacking takes far longer
    than packing saves. To be called after the model has run once."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, PrepackedLinear) and child.was_read:
                plain = torch.nn.Linear(child.in_features, child.out_features, bias=False, device="meta")
                plain.weight = torch.nn.Parameter(child.weight, requires_grad=False)
                plain.bias = child.bias
                setattr(parent, name, plain.eval())


def outputs_of(linear: torch.nn.Module) -> int:
    """Rows of a weight, without unpacking it."""
    if isinstance(linear, PrepackedLinear):
        return linear.out_features
    assert isinstance(linear.weight, torch.Tensor)
    return linear.weight.shape[0]


def _gains(module: torch.nn.Module) -> TypeGuard[torch.nn.Linear]:
    # subclasses carry behaviour of their own
    if type(module) is not torch.nn.Linear:
        return False
    weight = module.weight
    return weight.dtype is torch.float32 and weight.device.type == "cpu" and weight.numel() >= _FEWEST_WEIGHTS
