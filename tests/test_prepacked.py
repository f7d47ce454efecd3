"""The packed linear layer: the numbers of the plain one, and the same numbers for a row whatever rides beside it."""

from __future__ import annotations

import pytest
import torch

from paceline.kernels.prepacked import PrepackedLinear, available, prepack

pytestmark = pytest.mark.skipif(not available(), reason="this build of torch has no oneDNN packed product")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(97, 64), (1024, 384), (384, 1024), (5, 3)])
def test_the_packed_product_is_the_plain_one(shape: tuple[int, int], bias: bool) -> None:
    torch.manual_seed(0)
    plain = torch.nn.Linear(shape[1], shape[0], bias=bias).eval()
    packed = PrepackedLinear(plain)
    rows = torch.randn(1, 33, shape[1])
    with torch.inference_mode():
        for count in (1, 2, 7, 33):
            torch.testing.assert_close(packed(rows[:, :count]), plain(rows[:, :count]), rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(packed.weight, plain.weight.detach(), rtol=0, atol=0)


def test_only_large_plain_float32_linears_are_replaced() -> None:
    class Special(torch.nn.Linear):
        """A linear layer with behaviour of its own."""

    wide = torch.nn.Linear(512, 512)
    model = torch.nn.Sequential(wide, torch.nn.Linear(8, 8), Special(512, 512), torch.nn.Linear(512, 512).to(torch.bfloat16))
    prepack(model)
    assert [type(part) for part in model] == [PrepackedLinear, torch.nn.Linear, Special, torch.nn.Linear]
