"""Row products and the sum of their parts: near float64, and the same bits for a row beside any number of others."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="the GPU kernels are written in Triton, which is not installed: pip install triton==3.7.1")

from torch.nn.functional import gelu, rms_norm, silu
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from paceline.kernels import row_products
from paceline.kernels.residual_norms import Norm, joined
from paceline.kernels.row_products import gated_product, part_length, parts_of, row_product
from paceline.kernels.slot_moves import slot_mover

DEVICE = torch.device("cuda" if os.environ["TRITON_INTERPRET"] == "0" else "cpu")
COUNTS = (1, 2, 17, 64, 65, 130)


@pytest.fixture(autouse=True)
def products_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter multiplies with BLAS, whose bits depend on an element's place in the matrix; tensor cores' bits do not."""

    def create_dot(self: Any, a: Any, b: Any, d: Any, *_: Any) -> TensorHandle:
        left, right, total = (torch.from_numpy(x.data.copy()).float() for x in (a, b, d))
        for place in range(left.shape[1]):
            total += left[:, place, None] * right[place]
        return TensorHandle(total.numpy(), d.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE, dtype)


def added(parts: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(parts[0])
    for part in parts:
        total += part
    return total


@pytest.mark.parametrize(("outputs", "inputs", "parts"), [(70, 1100, 2), (70, 1100, 1), (33, 40, 1), (16, 2048, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("together", [False, True])
def test_a_row_has_the_same_bits_beside_any_others(
    outputs: int, inputs: int, parts: int, dtype: torch.dtype, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One program adds the parts of many rows: of more than 256 rows, or of fewer if `_SIDE_BY_SIDE` is lowered."""
    if together:
        monkeypatch.setattr(row_products, "_SIDE_BY_SIDE", 64)
    rows, weights = drawn(COUNTS[-1], inputs, dtype=dtype), drawn(outputs, inputs, dtype=dtype)
    whole = added(row_product(rows, weights, parts))
    exact = rows.double() @ weights.double().T
    assert ((whole - exact).norm() / exact.norm()) < 1e-5
    for count in COUNTS:
        sums = row_product(rows[:count], weights, parts)
        assert len(sums) in (1, parts)
        assert torch.equal(added(sums), whole[:count]), count


@pytest.mark.parametrize(("activation", "function"), [("silu", silu), ("gelu_tanh", lambda x: gelu(x, approximate="tanh"))])
@pytest.mark.parametrize("biased", [False, True])
def test_gated_products_are_near_float64_and_do_not_depend_on_rows_beside(activation: str, function: Any, biased: bool) -> None:
    rows, weights, bias = drawn(COUNTS[-1], 90) * 0.1, drawn(2 * 35, 90), drawn(70) if biased else None
    whole = gated_product(rows, weights, activation, bias)
    gate, gated = (rows.double() @ weights.double().T + (0.0 if bias is None else bias.double())).chunk(2, 1)
    wanted = function(gate) * gated
    assert (whole - wanted).norm() / wanted.norm() < 1e-5
    for count in COUNTS:
        assert torch.equal(gated_product(rows[:count], weights, activation, bias), whole[:count]), count


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_what_is_gated_and_overflows_is_the_largest_there_is() -> None:
    rows, weights = drawn(3, 32), drawn(2 * 16, 32)
    rows[1] = 3e4
    weights[:16], weights[16:24], weights[24:] = 1.0, 1.0, -1.0
    found = gated_product(rows.half(), weights.half(), "silu")
    most = torch.finfo(torch.float16).max
    assert found[1].tolist() == [most] * 8 + [-most] * 8
    assert found[::2].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tiles_copied_by_descriptors_hold_the_same_numbers(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices whose sizes no tile divides, and a row stride that no descriptor supports."""
    rows, weights, gates = (drawn(*sizes, dtype=dtype) for sizes in ((130, 1096), (70, 1096), (140, 1096)))
    wanted = [row_product(rows, weights, 2), row_product(rows, weights, 1), gated_product(rows * 0.1, gates, "silu")]
    described = []
    monkeypatch.setattr(row_products, "since_hopper", lambda _: True)
    monkeypatch.setattr(row_products, "_DESCRIBED", 0)
    made = row_products.TensorDescriptor
    monkeypatch.setattr(row_products, "TensorDescriptor", lambda *sizes: (described.append(sizes), made(*sizes))[1])
    found = [row_product(rows, weights, 2), row_product(rows, weights, 1), gated_product(rows * 0.1, gates, "silu")]
    assert len(described) == 6
    for one, other in zip(wanted, found, strict=True):
        assert torch.equal(one, other)
    row_product(rows[:, :1090].contiguous(), weights[:, :1090].contiguous(), 1)
    row_product(rows[:64], weights, 1)
    assert len(described) == 6


def test_parts_are_for_matrices_of_few_outputs_and_many_inputs() -> None:
    assert [parts_of(*sizes) for sizes in ((6144, 4096), (4096, 14336), (2048, 8192), (1024, 4096), (384, 1024), (384, 900))] == [
        1, 2, 4, 8, 2, 1,
    ]  # fmt: skip
    for inputs, parts in ((1100, 2), (2048, 4), (1000, 1)):
        length = part_length(inputs, parts)
        assert length % 128 == 0
        assert length * (parts - 1) < inputs <= length * parts


def test_parts_are_added_in_order_whether_together_or_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adding the parts to the residual stream gives the same bits as if the product had added them."""
    monkeypatch.setattr(row_products, "_SIDE_BY_SIDE", 64)
    rows, weights, bias, weight = drawn(65, 1100), drawn(40, 1100), drawn(40), drawn(40)
    norm, found = Norm(weight, None, 1e-6), []
    for count in (65, 64):
        residual = drawn(65, 40)[:count].clone()
        found.append((joined(residual, norm, torch.float32, row_product(rows[:count], weights, 2), bias), residual))
    (many, after_many), (few, after_few) = found
    assert torch.equal(many[:64], few)
    assert torch.equal(after_many[:64], after_few)
    assert (few - rms_norm(after_few, (40,), weight, 1e-6)).abs().max() < 1e-5


def test_slots_move_in_the_order_in_which_a_path_does() -> None:
    stores = [drawn(5, 4, 3, 8), drawn(5, 4, 3, 8).half(), drawn(5, 4, 3, 2000), drawn(5, 4, 3)]
    before = [store.clone() for store in stores]
    # a slot is read before another one moves into it, and slots of another sequence lie elsewhere
    sources, destinations = [5, 7, 9, 18], [4, 5, 7, 17]
    slot_mover(stores)(sources, destinations)
    for store, old in zip(stores, before, strict=True):
        flat, expected = store.flatten(0, 1), old.flatten(0, 1).clone()
        expected[destinations] = old.flatten(0, 1)[sources]
        assert torch.equal(flat, expected)
