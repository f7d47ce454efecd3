"""Arithmetic of rows against torch in float64, at lengths that are multiples of the register size and others."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from compiled import (
    ADDED,
    EXPONENTIAL,
    FILLED,
    GELU,
    HALVED,
    LAYER_NORM,
    NARROWED,
    PART_BEGIN,
    RMS_NORM,
    ROTATED,
    SCALED,
    SHARE,
    SILU,
    SOFT_CAP,
    SOFT_MAX,
    TURNED,
    call,
    laid_out,
)
from paceline.kernels.native.formats import FORMATS, GROUP
from paceline.kernels.native.layout import FLOATS
from paceline.kernels.native.matrix_unit import HIGHEST
from paceline.kernels.native.needs import laid_as
from paceline.kernels.native.packed import Packed
from paceline.kernels.native.tiles import MOST_ROWS
from paceline.kernels.native.vectors import LANES

LENGTHS = [1, 3, 16, 31, 64, 100, 257]


def numbers(count: int, seed: int = 0, size: float = 1.0) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed)) * size


def test_exponentials_over_their_whole_range() -> None:
    inputs = torch.cat([torch.linspace(-87.3, 88, 20001), torch.tensor([0.0, -0.0, 1e-30, -1e-8])])
    out = torch.empty_like(inputs)
    call(EXPONENTIAL, inputs, count=len(inputs), out=out)
    wanted = inputs.clamp(-87, 88).double().exp()
    assert float(((out - wanted) / wanted).abs().max()) < 2.5e-7
    assert float(out[-4]) == 1.0


def test_exponentials_beyond_their_range_stay_numbers() -> None:
    inputs = torch.tensor([-math.inf, -1e30, -88.0, 89.0, 1e30, math.inf])
    out = torch.empty_like(inputs)
    call(EXPONENTIAL, inputs, count=6, out=out)
    assert bool(out.isfinite().all())
    assert float(out[:3].max()) < 2e-38
    assert float(out[3:].min()) > 1e38


@pytest.mark.parametrize("count", LENGTHS)
@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0])
def test_norms(count: int, size: float) -> None:
    row, weight, bias, out = numbers(count, 1, size), numbers(count, 2), numbers(count, 3), torch.empty(count)
    call(RMS_NORM, row, weight, count=count, number=1e-5, out=out)
    wanted = functional.rms_norm(row.double(), (count,), weight.double(), 1e-5)
    assert torch.allclose(out.double(), wanted, rtol=1e-5, atol=1e-6)
    call(LAYER_NORM, row, weight, bias, count=count, number=1e-5, out=out)
    wanted = functional.layer_norm(row.double(), (count,), weight.double(), bias.double(), 1e-5)
    assert torch.allclose(out.double(), wanted, rtol=1e-4, atol=1e-5)
    # in place, as for a head's norm; the compiler generates other code for overlapping rows, whose last bits may differ
    call(LAYER_NORM, row, weight, bias, count=count, number=1e-5, out=row)
    assert torch.allclose(row.double(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", LENGTHS)
@pytest.mark.parametrize("size", [0.1, 5.0, 80.0])
def test_softmax_and_caps(count: int, size: float) -> None:
    row = numbers(count, size=size)
    weights, total = row.clone(), torch.empty(1)
    call(SOFT_MAX, weights, count=count, number=0.5, out=total)
    assert float(weights.max()) == 1.0
    assert torch.allclose(weights.double() / total, (0.5 * row.double()).softmax(0), rtol=1e-4, atol=1e-7)
    assert float(weights.double().sum() / total) == pytest.approx(1, abs=1e-5)
    capped = row.clone()
    call(SOFT_CAP, capped, count=count, number=12.0)
    assert torch.allclose(capped.double(), 12 * (row.double() / 12).tanh(), rtol=1e-5, atol=1e-5)
    scaled = row.clone()
    call(SCALED, scaled, count=count, number=0.25)
    assert torch.equal(scaled, row * 0.25)


@pytest.mark.parametrize("count", LENGTHS)
def test_scores_that_are_not_seen_weigh_nothing(count: int) -> None:
    """A row padded to whole registers has the same sum as without padding."""
    row, total = torch.full((count + 64,), torch.nan), torch.empty(1)
    row[:count] = numbers(count)
    call(FILLED, row, count=count, more=count + 64, number=-3e38)
    call(SOFT_MAX, row, count=count + 64, number=1.0, out=total)
    assert float(row[count:].max()) < 1e-37
    weights = (numbers(count).double() - numbers(count).max()).exp()
    assert float(total) == pytest.approx(float(weights.sum()), rel=1e-5)


@pytest.mark.parametrize("rows", range(1, MOST_ROWS + 1))
@pytest.mark.parametrize("blocks", [1, 3])
def test_rows_are_turned(rows: int, blocks: int) -> None:
    """For any number of rows, with a stride; and nothing is written past the end."""
    source = numbers((LANES * blocks + 5) * rows).view(rows, -1)
    target = torch.full(((LANES * blocks + 1) * rows + LANES,), -7.0)
    call(TURNED, source, source.stride(0) * 4, count=rows, more=blocks, out=target)
    size = LANES * blocks * rows
    assert torch.equal(target[:size].view(-1, rows), source[:, : LANES * blocks].T)
    assert bool((target[size:] == -7.0).all())


def test_halves_are_the_nearest_and_never_infinite() -> None:
    inputs = torch.cat([numbers(1000, size=30.0), torch.tensor([0.0, 1e-7, 65519.0, 65520.0, 1e30, -1e30, math.inf, -math.inf])])
    halves, copies = torch.zeros(len(inputs), dtype=torch.float16), torch.zeros(len(inputs), dtype=torch.float16)
    call(HALVED, inputs, halves, copies, count=len(inputs))
    assert torch.equal(halves, inputs.clamp(-65504, 65504).half())
    assert torch.equal(copies, halves)
    call(HALVED, torch.tensor([math.nan]), halves, copies, count=1)
    assert bool(halves[0].isnan())


@pytest.mark.parametrize("count", LENGTHS)
def test_gates(count: int) -> None:
    gate, up, out = numbers(count, 1, 6.0), numbers(count, 2), torch.empty(count)
    gate[0] = -120.0
    call(SILU, gate, up, count=count, out=out)
    assert torch.allclose(out.double(), functional.silu(gate.double()) * up, rtol=1e-5, atol=1e-6)
    call(GELU, gate, up, count=count, out=out)
    assert torch.allclose(out.double(), functional.gelu(gate.double(), approximate="tanh") * up, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("half", [1, 4, 8, 24, 40, 64])
def test_rotation_turns_pairs_and_leaves_the_rest(half: int) -> None:
    row, angles = numbers(2 * half + 5), numbers(half, 1, 100.0)
    turned = row.clone()
    call(ROTATED, turned, angles.cos(), angles.sin(), count=half)
    pairs = torch.complex(row[:half].double(), row[half : 2 * half].double())
    wanted = pairs * torch.complex(angles.cos().double(), angles.sin().double())
    assert torch.allclose(turned[: 2 * half].double(), torch.cat([wanted.real, wanted.imag]), atol=1e-6)
    assert torch.equal(turned[2 * half :], row[2 * half :])


@pytest.mark.parametrize("count", LENGTHS)
def test_sums(count: int) -> None:
    row, other = numbers(count), numbers(count, 1)
    total = row.clone()
    call(ADDED, total, other, count=count)
    assert torch.equal(total, row + other)


@pytest.mark.parametrize("count", [1, 31, 32, 33, 70, 96])
@pytest.mark.parametrize("height", [1, 5, MOST_ROWS, HIGHEST])
@pytest.mark.parametrize("name", ["w8a8", "int8", "bf16", "w16a16"])
def test_narrow_activations_lie_as_the_tiles_read_them(count: int, height: int, name: str) -> None:
    rows = torch.randn(height, count, generator=torch.Generator().manual_seed(count)) * torch.logspace(-4, 4, height)[:, None]
    rows[0, : count // 2] = 0
    # too small for a scale that has an inverse
    rows[-1, count // 2 :] = 1e-38
    form = FORMATS[name]
    if laid_as(form) == FLOATS:
        pytest.skip("without a matrix unit bfloat16 meets float32")
    packed = Packed(form, 1, count, torch.empty(0))
    wanted = laid_out(rows, packed)
    out = torch.full((height * form.row_bytes(packed.padded_inputs),), 77, dtype=torch.int8)
    own = torch.full((packed.padded_inputs,), torch.nan)
    assert len(out) == len(wanted)
    for place in range(height):
        row = rows[place].contiguous()
        call(NARROWED, row, place, height, count=count, more=own.data_ptr(), number=laid_as(form), out=out)
    assert torch.equal(out, wanted)
    assert packed.padded_inputs % form.multiple == 0


@pytest.mark.parametrize("name", ["w8a8", "int8"])
@pytest.mark.parametrize("odd", [torch.nan, torch.inf])
def test_a_value_that_is_not_finite_spoils_only_the_activations_that_share_its_scale(name: str, odd: float) -> None:
    form, row = FORMATS[name], torch.ones(2 * GROUP)
    row[GROUP + 3] = odd
    out = torch.zeros(form.row_bytes(2 * GROUP) // 4)
    call(NARROWED, row, 0, 1, count=2 * GROUP, number=laid_as(form), out=out)
    if form.scaled_once:
        assert not out[2 * GROUP * form.activation_bits // 8 // 4].isfinite()
    else:
        assert out[0].isfinite()
        assert not out[len(out) // 2].isfinite()


@pytest.mark.parametrize("highest", [MOST_ROWS, HIGHEST])
@pytest.mark.parametrize("rows", [1, MOST_ROWS, MOST_ROWS + 1, 3 * MOST_ROWS - 1, 100])
def test_tiles_part_all_rows_evenly(rows: int, highest: int) -> None:
    parts = -(-rows // highest)
    begins = torch.zeros(parts + 1, dtype=torch.int32)
    call(PART_BEGIN, count=rows, more=highest, out=begins)
    heights = begins.diff()
    assert (int(begins[0]), int(begins[-1])) == (0, rows)
    assert 0 < int(heights.min()) <= int(heights.max()) <= min(highest, int(heights.min()) + 1)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("even", [0, 1])
def test_threads_share_all_panels_and_none_twice(threads: int, even: int) -> None:
    for panels in (2, 4, 6, 10, 26) if even else (1, 2, 3, 10, 25):
        begins = torch.zeros(threads + 1, dtype=torch.int32)
        call(SHARE, b=even, count=panels, more=threads, out=begins)
        assert (int(begins[0]), int(begins[-1])) == (0, panels)
        assert int(begins.diff().min()) >= 0
        assert not even or not bool((begins % 2).any())
