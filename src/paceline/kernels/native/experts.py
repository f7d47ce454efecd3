"""Experts: a mixture-of-experts MLP, in which each row uses the experts that the router finds likeliest.

Rows are gathered by expert, so that the weights of an expert are read once for all rows that chose it. An expert's output for a
row depends on that row alone, and a row adds up its experts in index order, whatever rows are beside it.

Source: Shazeer et al. (arXiv:1701.06538), section 2; as in Mixtral (arXiv:2401.04088), Qwen 3 (arXiv:2505.09388) and OLMoE
(arXiv:2409.02060).
"""

from __future__ import annotations

import numpy as np

from paceline.kernels.native import arithmetic
from paceline.kernels.native.layout import BEFORE_MLP, GATE_UP, MATRICES, NORMS
from paceline.kernels.native.memory import barrier, carray, floats, helper, pointer, put
from paceline.kernels.native.mlp import gated
from paceline.kernels.native.rows import laid_out, multiplied, share, up
from paceline.kernels.native.tiles import STORE
from paceline.kernels.native.vectors import PANEL

_f = np.float32
_TAKEN = _f(-1)
"""In place of a router probability, which is never negative: already chosen."""


@helper
def _routed(model, row, width, scratch):
    """Write the experts of one row, the likeliest first, and their weights. In a tie, the lower index comes first."""
    line = scratch.routed + 4 * row * width
    whole = arithmetic.soft_max(line, model.experts, _f(1))
    chances, kept = floats(line), _f(0)
    chosen = carray(pointer(scratch.chosen), (row + 1) * model.chosen, np.int64)
    weights = floats(scratch.weights)
    for place in range(row * model.chosen, (row + 1) * model.chosen):
        best, most = place - row * model.chosen, _TAKEN
        # with NaN among them the result is NaN, and any experts will do, but each only once
        if whole == whole:
            for expert in range(model.experts):
                if chances[expert] > most:
                    best, most = expert, chances[expert]
        chosen[place] = best
        put(weights, place, chances[best])
        kept += chances[best]
        put(chances, best, _TAKEN)
    if model.whole_weights > 0 and whole == whole:
        whole = kept
    for place in range(row * model.chosen, (row + 1) * model.chosen):
        put(weights, place, weights[place] / whole)


@helper
def _gathered(model, rows, scratch):
    """Write the rows of every expert, in order, and their indices in `chosen`."""
    count = rows * model.chosen
    chosen = carray(pointer(scratch.chosen), count, np.int64)
    begins = carray(pointer(scratch.begins), model.experts + 2, np.int64)
    members, places = carray(pointer(scratch.members), count, np.int64), carray(pointer(scratch.places), count, np.int64)
    for expert in range(model.experts + 2):
        begins[expert] = 0
    for at in range(count):
        begins[chosen[at] + 2] += 1
    for expert in range(1, model.experts + 2):
        begins[expert] += begins[expert - 1]
    for at in range(count):
        expert = chosen[at]
        members[begins[expert + 1]], places[begins[expert + 1]] = at // model.chosen, at
        begins[expert + 1] += 1


@helper
def mixture(model, index, norms, matrices, experts, rows, everyone, scratch, thread, threads, round_):
    """Add the experts' output of one layer to the first `rows` of the residual stream. experts: two matrices per expert, of all
    layers. everyone: empty, which means all rows. Returns the barrier's round."""
    norm, unnormed = norms[NORMS * index + BEFORE_MLP], norms[-1]
    router, width, stride = matrices[MATRICES * index + GATE_UP], model.hidden, up(model.hidden, PANEL)
    round_ = laid_out(router, norm, rows, scratch.residual, stride, everyone, width, scratch, thread, threads, round_)
    first = experts[2 * model.experts * index]
    multiplied(router, rows, scratch.routed, router.panels * PANEL, scratch, thread, threads, STORE, first)
    round_ += 1
    barrier(scratch.counter, round_, threads)
    for row in range(thread, rows, threads):
        _routed(model, row, router.panels * PANEL, scratch)
    round_ += 1
    barrier(scratch.counter, round_, threads)
    if thread == 0:
        _gathered(model, rows, scratch)
    panels = experts[2 * model.experts * index + 1].panels
    low, high = share(panels, thread, threads, False), share(panels, thread + 1, threads, False)
    for row in range(rows):
        arithmetic.filled(scratch.mixture + 4 * row * stride, low * PANEL, high * PANEL, _f(0))
    round_ += 1
    barrier(scratch.counter, round_, threads)
    begins = carray(pointer(scratch.begins), model.experts + 2, np.int64)
    members = carray(pointer(scratch.members), rows * model.chosen, np.int64)
    places = carray(pointer(scratch.places), rows * model.chosen, np.int64)
    weights = floats(scratch.weights)
    for expert in range(model.experts):
        begin, end = begins[expert], begins[expert + 1]
        if begin == end:
            continue
        gates, down = experts[2 * (model.experts * index + expert)], experts[2 * (model.experts * index + expert) + 1]
        count = end - begin
        round_ = laid_out(
            gates, norm, count, scratch.residual, stride, members[begin:end], width, scratch, thread, threads, round_
        )  # fmt: skip
        multiplied(gates, count, scratch.gated, gates.panels * PANEL, scratch, thread, threads, STORE, down)
        gated(model, gates, count, scratch, thread, threads)
        round_ += 1
        barrier(scratch.counter, round_, threads)
        inner_stride = gates.panels // 2 * PANEL
        round_ = laid_out(
            down, unnormed, count, scratch.inner, inner_stride, everyone, model.inner, scratch, thread, threads, round_
        )  # fmt: skip
        multiplied(down, count, scratch.branch, stride, scratch, thread, threads, STORE, gates)
        for at in range(begin, end):
            source = scratch.branch + 4 * ((at - begin) * stride + low * PANEL)
            target = scratch.mixture + 4 * (members[at] * stride + low * PANEL)
            arithmetic.weighed(target, (high - low) * PANEL, source, weights[places[at]])
        # the next expert overwrites the buffers that are read here
        round_ += 1
        barrier(scratch.counter, round_, threads)
    for row in range(rows):
        begin = 4 * (row * stride + low * PANEL)
        arithmetic.added(scratch.residual + begin, (high - low) * PANEL, scratch.mixture + begin)
    round_ += 1
    barrier(scratch.counter, round_, threads)
    return round_
