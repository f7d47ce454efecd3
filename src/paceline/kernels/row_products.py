"""Row products, in Triton: rows of activations times a matrix, where a row's bits never depend on the rows beside it.

A library chooses its algorithm by the number of rows, and algorithms differ in the last bits: a token verified beside others
might not be the token that is decoded alone. Here every output is summed in one order, whatever the tiles: inputs in parts
determined by the matrix alone, each part from its first input to its last, the parts in order. A product of few rows is bound by
reading weights, so the parts of an output are computed in parallel and added up by the next kernel (`residual_norms`, `rotary`);
one of many rows is bound by arithmetic, so one program computes all parts of its outputs and adds them up itself. If the device
can copy whole tiles by descriptors, large matrices are read that way: the numbers are the same, but no threads are busy with
loads.

Matrices are [outputs, inputs], as checkpoints store them. The larger side of a tensor core's product takes outputs, the smaller
one rows, so that few rows waste little work. An element of such a product depends neither on its place in the tile nor on the
tile's size (`benchmarks/gpu.py` checks this on the device at hand).

Source: split-K products and Stream-K (arXiv:2301.03598) for parts side by side; invariance to the batch after "Defeating
Nondeterminism in LLM Inference" (He et al., Thinking Machines Lab, 2025); copies of tiles by tensor memory access, CUDA C++
Programming Guide.
"""

# pyright: reportMissingImports=false, reportOperatorIssue=false, reportCallIssue=false, reportIndexIssue=false
# ... for Triton is optional, and its stubs know neither the values of a kernel nor the options of a launch

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from paceline.kernels.finite import finite
from paceline.kernels.overlap import begin, overlapped, since_hopper

_FEW, _SOME, _SEVERAL, _MANY = 64, 128, 256, 512
"""Row counts up to which a tile has: all rows; 64 outputs; 64 rows; and (copied by descriptors) 128 outputs."""
_SIDE_BY_SIDE = 256
"""Up to so many rows, the parts of an output are computed in parallel."""
_DESCRIBED = 1 << 22
"""Fewest numbers of a matrix that is worth a descriptor, which the host creates."""
_PROGRAMS, _LEAST_INPUTS = 96, 512
"""A large device reaches its full bandwidth with so many programs, each prefetching far ahead; a matrix with too few outputs for
that is divided into parts of at least so many inputs."""
_FEWEST_BYTES = 96 << 10
"""Bytes of shared memory to assume if their number is unknown."""


@dataclass(frozen=True)
class Tile:
    """outputs, rows, inputs: sides of a tile, powers of two from 16 on. No bit depends on them. stages: tiles being loaded at
    once."""

    outputs: int
    rows: int
    inputs: int
    warps: int
    stages: int

    @classmethod
    def of(cls, rows: torch.Tensor, matrices: int = 1, described: bool = False) -> Tile:
        """The tile for these rows, [R, inputs] in any dtype; it depends only on their count, element size and device. matrices:
        how many one program multiplies the rows by. described: whether tiles of one matrix are copied by descriptors; ignored
        with two matrices."""
        count, number_bytes, shared = len(rows), rows.element_size(), _shared_bytes(rows.device)
        inputs = (256 if count <= _FEW else 128) // number_bytes

        def tile(outputs: int, side: int, warps: int, most: int) -> Tile:
            held = (outputs * matrices + side) * inputs * number_bytes
            return cls(outputs, side, inputs, warps, max(2, min(most, shared // held)))

        if count <= _FEW:
            return tile(64, max(16, triton.next_power_of_2(count)), 4, 6 if matrices == 1 else 4)
        if matrices > 1:
            return tile(64, 128, 4, 3) if count <= _SEVERAL else tile(128, 128, 8, 3)
        if count <= _SEVERAL:
            return tile(64, 64, 4, 6) if count <= _SOME else tile(128, 64, 4, 4)
        if not described:
            return tile(128, 128, 8, 3)
        return tile(128, 128, 4, 4) if count <= _MANY else tile(256, 128, 8, 3)


@functools.cache
def _shared_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return _FEWEST_BYTES
    return getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", _FEWEST_BYTES)


def parts_of(outputs: int, inputs: int) -> int:
    """Number of parts that inputs are divided into. Part of what the target is: another number gives other bits."""
    parts = 1
    while inputs // (2 * parts) >= _LEAST_INPUTS and triton.cdiv(outputs, 64) * parts < _PROGRAMS:
        parts *= 2
    return parts


def part_length(inputs: int, parts: int) -> int:
    """Inputs of each part but the last, a multiple of every tile's."""
    return -(-inputs // (parts * 128)) * 128


@triton.jit
def _tile(matrix, starts, there, first, at, line, inputs, described: tl.constexpr, once: tl.constexpr):
    """[rows of the matrix, tile of inputs], with zeros beyond its ends. starts, there: address and existence of each row. once:
    whether few other programs read it."""
    if described:
        found = matrix.load([first, at])
    else:
        place = at + line[None, :]
        # only the end of the last part may lie within a tile
        there = there & (place < inputs)
        found = tl.load(starts + place, mask=there, other=0.0, eviction_policy="evict_first" if once else "evict_last")
    return found


@triton.jit
def _multiplied(weights, rows, sums, wide: tl.constexpr):
    """sums + weights [outputs, inputs] x rows [R, inputs] transposed."""
    if wide:
        return tl.dot(weights.to(tl.float32), tl.trans(rows.to(tl.float32)), sums, input_precision="ieee")
    return tl.dot(weights, tl.trans(rows), sums, input_precision="ieee")


@triton.jit(do_not_specialize=["count", "parts"])
def _product(
    rows, weights, sums, count, row_stride, outputs, inputs, length, parts,
    together: tl.constexpr, tile_outputs: tl.constexpr, tile_rows: tl.constexpr, tile_inputs: tl.constexpr, wide: tl.constexpr,
    described: tl.constexpr, early: tl.constexpr,
):  # fmt: skip
    """One tile of rows and outputs, and one part of the inputs; all parts if `together`. sums: float32 [parts, count, outputs];
    [1, count, outputs] if together. One compiled kernel serves matrices of all sizes."""
    first_row, first_output = tl.program_id(0) * tile_rows, tl.program_id(1) * tile_outputs
    row, output = first_row + tl.arange(0, tile_rows), first_output + tl.arange(0, tile_outputs)
    part = tl.program_id(2)
    line = tl.arange(0, tile_inputs)
    row_there, output_there = (row < count)[:, None], (output < outputs)[:, None]
    row_starts, output_starts = 0, 0
    if not described:
        row_starts = rows + row[:, None].to(tl.int64) * row_stride
        output_starts = weights + output[:, None].to(tl.int64) * inputs
    begin(early)
    total = tl.zeros([tile_outputs, tile_rows], tl.float32)
    for turn in range(parts if together else 1):
        first = (turn if together else part) * length
        sum_of_part = tl.zeros([tile_outputs, tile_rows], tl.float32)
        for at in range(first, tl.minimum(first + length, inputs), tile_inputs):
            held = _tile(weights, output_starts, output_there, first_output, at, line, inputs, described, True)
            asked = _tile(rows, row_starts, row_there, first_row, at, line, inputs, described, False)
            sum_of_part = _multiplied(held, asked, sum_of_part, wide)
        total = total + sum_of_part if together else sum_of_part
    cell = (part.to(tl.int64) * count + row[None, :]) * outputs + output[:, None]
    tl.store(sums + cell, total, mask=output_there & (row < count)[None, :])


@triton.jit
def _gelu_tanh(number):
    # tanh from exp2, exact at both ends: Triton's interpreter has no tanh
    inner = 0.7978845608028654 * (number + 0.044715 * number * number * number)
    return 0.5 * number * (2.0 - 2.0 / (tl.exp2(inner * (2.0 * 1.4426950408889634)) + 1.0))


@triton.jit
def _silu(number):
    return number / (1.0 + tl.exp2(number * -1.4426950408889634))


@triton.jit(do_not_specialize=["count"])
def _gated_product(
    rows, weights, bias, out, count, row_stride, outputs, inputs,
    silu: tl.constexpr, biased: tl.constexpr, tile_outputs: tl.constexpr, tile_rows: tl.constexpr, tile_inputs: tl.constexpr,
    wide: tl.constexpr, described: tl.constexpr, limit: tl.constexpr, early: tl.constexpr,
):  # fmt: skip
    """One tile of rows and of outputs. weights: the gate matrix [outputs, inputs], then the up matrix. out: [count, outputs]."""
    first_row, first_output = tl.program_id(0) * tile_rows, tl.program_id(1) * tile_outputs
    row, output = first_row + tl.arange(0, tile_rows), first_output + tl.arange(0, tile_outputs)
    line = tl.arange(0, tile_inputs)
    row_there, output_there = (row < count)[:, None], (output < outputs)[:, None]
    row_starts, gate_starts, gated_starts = 0, 0, 0
    if not described:
        row_starts = rows + row[:, None].to(tl.int64) * row_stride
        gate_starts = weights + output[:, None].to(tl.int64) * inputs
        gated_starts = gate_starts + outputs.to(tl.int64) * inputs
    begin(early)
    gate = tl.zeros([tile_outputs, tile_rows], tl.float32)
    gated = tl.zeros([tile_outputs, tile_rows], tl.float32)
    for at in range(0, inputs, tile_inputs):
        asked = _tile(rows, row_starts, row_there, first_row, at, line, inputs, described, False)
        held = _tile(weights, gate_starts, output_there, first_output, at, line, inputs, described, True)
        gate = _multiplied(held, asked, gate, wide)
        held = _tile(weights, gated_starts, output_there, outputs + first_output, at, line, inputs, described, True)
        gated = _multiplied(held, asked, gated, wide)
    if biased:
        gate += tl.load(bias + output, mask=output < outputs, other=0.0)[:, None]
        gated += tl.load(bias + outputs + output, mask=output < outputs, other=0.0)[:, None]
    result = (_silu(gate) if silu else _gelu_tanh(gate)) * gated
    cell = row[None, :].to(tl.int64) * outputs + output[:, None]
    tl.store(out + cell, finite(result, limit).to(out.dtype.element_ty), mask=output_there & (row < count)[None, :])


def _wide(rows: torch.Tensor) -> bool:
    """Whether to multiply in float32: Triton's interpreter cannot multiply bfloat16; float32 holds its products exactly."""
    return not rows.is_cuda and rows.dtype is torch.bfloat16


def row_product(rows: torch.Tensor, weights: torch.Tensor, parts: int) -> torch.Tensor:
    """Rows times a matrix: float32 [P, T, outputs], to be added up in order; P is `parts` for few rows, else 1.

    rows: float32, float16 or bfloat16 [T, inputs], numbers of a row contiguous. weights: [outputs, inputs], contiguous, in the
    same dtype. parts: of the inputs, `parts_of` the matrix. Raises ValueError where the shapes do not agree.
    """
    count, inputs = _checked(rows, weights)
    outputs = weights.shape[0]
    described = _is_described(rows, weights)
    tile = Tile.of(rows, described=described)
    together = count > _SIDE_BY_SIDE and parts > 1
    held = 1 if together else parts
    sums = torch.empty(held, count, outputs, dtype=torch.float32, device=rows.device)
    grid = (triton.cdiv(count, tile.rows), triton.cdiv(outputs, tile.outputs), held)
    _product[grid](
        *_operands(rows, weights, tile, described), sums, count, rows.stride(0), outputs, inputs, part_length(inputs, parts),
        parts, together=together, tile_outputs=tile.outputs, tile_rows=tile.rows, tile_inputs=tile.inputs, wide=_wide(rows),
        described=described, num_warps=tile.warps, num_stages=tile.stages, **overlapped(rows.device),
    )  # fmt: skip
    return sums


def gated_product(rows: torch.Tensor, weights: torch.Tensor, activation: str, bias: torch.Tensor | None = None) -> torch.Tensor:
    """activation(rows x gate) * (rows x up), [T, outputs] in the dtype of rows; overflow gives the largest finite number.

    rows: as in `row_product`. weights: [2 outputs, inputs], gate first. bias: float32 [2 outputs]. activation: "silu" or
    "gelu_tanh". Raises ValueError if the shapes do not agree.
    """
    count, inputs = _checked(rows, weights)
    outputs = weights.shape[0] // 2
    described = _is_described(rows, weights)
    tile = Tile.of(rows, matrices=2)
    out = rows.new_empty(count, outputs)
    _gated_product[(triton.cdiv(count, tile.rows), triton.cdiv(outputs, tile.outputs))](
        *_operands(rows, weights, tile, described), bias, out, count, rows.stride(0), outputs, inputs, silu=activation == "silu",
        biased=bias is not None, tile_outputs=tile.outputs, tile_rows=tile.rows, tile_inputs=tile.inputs, wide=_wide(rows),
        described=described, limit=torch.finfo(out.dtype).max, num_warps=tile.warps, num_stages=tile.stages,
        **overlapped(rows.device),
    )  # fmt: skip
    return out


def _is_described(rows: torch.Tensor, weights: torch.Tensor) -> bool:
    """Whether tiles are copied by descriptors: requires 2-byte numbers, and rows of both aligned to 16 bytes."""
    return (
        len(rows) > _FEW
        and since_hopper(rows.device)
        and weights.numel() >= _DESCRIBED
        and rows.element_size() == 2
        and weights.shape[1] % 8 == rows.stride(0) % 8 == 0
        and weights.data_ptr() % 16 == rows.data_ptr() % 16 == 0
    )


def _operands(rows: torch.Tensor, weights: torch.Tensor, tile: Tile, described: bool) -> tuple[Any, Any]:
    if not described:
        return rows, weights
    return (
        TensorDescriptor(rows, list(rows.shape), list(rows.stride()), [tile.rows, tile.inputs]),
        TensorDescriptor(weights, list(weights.shape), list(weights.stride()), [tile.outputs, tile.inputs]),
    )


def _checked(rows: torch.Tensor, weights: torch.Tensor) -> tuple[int, int]:
    count, inputs = rows.shape
    if weights.shape[1] != inputs or rows.dtype is not weights.dtype:
        raise ValueError("rows and weights do not belong together")
    if rows.stride(1) != 1 or not weights.is_contiguous():
        raise ValueError("the numbers of a row and the weights have to be contiguous")
    return count, inputs
