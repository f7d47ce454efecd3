"""MLP: gate, up and down products; and adding a block's output to the residual stream."""

from __future__ import annotations

from paceline.kernels.native import arithmetic
from paceline.kernels.native.layout import AFTER_MLP, BEFORE_MLP, DOWN, GATE_UP, MATRICES, NO_NORM, NORMS, SILU
from paceline.kernels.native.memory import barrier, helper
from paceline.kernels.native.rows import laid_out, multiplied, normed, share, up
from paceline.kernels.native.tiles import ADD, STORE
from paceline.kernels.native.vectors import PANEL


@helper
def gated(model, matrix, rows, scratch, thread, threads):
    """Apply the activation to this thread's panels, in which panels of the gate and of the up matrix alternate."""
    width = matrix.panels * PANEL
    low, high = share(matrix.panels, thread, threads, True), share(matrix.panels, thread + 1, threads, True)
    for row in range(rows):
        for pair in range(low // 2, high // 2):
            gate = scratch.gated + 4 * (row * width + 2 * pair * PANEL)
            out = scratch.inner + 4 * (row * width // 2 + pair * PANEL)
            if model.activation == SILU:
                arithmetic.silu_gated(gate, gate + 4 * PANEL, PANEL, out)
            else:
                arithmetic.gelu_gated(gate, gate + 4 * PANEL, PANEL, out)


@helper
def joined(norm, matrix, following, rows, scratch, width, thread, threads, round_):
    """Add a block's output to the residual stream, normalised first if the model does so. Returns the barrier's round."""
    stride = up(width, PANEL)
    if norm.kind == NO_NORM:
        multiplied(matrix, rows, scratch.residual, stride, scratch, thread, threads, ADD, following)
    else:
        multiplied(matrix, rows, scratch.branch, stride, scratch, thread, threads, STORE, following)
        round_ += 1
        barrier(scratch.counter, round_, threads)
        own = scratch.row + thread * scratch.row_bytes
        for row in range(thread, rows, threads):
            normed(norm, scratch.branch + 4 * row * stride, width, own)
            arithmetic.added(scratch.residual + 4 * row * stride, width, own)
    round_ += 1
    barrier(scratch.counter, round_, threads)
    return round_


@helper
def dense(model, index, norms, matrices, rows, everyone, scratch, thread, threads, round_):
    """Add one layer's MLP output to the first `rows` of the residual stream. everyone: empty, which means all rows. Returns the
    barrier's round."""
    matrix, norm, width = matrices[MATRICES * index + GATE_UP], NORMS * index, model.hidden
    stride = up(width, PANEL)
    round_ = laid_out(
        matrix, norms[norm + BEFORE_MLP], rows, scratch.residual, stride, everyone, width, scratch, thread, threads, round_
    )  # fmt: skip
    following = matrices[MATRICES * index + DOWN]
    multiplied(matrix, rows, scratch.gated, matrix.panels * PANEL, scratch, thread, threads, STORE, following)
    gated(model, matrix, rows, scratch, thread, threads)
    round_ += 1
    barrier(scratch.counter, round_, threads)
    inner_stride, matrix = matrix.panels // 2 * PANEL, matrices[MATRICES * index + DOWN]
    round_ = laid_out(
        matrix, norms[-1], rows, scratch.inner, inner_stride, everyone, model.inner, scratch, thread, threads, round_
    )  # fmt: skip
    following = matrices[MATRICES * (index + 1)]
    return joined(norms[norm + AFTER_MLP], matrix, following, rows, scratch, width, thread, threads, round_)
