"""Decoder: one whole step of a Llama-form model in one call, on any number of threads.

`step` is the sequence of operations: embed, then per layer norm, queries keys and values, rotation, attention, output, norm,
gated MLP, and at the end norm and head for the wanted rows. Threads divide panels of outputs, rows or heads, never a sum, and
meet at barriers in between; so the number of threads changes no bit either. In this diagram, each horizontal line is a barrier:

                   work of a thread             writes
    embed          rows                         residual [T, hidden]
    ------------------------------------------------------------------------- per layer
    norm, lay out  all rows, or tiles (1)       [inputs, rows of a tile]: a row becomes a column of a tile
    q, k, v        panels of outputs            projected [T, panels]
    ------------------------------------------------------------------------- (2)
    norm, rotate   key heads of rows            queries in place; keys and values into the slab
    ------------------------------------------------------------------------- (2)
    attend (3)     runs of tiles of queries     attended [T, heads]
    -------------------------------------------------------------------------
    out            panels                       added to the residual stream
    -------------------------------------------------------------------------
    norm, gate, up pairs of panels              inner [T, inner]: activation(gate) * up
    -------------------------------------------------------------------------
    down           panels                       added to the residual stream
    ------------------------------------------------------------------------- at the end
    norm, head     panels                       logits, of wanted rows only

(1) The rows of a single tile are laid out by every thread for itself; with several tiles, threads divide them, which takes one
more barrier. The same holds before every other product.
(2) No barrier if each thread continues with its own key heads: outputs are ordered by key head (its queries, its key, its value).
(3) From here on the last layer computes only wanted rows: of the others, only keys and values are read later.

A norm after a block, or one over all heads together, takes one more barrier. Mixtures of experts (`experts`) replace the lines
from "norm, gate, up" to "down".
"""

from __future__ import annotations

import numpy as np

from paceline.kernels.native import arithmetic
from paceline.kernels.native.attention import attend
from paceline.kernels.native.experts import mixture
from paceline.kernels.native.layout import (
    AFTER_ATTENTION,
    BEFORE_ATTENTION,
    CALL,
    GATE_UP,
    KEY,
    LAYER_RECORD,
    MATRICES,
    MATRIX,
    MODEL,
    NO_NORM,
    NORM,
    NORMS,
    OUT,
    QKV,
    QUERY,
    SEGMENT,
    WIDE_RMS,
)
from paceline.kernels.native.memory import barrier, carray, float_at, floats, helper, pointer, put, put_half
from paceline.kernels.native.mlp import dense, joined
from paceline.kernels.native.rows import laid_out, multiplied, normed, share, up
from paceline.kernels.native.tiles import MOST_ROWS, STORE
from paceline.kernels.native.vectors import PANEL

_f = np.float32
_LARGEST = np.finfo(np.float32).max


@helper
def embedded(model, token, out):
    row, width = floats(out), model.hidden
    for k in range(width):
        put(row, k, float_at(model.embedding_kind, model.embedding, token * width + k) * model.embedding_scale)


@helper
def placed(model, norms, layer, index, segment, row, position, line, low, high):
    """For one row and the key heads [low, high): norm and rotate queries and keys, and write keys and values to the slab."""
    size, key_heads = model.head_size, model.key_heads
    half, width, group = model.rotary // 2, up(model.head_size, PANEL), model.heads // key_heads
    cosine, sine = layer.cosine + 4 * position * half, layer.sine + 4 * position * half
    slot, kv_bytes = segment.start + segment.first + row, model.kv_bytes
    for head in range(low, high):
        queries = line + 4 * head * (group + 2) * size
        key = queries + 4 * group * size
        for query in range(group):
            _turned(norms[NORMS * index + QUERY], queries + 4 * query * size, size, half, cosine, sine)
        if layer.growth != 0:
            arithmetic.scaled(queries, group * size, floats(layer.growth)[position])
        _turned(norms[NORMS * index + KEY], key, size, half, cosine, sine)
        plane = index * key_heads + head
        source = floats(key)
        place = plane * segment.capacity * size + slot // PANEL * size * PANEL + slot % PANEL
        for k in range(size):
            stored(segment.keys, place + k * PANEL, source[k], kv_bytes)
        source, whole = floats(key + 4 * size), True
        for k in range(size):
            number = source[k]
            there = number == number
            whole = whole and there
            at = plane * segment.capacity * width + (k // PANEL * segment.capacity + slot) * PANEL + k % PANEL
            stored(segment.values, at, number if there else _f(0), kv_bytes)
        if not whole:
            # rows that see this token get NaN from its key; other rows multiply its value by zero, so NaN was replaced by 0
            stored(segment.keys, place, _f(np.nan), kv_bytes)


@helper
def _by_whole_heads(model, threads):
    """Whether each thread computes queries, keys and values of whole key heads, the same ones that it places in the slab."""
    return model.key_heads % threads == 0 and (model.heads + 2 * model.key_heads) * model.head_size % (threads * PANEL) == 0


@helper
def _turned(norm, head, size, half, cosine, sine):
    if norm.kind != NO_NORM and norm.kind != WIDE_RMS:
        normed(norm, head, size, head)
    arithmetic.rotated(head, half, cosine, sine)


@helper
def _normed_together(model, norms, index, line):
    """Norm all queries of a row together, and all its keys together. OLMo 2 (arXiv:2501.00656), section 2."""
    queries = (model.heads // model.key_heads) * model.head_size
    arithmetic.rms_norm_in_parts(
        line, model.key_heads, queries, queries + 2 * model.head_size, norms[NORMS * index + QUERY].weight,
        norms[NORMS * index + QUERY].epsilon,
    )  # fmt: skip
    arithmetic.rms_norm_in_parts(
        line + 4 * queries, model.key_heads, model.head_size, queries + 2 * model.head_size, norms[NORMS * index + KEY].weight,
        norms[NORMS * index + KEY].epsilon,
    )  # fmt: skip


@helper
def stored(numbers, place, value, kv_bytes):
    """Store a number of a key or value, clamped to the largest finite one, since infinity times zero is NaN. numbers: address of
    the first."""
    if kv_bytes == 2:
        put_half(numbers + 2 * place, value)
    else:
        put(floats(numbers), place, _LARGEST if value > _LARGEST else -_LARGEST if value < -_LARGEST else value)


@helper
def _before(chosen, segment):
    """Number of a segment's rows before its first wanted row."""
    if len(chosen) == 0:
        return 0
    for row in chosen:
        if row >= segment.low:
            return min(row - segment.low, segment.rows)
    return segment.rows


@helper
def attended(model, layers, index, segments, parents, chosen, scratch, product, thread, threads, stride):
    """This thread's share of the attention of one layer: tiles of queries, in runs of about equal work.

    The runs are contiguous, so that tiles of one key head, which read the same keys and values, mostly go to one thread.
    chosen: int64, the wanted rows, in order; empty: all.
    """
    group = model.heads // model.key_heads
    queries = 0
    for s in range(len(segments)):
        queries += (segments[s].rows - _before(chosen, segments[s])) * group * model.key_heads
    tile = max(min(MOST_ROWS, (queries + threads - 1) // threads), 1)
    whole = 0
    for s in range(len(segments)):
        keys = segments[s].start + segments[s].first + segments[s].rows
        whole += ((segments[s].rows - _before(chosen, segments[s])) * group + tile - 1) // tile * keys
    whole *= model.key_heads
    done = 0
    for s in range(len(segments)):
        begin, keys = _before(chosen, segments[s]) * group, segments[s].start + segments[s].first + segments[s].rows
        count = segments[s].rows * group - begin
        parts = (count + tile - 1) // tile
        for key_head in range(model.key_heads):
            for part in range(parts):
                if done * threads // whole == thread:
                    attend(
                        product, model, layers[index], segments[s], parents, index, key_head, begin + count * part // parts,
                        begin + count * (part + 1) // parts, scratch.projected, stride, scratch.attended,
                        scratch.attention + thread * scratch.attention_bytes, scratch.longest,
                    )  # fmt: skip
                done += keys


@helper
def projected(model, layers, index, norms, matrices, segments, positions, call, thread, round_):
    """Compute queries, keys and values of one layer, and store them. Returns the barrier's round."""
    threads, scratch, rows = call.threads, call.scratch, call.rows
    matrix, width = matrices[MATRICES * index + QKV], matrices[MATRICES * index + QKV].panels * PANEL
    following = matrices[MATRICES * index + OUT]
    multiplied(matrix, rows, scratch.projected, width, scratch, thread, threads, STORE, following)
    wide = norms[NORMS * index + QUERY].kind == WIDE_RMS
    if wide or not _by_whole_heads(model, threads):
        round_ += 1
        barrier(scratch.counter, round_, threads)
    if wide:
        for row in range(thread, rows, threads):
            _normed_together(model, norms, index, scratch.projected + 4 * row * width)
        round_ += 1
        barrier(scratch.counter, round_, threads)
    # divided by key head: keys of neighbouring rows share cache lines, and threads writing to one line would slow each other
    low, high = model.key_heads * rows * thread // threads, model.key_heads * rows * (thread + 1) // threads
    for s in range(len(segments)):
        segment = segments[s]
        for row in range(segment.rows):
            flat = segment.low + row
            first, last = (low - flat + rows - 1) // rows, (high - flat + rows - 1) // rows
            line = scratch.projected + 4 * flat * width
            placed(model, norms, layers[index], index, segment, row, positions[flat], line, first, last)
    if len(segments) > 1 or model.key_heads % threads > 0:
        # otherwise each thread attends with exactly the heads that it has placed
        round_ += 1
        barrier(scratch.counter, round_, threads)
    return round_


@helper
def mixed(model, layers, index, norms, matrices, segments, parents, chosen, rows, call, thread, round_):
    """The attention of one layer, up to the residual stream. chosen: as in `attended`; afterwards these rows are the first `rows`
    of the stream. Returns the barrier's round."""
    threads, scratch, norm = call.threads, call.scratch, NORMS * index
    width = matrices[MATRICES * index + QKV].panels * PANEL
    attended(model, layers, index, segments, parents, chosen, scratch, call.product, thread, threads, width)
    round_ += 1
    barrier(scratch.counter, round_, threads)
    matrix, held = matrices[MATRICES * index + OUT], model.heads * model.head_size
    round_ = laid_out(
        matrix, norms[-1], rows, scratch.attended, held, chosen, held, scratch, thread, threads, round_
    )  # fmt: skip
    _moved_up(matrix, chosen, scratch.residual, up(model.hidden, PANEL), thread, threads)
    following = matrices[MATRICES * index + GATE_UP]
    return joined(norms[norm + AFTER_ATTENTION], matrix, following, rows, scratch, model.hidden, thread, threads, round_)


@helper
def _moved_up(matrix, chosen, residual, stride, thread, threads):
    """Move the wanted rows to the front; of each row, a thread moves the part that it will add to."""
    low, high = share(matrix.panels, thread, threads, matrix.paired), share(matrix.panels, thread + 1, threads, matrix.paired)
    for row in range(len(chosen)):
        source, target = floats(residual + 4 * stride * chosen[row]), floats(residual + 4 * stride * row)
        for k in range(low * PANEL, high * PANEL):
            put(target, k, source[k])


@helper
def _in_order(rows):
    ordered = True
    for at in range(1, len(rows)):
        ordered = ordered and rows[at - 1] < rows[at]
    return ordered


@helper
def tapped(model, call, index, wanted, count, thread):
    """Copy the input of a layer, or the last one's output, for the wanted rows, if it is tapped. wanted: int64, indices of these
    rows; empty: the first `count`."""
    if call.taps == 0:
        return
    address = carray(pointer(call.taps), model.layers + 1, np.int64)[index]
    if address == 0:
        return
    for row in range(thread, count, call.threads):
        source = floats(call.scratch.residual + 4 * (row if len(wanted) == 0 else wanted[row]) * up(model.hidden, PANEL))
        target = floats(address + 4 * row * model.hidden)
        for k in range(model.hidden):
            put(target, k, source[k] * model.residual_scale)


@helper
def headed(model, norm, matrix, following, wanted, count, call, thread, round_):
    """The last norm and the head, for the wanted rows, given as in `tapped`. following: the first matrix of the next step, to
    prefetch."""
    threads, scratch, width = call.threads, call.scratch, matrix.panels * PANEL
    stride = up(model.hidden, PANEL)
    round_ = laid_out(
        matrix, norm, count, scratch.residual, stride, wanted, model.hidden, scratch, thread, threads, round_
    )  # fmt: skip
    multiplied(matrix, count, call.logits, width, scratch, thread, threads, STORE, following)
    low, high = share(matrix.panels, thread, threads, False), share(matrix.panels, thread + 1, threads, False)
    for row in range(count):
        line = call.logits + 4 * (row * width + low * PANEL)
        if model.logit_cap > 0:
            arithmetic.soft_capped(line, (high - low) * PANEL, model.logit_cap)
    barrier(scratch.counter, round_ + 1, threads)


def step(thread, address):
    """One thread's part of a step. address: of a CALL record."""
    call = carray(pointer(address), 1, CALL)[0]
    model = carray(pointer(call.model), 1, MODEL)[0]
    layers = carray(pointer(call.layers), model.layers, LAYER_RECORD)
    norms = carray(pointer(call.norms), model.layers * NORMS + 2, NORM)
    matrices = carray(pointer(call.matrices), model.layers * MATRICES + 1, MATRIX)
    experts = carray(pointer(call.experts), 2 * model.layers * model.experts, MATRIX)
    segments = carray(pointer(call.segments), call.segment_count, SEGMENT)
    tokens = carray(pointer(call.tokens), call.rows, np.int64)
    positions = carray(pointer(call.positions), call.rows, np.int64)
    parents = carray(pointer(call.parents), call.rows, np.int64)
    wanted = carray(pointer(call.wanted), call.wanted_count, np.int64)
    threads, scratch, round_ = call.threads, call.scratch, 0
    rows, width, all_rows = len(tokens), model.hidden, wanted[:0]
    stride = up(width, PANEL)
    ordered = _in_order(wanted)
    chosen = all_rows if ordered and len(wanted) == rows else wanted
    for row in range(thread, rows, threads):
        embedded(model, tokens[row], scratch.residual + 4 * row * stride)
    round_ += 1
    barrier(scratch.counter, round_, threads)
    for index in range(model.layers):
        tapped(model, call, index, chosen, len(wanted), thread)
        norm = NORMS * index
        round_ = laid_out(
            matrices[MATRICES * index + QKV], norms[norm + BEFORE_ATTENTION], rows, scratch.residual, stride, all_rows, width,
            scratch, thread, threads, round_,
        )  # fmt: skip
        round_ = projected(model, layers, index, norms, matrices, segments, positions, call, thread, round_)
        taken = all_rows
        if index == model.layers - 1 and ordered:
            # of the last layer, only keys and values of unwanted rows are read later
            if len(wanted) == 0:
                return
            taken, chosen, rows = chosen, all_rows, len(wanted)
        round_ = mixed(model, layers, index, norms, matrices, segments, parents, taken, rows, call, thread, round_)
        if model.experts > 0:
            round_ = mixture(model, index, norms, matrices, experts, rows, all_rows, scratch, thread, threads, round_)
        else:
            round_ = dense(model, index, norms, matrices, rows, all_rows, scratch, thread, threads, round_)
    tapped(model, call, model.layers, chosen, len(wanted), thread)
    matrix = matrices[MATRICES * model.layers]
    headed(model, norms[NORMS * model.layers], matrix, matrices[QKV], chosen, len(wanted), call, thread, round_)
