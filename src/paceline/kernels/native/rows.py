"""Rows: activations laid out for the tiles, and the products of all rows of a step with one matrix.

Up to the height of a format's tallest tile, all rows form one tile; more are split into tiles of about equal height. Weights are
the outer loop and tiles the inner one, so that after the first tile weights come from cache. A single tile is laid out by every
thread for itself, which costs less than a barrier; several are divided among threads.
"""

from __future__ import annotations

import numpy as np

from paceline.kernels.native import arithmetic
from paceline.kernels.native.formats import BLOCK, FORMATS, GROUP, padded
from paceline.kernels.native.layout import BYTES, FLOATS, GROUPED_BYTES, HALVES, HALVES_AND_REST, LAYER, NO_NORM, RMS, WORDS
from paceline.kernels.native.matrix_unit import fewest_rows
from paceline.kernels.native.memory import barrier, floats, helper, put
from paceline.kernels.native.products import asked_for, call_product
from paceline.kernels.native.quantization import (
    group_of_bytes,
    group_of_pairs,
    halved_row,
    row_of_bytes,
    row_of_pairs,
    row_of_planes,
    split_row,
)
from paceline.kernels.native.transposition import turned
from paceline.kernels.native.vectors import LANES, PANEL

_f = np.float32
_PLANES_FROM = 1 if FORMATS["int8"].in_planes else fewest_rows(FORMATS["int8"])
"""From so many rows on, a tile stores 16-bit activations as planes of bytes, as a matrix unit or ARM's instructions need."""


up = helper(padded)
"""`padded`, for compiled code."""


@helper
def parts_of(rows, highest):
    return (rows + highest - 1) // highest


@helper
def part_begin(rows, parts, part):
    """The first row of a tile, and the end of the one before."""
    return part * (rows // parts) + min(part, rows % parts)


@helper
def share(count, thread, threads, even):
    """Where a thread's part of `count` panels begins; even: at an even panel."""
    begin = count * thread // threads
    return begin - begin % 2 if even and thread < threads else begin


@helper
def normed(norm, row, count, out):
    if norm.kind == RMS:
        arithmetic.rms_norm(row, count, norm.weight, norm.epsilon, out)
    elif norm.kind == LAYER:
        arithmetic.layer_norm(row, count, norm.weight, norm.bias, norm.epsilon, out)


@helper
def _shared(parts, threads):
    return threads > 1 and parts > 1


@helper
def _tiles(parts, scratch, thread, threads):
    return scratch.tiles if _shared(parts, threads) else scratch.tiles + thread * scratch.tiles_bytes


@helper
def laid_out(matrix, norm, rows, source, stride, chosen, count, scratch, thread, threads, round_):
    """Lay out rows of `count` floats for a matrix, normalised first if `norm` says so. Returns the barrier's round.

    source: address of rows `stride` floats apart. chosen: int64, indices of the rows; empty: the first `rows`.
    """
    parts = parts_of(rows, matrix.highest)
    tiles = _tiles(parts, scratch, thread, threads)
    own = scratch.row + thread * scratch.row_bytes
    together = _shared(parts, threads)
    for part in range(thread if together else 0, parts, threads if together else 1):
        begin, end = part_begin(rows, parts, part), part_begin(rows, parts, part + 1)
        tile = tiles + begin * matrix.row_bytes
        lines, wide = own, 4 * matrix.inputs
        if matrix.laid == FLOATS and norm.kind == NO_NORM and len(chosen) == 0 and count == matrix.inputs:
            lines, wide = source + 4 * stride * begin, 4 * stride
        else:
            for row in range(begin, end):
                address = source + 4 * stride * (row if len(chosen) == 0 else chosen[row])
                line = own + (wide * (row - begin) if matrix.laid == FLOATS else 0)
                if norm.kind != NO_NORM:
                    normed(norm, address, count, line)
                    address = line
                if matrix.laid == FLOATS:
                    _extended(address, count, matrix.inputs, line)
                else:
                    narrowed(matrix.laid, address, count, matrix.inputs, own, tile, row - begin, end - begin)
        if matrix.laid == FLOATS:
            # [inputs, rows]: rows become columns
            turned(lines, wide, end - begin, matrix.inputs // LANES, tile)
    if together:
        round_ += 1
        barrier(scratch.counter, round_, threads)
    return round_


@helper
def _extended(row, count, inputs, own):
    """Copy `count` floats to `own`, if they are not there yet, and pad them with zeros up to `inputs`."""
    source, target = floats(row), floats(own)
    if row != own:
        for k in range(count):
            put(target, k, source[k])
    for k in range(count, inputs):
        put(target, k, _f(0))


@helper
def narrowed(laid, row, count, inputs, own, tile, place, height):
    """Write one row as numbers of fewer bits. GROUPED_BYTES, GROUPED_WORDS: per group of inputs, for all rows of the tile in
    turn, the float32 scale, the int32 sum, and the words of four numbers each, or of two. BYTES: per BLOCK of inputs, for all
    rows in turn, the bytes; after them the scales and sums of all rows. WORDS: as BYTES but with 16 bits per number and without
    sums; for vectors in crossed pairs (`row_of_pairs`), for the matrix unit the upper bytes of all rows before the lower ones.
    HALVES: per group, for all rows in turn, the bfloat16; with HALVES_AND_REST followed by the remainders.

    own: scratch for the row if it must be padded with zeros.
    """  # fmt: skip
    if count < inputs:
        _extended(row, count, inputs, own)
        row = own
    if laid == BYTES:
        at = tile + height * inputs + 4 * place
        row_of_bytes(row, inputs, at, at + 4 * height, tile + place * BLOCK, height * BLOCK)
    elif laid == WORDS:
        at, stride = tile + 2 * height * inputs + 4 * place, height * 2 * BLOCK
        if height >= _PLANES_FROM:
            row_of_planes(row, inputs, at, at + 4 * height, tile + place * BLOCK, stride)
        else:
            row_of_pairs(row, inputs, at, at + 4 * height, tile + place * 2 * BLOCK, stride)
    elif laid == HALVES:
        halved_row(row, inputs, tile + place * 2 * GROUP, height * 2 * GROUP)
    elif laid == HALVES_AND_REST:
        split_row(row, inputs, tile + place * 2 * GROUP, height * 2 * GROUP)
    elif laid == GROUPED_BYTES:
        for group in range(inputs // GROUP):
            at = tile + group * height * (8 + GROUP) + 4 * place
            group_of_bytes(row + 4 * group * GROUP, at, at + 4 * height, at + 8 * height, 4 * height)
    else:
        for group in range(inputs // GROUP):
            at = tile + group * height * (8 + 2 * GROUP) + 4 * place
            group_of_pairs(row + 4 * group * GROUP, at, at + 4 * height, at + 8 * height, 4 * height)


@helper
def multiplied(matrix, rows, outputs, stride, scratch, thread, threads, mode, following):
    """Compute this thread's panels of the outputs of all rows, `stride` floats apart. following: the next matrix, to prefetch."""
    low, high = share(matrix.panels, thread, threads, matrix.paired), share(matrix.panels, thread + 1, threads, matrix.paired)
    parts = parts_of(rows, matrix.highest)
    tiles = _tiles(parts, scratch, thread, threads)
    step = max(high - low if parts == 1 else matrix.together, 1)
    for place in range(low, high, step):
        for part in range(parts):
            begin, end = part_begin(rows, parts, part), part_begin(rows, parts, part + 1)
            call_product(
                matrix.product, end - begin, tiles + begin * matrix.row_bytes, matrix.weights, matrix.panel_bytes, matrix.inputs,
                outputs + 4 * begin * stride, 4 * stride, place, min(place + step, high), mode,
            )  # fmt: skip
    # loaded while other threads finish and the next rows are laid out
    begin = share(following.panels, thread, threads, following.paired)
    asked_for(following.weights + begin * following.panel_bytes)
    if matrix.bias != 0:
        wide = 4 * low * PANEL
        for row in range(rows):
            arithmetic.added(outputs + 4 * row * stride + wide, (high - low) * PANEL, matrix.bias + wide)
