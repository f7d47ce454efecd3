"""Decoder: one whole step of a Llama-form model in one call, on as many threads as are given.

The line is drawn once, in `run`: embed, then per layer norm, queries keys and values, rotation, attention, output, norm, gated
MLP, and at the end norm and head for the rows that are wanted. Threads divide panels of outputs, rows or heads, never a sum,
and meet at a barrier between; so the number of threads changes no bit either.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from paceline.kernels.native import arithmetic
from paceline.kernels.native.attention import attend, up
from paceline.kernels.native.compiled import SOURCES
from paceline.kernels.native.layout import (
    AFTER_ATTENTION, AFTER_MLP, BEFORE_ATTENTION, BEFORE_MLP, CALL, DOWN, GATE_UP, KEY, LAYER, LAYER_RECORD, MATRICES, MATRIX,
    MODEL, NO_NORM, NORM, NORMS, OUT, QKV, QUERY, RMS, SEGMENT, SILU,
)  # fmt: skip
from paceline.kernels.native.memory import PART, barrier, brain_at, floats, half_at, helper, pointer, put
from paceline.kernels.native.products import call_product
from paceline.kernels.native.tiles import ADD, MOST_ROWS, STORE
from paceline.kernels.native.vectors import PANEL

import numba  # isort: skip  (after `vectors`)
from numba import carray  # isort: skip

_f = np.float32


@helper
def share(count, thread, threads):
    """Where a thread's part of `count` panels begins: even, so that tiles of two panels fit."""
    return count if thread == threads else count * thread // threads // 2 * 2


@helper
def normed(norm, row, count, out):
    if norm.kind == RMS:
        arithmetic.rms_norm(row, count, norm.weight, norm.epsilon, out)
    elif norm.kind == LAYER:
        arithmetic.layer_norm(row, count, norm.weight, norm.bias, norm.epsilon, out)


@helper
def tiled(norm, rows, source, stride, chosen, count, inputs, row_scratch, tiles):
    """Lay rows out for the tiles, normalised on the way: tile after tile of [inputs, height]. chosen: which rows, or none: all."""
    parts = (rows + MOST_ROWS - 1) // MOST_ROWS
    target, begin = floats(tiles), 0
    for part in range(parts):
        height = rows // parts + (1 if part < rows % parts else 0)
        for r in range(height):
            row = begin + r if len(chosen) == 0 else chosen[begin + r]
            address = source + 4 * row * stride
            if norm.kind != NO_NORM:
                normed(norm, address, count, row_scratch)
                address = row_scratch
            at = floats(address)
            place = begin * inputs + r
            for k in range(count):
                put(target, place + k * height, at[k])
            for k in range(count, inputs):
                put(target, place + k * height, _f(0))
        begin += height


@helper
def multiplied(matrix, rows, tiles, outputs, stride, low, high, mode):
    """Outputs of the panels [low, high) for all rows; weights outside, so that rows past one tile find them in cache."""
    parts = (rows + MOST_ROWS - 1) // MOST_ROWS
    step = high - low if parts == 1 else 2
    for place in range(low, high, max(step, 1)):
        begin = 0
        for part in range(parts):
            height = rows // parts + (1 if part < rows % parts else 0)
            call_product(
                matrix.product, height, tiles + 4 * begin * matrix.inputs, matrix.weights, matrix.panel_bytes, matrix.inputs,
                outputs + 4 * begin * stride, 4 * stride, place, min(place + step, high), mode,
            )  # fmt: skip
            begin += height
    if matrix.bias != 0:
        bias = floats(matrix.bias)
        for row in range(rows):
            line = floats(outputs + 4 * row * stride)
            for k in range(low * PANEL, high * PANEL):
                put(line, k, line[k] + bias[k])


@helper
def embedded(model, token, out):
    row, width = floats(out), model.hidden
    for k in range(width):
        if model.embedding_kind == 0:
            value = floats(model.embedding)[token * width + k]
        elif model.embedding_kind == 1:
            value = half_at(model.embedding + 2 * (token * width + k))
        else:
            value = brain_at(model.embedding + 2 * (token * width + k))
        put(row, k, value * model.embedding_scale)


@helper
def placed(model, norms, layer, index, segment, row, position, line):
    """Norm and rotate the queries and keys of one row, and write its keys and values into the slab."""
    size, heads, key_heads = model.head_size, model.heads, model.key_heads
    half, width = model.rotary // 2, up(model.head_size, PANEL)
    cosine, sine = layer.cosine + 4 * position * half, layer.sine + 4 * position * half
    for head in range(heads + key_heads):
        at = line + 4 * head * size
        norm = norms[NORMS * index + (QUERY if head < heads else KEY)]
        if norm.kind != NO_NORM:
            normed(norm, at, size, at)
        arithmetic.rotated(at, half, cosine, sine)
    slot = segment.start + row
    for head in range(key_heads):
        plane = index * key_heads + head
        source = floats(line + 4 * (heads + head) * size)
        panel = slot // PANEL * size * PANEL + slot % PANEL
        target = floats(segment.keys + 4 * (plane * segment.capacity * size + panel))
        for k in range(size):
            put(target, k * PANEL, source[k])
        source = floats(line + 4 * (heads + key_heads + head) * size)
        for k in range(size):
            place = plane * segment.capacity * width + (k // PANEL * segment.capacity + slot) * PANEL + k % PANEL
            put(floats(segment.values), place, source[k])


@helper
def attended(model, layers, index, segments, parents, scratch, product, thread, threads, stride):
    """This thread's share of the attention of one layer: tiles of queries, dealt out in turn."""
    group = model.heads // model.key_heads
    queries = 0
    for s in range(len(segments)):
        queries += segments[s].rows * group * model.key_heads
    tile = max(min(MOST_ROWS, (queries + threads - 1) // threads), 1)
    item = 0
    for s in range(len(segments)):
        count = segments[s].rows * group
        for key_head in range(model.key_heads):
            for first in range(0, count, tile):
                if item % threads == thread:
                    attend(
                        product, model, layers[index], segments[s], parents, index, key_head, first, min(first + tile, count),
                        scratch.projected, stride, scratch.attended, scratch.attention + thread * scratch.attention_bytes,
                        scratch.longest,
                    )  # fmt: skip
                item += 1


@helper
def gated(model, rows, low, high, scratch, stride, inner_stride):
    """The activation of this thread's panels: they alternate, a panel of gates and the panel of what they gate."""
    for row in range(rows):
        for pair in range(low // 2, high // 2):
            gate = scratch.gated + 4 * (row * stride + 2 * pair * PANEL)
            out = scratch.inner + 4 * (row * inner_stride + pair * PANEL)
            if model.activation == SILU:
                arithmetic.silu_gated(gate, gate + 4 * PANEL, PANEL, out)
            else:
                arithmetic.gelu_gated(gate, gate + 4 * PANEL, PANEL, out)


@helper
def joined(norm, matrix, rows, tiles, scratch, width, stride, low, high, row_scratch, thread, threads, round_):
    """Add a block's output to the residual stream, behind a norm of its own where the model has one; the barrier's new round."""
    if norm.kind == NO_NORM:
        multiplied(matrix, rows, tiles, scratch.residual, stride, low, high, ADD)
    else:
        multiplied(matrix, rows, tiles, scratch.branch, stride, low, high, STORE)
        round_ += 1
        barrier(scratch.counter, round_, threads)
        for row in range(thread, rows, threads):
            normed(norm, scratch.branch + 4 * row * stride, width, row_scratch)
            arithmetic.added(scratch.residual + 4 * row * stride, width, row_scratch)
    round_ += 1
    barrier(scratch.counter, round_, threads)
    return round_


@cache
def step_part() -> int:
    """The address of one thread's part of a step: (thread, address of a CALL record)."""
    return _step_part(SOURCES).address


def _step_part(sources: str) -> Any:

    def step(thread, address):
        sources  # noqa: B018  (part of what the cache is keyed by)
        call = carray(pointer(address), 1, CALL)[0]
        model = carray(pointer(call.model), 1, MODEL)[0]
        layers = carray(pointer(call.layers), model.layers, LAYER_RECORD)
        norms = carray(pointer(call.norms), model.layers * NORMS + 2, NORM)
        matrices = carray(pointer(call.matrices), model.layers * MATRICES + 1, MATRIX)
        segments = carray(pointer(call.segments), call.segment_count, SEGMENT)
        tokens = carray(pointer(call.tokens), call.rows, np.int64)
        positions = carray(pointer(call.positions), call.rows, np.int64)
        parents = carray(pointer(call.parents), call.rows, np.int64)
        wanted = carray(pointer(call.wanted), call.wanted_count, np.int64)
        threads, scratch, product, logits, round_ = call.threads, call.scratch, call.product, call.logits, 0
        rows, width = len(tokens), model.hidden
        stride = up(width, PANEL)
        everything = wanted[:0]
        tiles = scratch.tiles + thread * scratch.tiles_bytes
        row_scratch = scratch.row + thread * scratch.row_bytes
        for row in range(thread, rows, threads):
            embedded(model, tokens[row], scratch.residual + 4 * row * stride)
        round_ += 1
        barrier(scratch.counter, round_, threads)
        for index in range(model.layers):
            layer, norm = layers[index], NORMS * index
            matrix = matrices[MATRICES * index + QKV]
            heads_stride = matrix.panels * PANEL
            tiled(norms[norm + BEFORE_ATTENTION], rows, scratch.residual, stride, everything, width, matrix.inputs, row_scratch, tiles)
            low, high = share(matrix.panels, thread, threads), share(matrix.panels, thread + 1, threads)
            multiplied(matrix, rows, tiles, scratch.projected, heads_stride, low, high, STORE)
            round_ += 1
            barrier(scratch.counter, round_, threads)
            for s in range(len(segments)):
                segment = segments[s]
                for row in range(segment.rows):
                    flat = segment.low + row
                    if flat % threads == thread:
                        line = scratch.projected + 4 * flat * heads_stride
                        placed(model, norms, layer, index, segment, row, positions[flat], line)
            round_ += 1
            barrier(scratch.counter, round_, threads)
            attended(model, layers, index, segments, parents, scratch, product, thread, threads, heads_stride)
            round_ += 1
            barrier(scratch.counter, round_, threads)
            matrix, held = matrices[MATRICES * index + OUT], model.heads * model.head_size
            tiled(norms[-1], rows, scratch.attended, held, everything, held, matrix.inputs, row_scratch, tiles)
            low, high = share(matrix.panels, thread, threads), share(matrix.panels, thread + 1, threads)
            round_ = joined(
                norms[norm + AFTER_ATTENTION], matrix, rows, tiles, scratch, width, stride, low, high, row_scratch, thread, threads, round_
            )
            matrix = matrices[MATRICES * index + GATE_UP]
            tiled(norms[norm + BEFORE_MLP], rows, scratch.residual, stride, everything, width, matrix.inputs, row_scratch, tiles)
            low, high = share(matrix.panels, thread, threads), share(matrix.panels, thread + 1, threads)
            gate_stride, inner_stride = matrix.panels * PANEL, matrix.panels // 2 * PANEL
            multiplied(matrix, rows, tiles, scratch.gated, gate_stride, low, high, STORE)
            gated(model, rows, low, high, scratch, gate_stride, inner_stride)
            round_ += 1
            barrier(scratch.counter, round_, threads)
            matrix = matrices[MATRICES * index + DOWN]
            tiled(norms[-1], rows, scratch.inner, inner_stride, everything, model.inner, matrix.inputs, row_scratch, tiles)
            low, high = share(matrix.panels, thread, threads), share(matrix.panels, thread + 1, threads)
            round_ = joined(
                norms[norm + AFTER_MLP], matrix, rows, tiles, scratch, width, stride, low, high, row_scratch, thread, threads, round_
            )
        if len(wanted) > 0:
            matrix = matrices[MATRICES * model.layers]
            tiled(norms[NORMS * model.layers], len(wanted), scratch.residual, stride, wanted, width, matrix.inputs, row_scratch, tiles)
            low, high = share(matrix.panels, thread, threads), share(matrix.panels, thread + 1, threads)
            step = matrix.panels * PANEL
            multiplied(matrix, len(wanted), tiles, logits, step, low, high, STORE)
            for row in range(len(wanted)):
                line = logits + 4 * (row * step + low * PANEL)
                if model.logit_scale != _f(1):
                    arithmetic.scaled(line, (high - low) * PANEL, model.logit_scale)
                if model.logit_cap > 0:
                    arithmetic.soft_capped(line, (high - low) * PANEL, model.logit_cap)
            round_ += 1
            barrier(scratch.counter, round_, threads)

    return numba.cfunc(PART, cache=True, nogil=True, error_model="numpy")(step)
