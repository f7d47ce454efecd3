"""The packed linear layer: equal to the plain one, and the same values for a row in any batch."""

from __future__ import annotations

import pytest
import torch

from paceline.kernels.prepacked import PrepackedLinear, available, outputs_of, prepack, unpack_what_is_read

pytestmark = pytest.mark.skipif(not available(), reason="this build of torch has no oneDNN packed product")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(97, 64), (1024, 384), (384, 1024), (5, 3)])
def test_the_packed_linear_layer_computes_the_plain_product(shape: tuple[int, int], bias: bool) -> None:
    torch.manual_seed(0)
    plain = torch.nn.Linear(shape[1], shape[0], bias=bias).eval()
    packed = PrepackedLinear(plain)
    rows = torch.randn(1, 33, shape[1])
    with torch.inference_mode():
        for count in (1, 2, 7, 33):
            torch.testing.assert_close(packed(rows[:, :count]), plain(rows[:, :count]), rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(packed.weight, plain.weight.detach(), rtol=0, atol=0)


def test_a_packed_layer_whose_weights_are_read_becomes_a_plain_one_again() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 384, bias=bias) for bias in (False, True, True)))
    held = [(part.weight.detach().clone(), part.bias) for part in model]
    prepack(model)
    assert [outputs_of(part) for part in model] == [384] * 3
    read = [model[0].weight, model[1].weight]
    unpack_what_is_read(model)
    assert [type(part) for part in model] == [torch.nn.Linear, torch.nn.Linear, PrepackedLinear]
    for part, (weight, bias), seen in zip(model, held, read, strict=False):
        assert torch.equal(part.weight, weight)
        assert torch.equal(seen, weight)
        assert part.bias is bias
    assert [outputs_of(part) for part in model] == [384] * 3


def test_only_large_plain_float32_linears_are_replaced() -> None:
    class Special(torch.nn.Linear):
        """A linear layer with behaviour of its own."""

    wide = torch.nn.Linear(512, 512)
    model = torch.nn.Sequential(wide, torch.nn.Linear(8, 8), Special(512, 512), torch.nn.Linear(512, 512).to(torch.bfloat16))
    prepack(model)
    assert [type(part) for part in model] == [PrepackedLinear, torch.nn.Linear, Special, torch.nn.Linear]
