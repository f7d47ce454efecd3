"""Packed: the bytes of a format, from a matrix of any float type and on any number of threads."""

from __future__ import annotations

import pytest
import torch

from compiled import multiplied
from native import FORMATS, THREADS
from paceline.kernels.native.formats import FORMATS as FORMS, GROUP, Format
from paceline.kernels.native.packed import PLAIN, pack
from paceline.kernels.native.vectors import PANEL

OUTPUTS, INPUTS = 2 * PANEL + 5, 3 * GROUP + 7


def numbers(*shape: int) -> torch.Tensor:
    """Numbers of very different sizes, some of them halfway between two integers, and zeros."""
    found = torch.randn(*shape, generator=torch.Generator().manual_seed(4)) * torch.logspace(-4, 2, shape[0])[:, None]
    found[:, 0], found[:, 1], found[-1] = 127.0, 2.5, 0.0
    return found


def laid_out(weight: torch.Tensor, form: Format) -> torch.Tensor:
    """uint8 [panels, panel_bytes], by torch: word after word, each for all outputs of a panel, with the inputs sharing a word."""
    outputs, inputs = weight.shape
    panels, wide = -(-outputs // PANEL), form.padded(inputs)
    full = torch.zeros(panels * PANEL, wide)
    full[:outputs, :inputs] = weight
    groups = full.view(panels, PANEL, -1, GROUP if form.by_group else wide).permute(0, 2, 3, 1)
    scales: list[torch.Tensor] = []
    if form.scaled:
        largest = 2 ** (form.bits - 1) - 1
        scales = [(groups.abs().amax(-2, keepdim=True) / largest).clamp(min=2.0**-21).half()]
        groups = (groups / scales[0].float()).round().clamp(-largest - (form.bits == 4), largest) + form.excess
    kind = PLAIN.get(form.name, torch.uint8 if form.excess else torch.int8)
    if form.bits == 4:
        # of eight inputs the even ones fill the lower half of a word, from the lowest nibble up, and the odd ones the upper half;
        # beside bytes, the first four are the lower nibbles of its bytes, and the last four the upper ones
        words = groups.long().unflatten(-2, (-1, 8))
        bits = [16 * (at % 2) + 4 * (at // 2) if form.activation_bits == 16 else 8 * (at % 4) + 4 * (at // 4) for at in range(8)]
        laid = sum(words[..., at, :] << bits[at] for at in range(8)).to(torch.int32)
    else:
        laid = groups.to(kind).unflatten(-2, (-1, form.together)).transpose(-1, -2)
    parts = [part.contiguous().view(torch.uint8).reshape(*groups.shape[:2], -1) for part in (*scales, laid)]
    return torch.cat(parts, dim=2).reshape(panels, -1)


@pytest.mark.parametrize("count", THREADS)
@pytest.mark.parametrize("name", FORMATS)
def test_every_byte_is_what_torch_makes_of_the_matrix(name: str, count: int) -> None:
    weight, form = numbers(OUTPUTS, INPUTS), FORMS[name]
    for held in (weight, weight.half(), weight.bfloat16(), weight.double()):
        assert torch.equal(pack(held, form, threads=count).data, laid_out(held.float(), form)), held.dtype


@pytest.mark.parametrize("name", FORMATS)
def test_strided_matrices_are_packed_like_contiguous_ones(name: str) -> None:
    weight = numbers(INPUTS, OUTPUTS)
    for part in (weight.T, weight[:, 3:20], weight[::2]):
        assert torch.equal(pack(part, FORMS[name]).data, pack(part.contiguous(), FORMS[name]).data)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_a_weight_that_is_not_finite_makes_its_output_not_finite(name: str, value: float) -> None:
    """Nor is a value too large for any scale replaced by a smaller one."""
    weight = numbers(PANEL, INPUTS)
    weight[3, 40] = value
    found = multiplied(pack(weight, FORMS[name]), torch.ones(1, INPUTS))[0]
    assert [at for at in range(PANEL) if not found[at].isfinite()] == [3]


@pytest.mark.parametrize("name", ["int8", "int4", "w8a8", "w4a8"])
def test_a_scale_beyond_half_precision_makes_its_output_not_finite(name: str) -> None:
    weight = numbers(PANEL, INPUTS)
    weight[3, 40] = 1e9
    assert not multiplied(pack(weight, FORMS[name]), torch.ones(1, INPUTS))[0, 3].isfinite()
