"""Products: represented weights times activations, with the same bits for a row in any batch."""

from __future__ import annotations

import pytest
import torch
from llvmlite import ir

from compiled import as_read, multiplied
from native import FORMATS
from paceline.kernels.native import ahead, tall, tiles
from paceline.kernels.native.formats import FORMATS as FORMS, GROUP, SUMMED
from paceline.kernels.native.matrix_unit import HIGHEST
from paceline.kernels.native.needs import highest_tile
from paceline.kernels.native.packed import Packed, pack
from paceline.kernels.native.tiles import ADD, CONTINUE, MOST_ROWS, STORE, most_rows
from paceline.kernels.native.vectors import PANEL, VECTORS
from represented import represented

SIZES = [(PANEL, GROUP), (3 * PANEL, 2 * GROUP), (2 * PANEL + 5, 3 * GROUP + 7), (1, 1), (PANEL - 1, 100), (5 * PANEL, 40)]
SIZES += [(PANEL, SUMMED), (7, 2 * SUMMED + 70)]
"""Outputs and inputs: one panel, an odd number of panels, sizes that are multiples of nothing, and sums in several parts."""


def highest(name: str) -> int:
    return highest_tile(FORMS[name])


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def matrix(name: str, outputs: int, inputs: int) -> tuple[Packed, torch.Tensor]:
    """A packed matrix, and the values it represents. Its rows differ in size by orders of magnitude, as in real models."""
    weight = numbers(outputs, inputs) * torch.logspace(-2, 1, outputs)[:, None]
    return pack(weight, FORMS[name]), represented(weight, FORMS[name])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("outputs", "inputs"), SIZES)
def test_a_product_is_that_of_the_represented_weights(name: str, outputs: int, inputs: int) -> None:
    packed, weight = matrix(name, outputs, inputs)
    for count in range(1, highest(name) + 1):
        rows = numbers(count, inputs, seed=count)
        got = multiplied(packed, rows)
        read = as_read(rows, packed.form).double()
        wanted = read @ weight.double().T
        # the rounding error of float32 is relative to the sum of magnitudes
        scale = read.abs() @ weight.double().abs().T
        assert bool(((got[:, :outputs] - wanted).abs() <= 1e-5 * scale + 1e-12).all())
        assert not got[:, outputs:].any(), "padding is zero"


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("mode", [STORE, ADD, CONTINUE])
def test_a_row_has_the_same_bits_in_any_company(name: str, mode: int) -> None:
    packed, _ = matrix(name, 3 * PANEL, SUMMED + 5 * GROUP + 3)
    most = highest(name)
    rows = numbers(most, packed.inputs) * torch.logspace(-3, 3, most)[:, None]
    there = numbers(most, packed.panels * PANEL, seed=3)

    def products(first: int, count: int) -> torch.Tensor:
        part = slice(first, first + count)
        return multiplied(packed, rows[part], outputs=there[part].clone(), mode=mode)

    alone = torch.cat([products(row, 1) for row in range(most)])
    for count in range(1, most + 1):
        for first in {0, most - count}:
            assert torch.equal(products(first, count), alone[first : first + count])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("count", sorted({5, min(8, MOST_ROWS), MOST_ROWS}))
def test_a_product_of_some_panels_leaves_other_panels_alone(name: str, count: int) -> None:
    packed, _ = matrix(name, 5 * PANEL, 2 * GROUP)
    rows = numbers(count, packed.inputs)
    whole, parts = multiplied(packed, rows), torch.full((count, 5 * PANEL), 7.0)
    for low, high in ((2, 3), (0, 2), (3, 5), (4, 4)):
        before = parts.clone()
        multiplied(packed, rows, outputs=parts, panels=(low, high))
        outside = torch.ones(5 * PANEL, dtype=torch.bool)
        outside[low * PANEL : high * PANEL] = False
        assert torch.equal(parts[:, outside], before[:, outside]), "other panels are unchanged"
    assert torch.equal(parts, whole)


@pytest.mark.parametrize("name", [name for name in FORMATS if not FORMS[name].scaled_once])
@pytest.mark.parametrize("count", sorted({1, min(7, MOST_ROWS), min(8, MOST_ROWS), MOST_ROWS}))
def test_a_sum_may_be_left_off_and_continued(name: str, count: int) -> None:
    """Bit for bit: attention over a prefix and then over a tree is one sum. It is cut between groups, where a scale ends; a
    format with one scale for all inputs cannot be cut."""
    weight = numbers(2 * PANEL, 4 * GROUP)
    rows = numbers(count, 4 * GROUP, seed=1)
    whole = multiplied(pack(weight, FORMS[name]), rows)
    for cut in (GROUP, 3 * GROUP):
        first, second = (pack(weight[:, part], FORMS[name]) for part in (slice(0, cut), slice(cut, None)))
        sums = multiplied(first, rows[:, :cut])
        assert torch.equal(multiplied(second, rows[:, cut:], outputs=sums, mode=CONTINUE), whole)


@pytest.mark.parametrize("name", ["int8", "w8a8"])
@pytest.mark.parametrize("count", sorted({1, 5, min(8, HIGHEST), HIGHEST}))
def test_a_product_scaled_once_may_begin_with_what_is_there(name: str, count: int) -> None:
    packed, _ = matrix(name, 2 * PANEL, SUMMED + GROUP)
    rows = numbers(min(count, highest(name)), packed.inputs)
    there = numbers(len(rows), 2 * PANEL, seed=2)
    got = multiplied(packed, rows, outputs=there.clone(), mode=CONTINUE)
    assert torch.allclose(got, there + multiplied(packed, rows), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("inputs", [SUMMED - 1, SUMMED, SUMMED + 1, 2 * SUMMED + 70])
@pytest.mark.parametrize("name", ["int8", "int4", "w8a8", "w4a8"])
def test_the_largest_possible_products_do_not_overflow(name: str, inputs: int) -> None:
    """Ones of either sign everywhere: all products and sums have the largest possible magnitude."""
    weight = torch.ones(3, inputs)
    weight[1] = -1
    weight[2, ::2] = -1
    packed = pack(weight, FORMS[name])
    exact = represented(weight, FORMS[name])
    for count in range(1, highest(name) + 1):
        rows = torch.ones(count, inputs)
        rows[::2] = -1
        assert torch.allclose(multiplied(packed, rows)[:, :3], rows @ exact.T, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("name", ["int8", "int4", "w8a8", "w4a8"])
@pytest.mark.parametrize("odd", [torch.nan, torch.inf])
def test_a_row_that_is_no_number_leaves_the_others_alone(name: str, odd: float) -> None:
    packed, _ = matrix(name, PANEL, SUMMED + GROUP)
    for count in (1, 3, 5, highest(name)):
        rows = numbers(count, packed.inputs)
        wanted = multiplied(packed, rows)
        rows[count - 1, 7] = odd
        got = multiplied(packed, rows)
        assert torch.equal(got[:-1], wanted[:-1])
        assert not got[-1].isfinite().any()


@pytest.mark.parametrize("name", ["int8", "int4", "w8a8", "w4a8"])
def test_activations_become_the_nearest_whole_numbers(name: str) -> None:
    rows = numbers(5, 3 * GROUP)
    apart = (as_read(rows, FORMS[name]) - rows).abs().amax()
    assert float(apart) <= 0.505 * float(rows.abs().amax()) / {8: 127, 16: 32639}[FORMS[name].activation_bits]


@pytest.mark.parametrize("count", sorted({min(count, MOST_ROWS) for count in (3, 7, 8, 10)}))
def test_float32_sums_are_continued_at_any_input(count: int) -> None:
    """Tiles read exactly the number of inputs given, as attention needs: it has no groups."""
    weight, rows = numbers(PANEL, 45), numbers(count, 45, seed=1)
    whole, sums = multiplied(pack(weight, FORMS["fp32"]), rows), None
    for low, high in ((0, 7), (7, 8), (8, 45)):
        packed, mode = pack(weight[:, low:high], FORMS["fp32"]), CONTINUE if low else STORE
        sums = multiplied(packed, rows[:, low:high], outputs=sums, mode=mode, inputs=high - low)
    assert sums is not None
    assert torch.equal(sums, whole)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("count", sorted({1, 5, min(8, MOST_ROWS), MOST_ROWS, HIGHEST}))
def test_a_product_is_added_in_one_rounding(name: str, count: int) -> None:
    packed, _ = matrix(name, 2 * PANEL, 2 * GROUP)
    count = min(count, highest(name))
    rows, there = numbers(count, packed.inputs), numbers(count, 2 * PANEL, seed=2)
    wanted = there + multiplied(packed, rows)
    assert torch.equal(multiplied(packed, rows, outputs=there.clone(), mode=ADD), wanted)


@pytest.mark.parametrize("name", FORMATS)
def test_packed_weights_equal_the_represented_weights(name: str) -> None:
    """A row with a single 1 reads a column of the weights, exactly even after quantization, since 1 is its largest value."""
    packed, weight = matrix(name, PANEL + 3, GROUP + 2)
    for first in range(0, packed.inputs, MOST_ROWS):
        ones = torch.eye(packed.inputs)[first : first + MOST_ROWS]
        got = multiplied(packed, ones)[:, : PANEL + 3]
        wanted = weight.T[first : first + MOST_ROWS]
        if packed.form.scaled:
            assert torch.allclose(got, wanted, rtol=1e-6, atol=0)
        else:
            assert torch.equal(got, wanted)


@pytest.mark.parametrize("size", [1.0, 1e-2, 1e-3, 3e-4])
def test_small_weights_lose_no_more_than_large_ones(size: float) -> None:
    """Their scales are subnormal in float16; quantized values are computed with the rounded scale."""
    weight = numbers(64, 8 * GROUP)

    def lost(name: str, weight: torch.Tensor) -> float:
        return float((represented(weight, FORMS[name]) - weight).norm() / weight.norm())

    for name in ("int8", "int4"):
        assert lost(name, size * weight) < 1.1 * lost(name, weight)


@pytest.mark.parametrize(
    ("name", "share"), [("fp32", 0), ("fp16", 2**-11), ("bf16", 2**-8), ("w16a16", 2**-8), ("int4", 1 / 13), ("w4a8", 1 / 13)]
)
def test_formats_round_as_far_as_their_bits_reach(name: str, share: float) -> None:
    weight = numbers(7, 3 * GROUP + 1)
    groups = torch.nn.functional.pad(weight, (0, GROUP - 1)).view(7, -1, GROUP)
    largest = groups.abs().amax(-1).repeat_interleave(GROUP, -1)[:, : weight.shape[1]]
    assert bool(((represented(weight, FORMS[name]) - weight).abs() <= share * largest + 1e-12).all())


@pytest.mark.parametrize("name", ["int8", "w8a8"])
def test_bytes_have_one_scale_per_output(name: str) -> None:
    weight = numbers(5, 70)
    weight[:, 3] = torch.tensor([4.0, 5.0, 6.0, 7.0, -8.0])
    meant = represented(weight, FORMS[name])
    steps = meant / (weight.abs().amax(-1, keepdim=True) / 127).half().float()
    assert torch.allclose(steps, steps.round(), atol=1e-4)
    assert bool(((meant - weight).abs() <= weight.abs().amax(-1, keepdim=True) / 250).all())


def test_more_bytes_than_32_bits_can_sum_are_refused() -> None:
    with pytest.raises(ValueError, match="133153 inputs are more than the 133144 that w8a8 can sum"):
        pack(torch.zeros(1, 133153), FORMS["w8a8"])


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_activations_of_16_bits_lose_less_than_halves(name: str) -> None:
    """Half precision: float16 for even rows, bfloat16 where one activation is a thousand times larger, as outliers are."""
    weight = numbers(2 * PANEL, 8 * GROUP)
    packed, meant = pack(weight, FORMS[name]), represented(weight, FORMS[name]).double()
    even, uneven = numbers(4, 8 * GROUP), numbers(4, 8 * GROUP)
    uneven[:, GROUP + 3] *= 1000
    for rows, rounded in ((even, even.half()), (uneven, uneven.bfloat16())):
        exact = rows.double() @ meant.T
        lost = (multiplied(packed, rows) - exact).norm()
        assert lost < (rounded.double() @ meant.T - exact).norm() / 2


@pytest.mark.parametrize("name", ["int8", "int4", "w8a8", "w4a8"])
def test_groups_of_zeros_and_of_tiny_and_huge_numbers(name: str) -> None:
    weight = torch.zeros(4, 3 * GROUP)
    weight[1] = 1e-9
    weight[2] = 1e5
    weight[3, ::5] = -3.0
    rows = numbers(3, 3 * GROUP)
    rows[1] = 0
    packed, meant = pack(weight, FORMS[name]), represented(weight, FORMS[name])
    got = multiplied(packed, rows)[:, :4]
    assert bool(got.isfinite().all())
    assert not got[1].any()
    assert torch.allclose(got, as_read(rows, packed.form) @ meant.T, rtol=1e-3, atol=1e-3 * 1e5)
    assert torch.equal(meant[0], weight[0])
    assert torch.allclose(meant[2], weight[2], rtol=1e-3)


def test_slices_of_a_large_matrix_are_packed_alike() -> None:
    """More panels than are packed at a time, the last one not full."""
    weight = numbers(33 * PANEL + 9, GROUP)
    packed = pack(weight, FORMS["int8"])
    for panel in (0, 31, 32, 33):
        alone = pack(weight[panel * PANEL : (panel + 1) * PANEL], FORMS["int8"])
        assert torch.equal(packed.data[panel : panel + 1], alone.data)


@pytest.mark.parametrize("name", FORMATS)
def test_rows_that_have_no_room_beside_a_panel_walk_it_in_blocks(name: str) -> None:
    """The formats whose products are bound by memory bandwidth."""
    most = most_rows(VECTORS)
    tall_rows = [rows for rows in range(1, MOST_ROWS + 1) if tall.suits(FORMS[name], rows)]
    assert tall_rows == ([] if name in ("int8", "int4", "w4a8") else [*range(most + 1, 5 * most // 3 + 1)])


@pytest.mark.parametrize("pages", [1, 4])
@pytest.mark.parametrize("name", FORMATS)
def test_every_tile_fetches_whole_turns_of_pages(name: str, pages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For processors like Intel's, whatever this one is: `lines_in_turn` would refuse the others."""
    for module in (ahead, tiles):
        monkeypatch.setattr(module, "PAGES", pages)
    module = ir.Module()
    for rows in range(1, MOST_ROWS + 1):
        if tall.suits(FORMS[name], rows):
            tall.emit_tall_tile(module, FORMS[name], rows)
        vectors = VECTORS if rows <= most_rows(VECTORS) else VECTORS // 2
        tiles.emit_tile(module, FORMS[name], rows, vectors, 0)
    assert "prefetch" in str(module)
