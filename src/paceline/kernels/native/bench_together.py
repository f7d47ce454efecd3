"""Kernel for `bench/together`: measures parallel scaling; each thread runs products of its own, then all meet at barriers."""

from __future__ import annotations

from paceline.kernels.native.layout import TOGETHER
from paceline.kernels.native.memory import barrier, carray, pointer
from paceline.kernels.native.products import call_product
from paceline.kernels.native.tiles import STORE
from paceline.kernels.native.vectors import PANEL


def together(thread, address):
    """One thread's part of the measurement. address: of a TOGETHER record (`layout`)."""
    one = carray(pointer(address), 1, TOGETHER)[0]
    stride = 4 * one.panels * PANEL
    outputs = one.outputs + thread * one.rows * stride
    for _ in range(one.turns):
        call_product(
            one.product, one.rows, one.activations, one.weights, one.panel_bytes, one.inputs, outputs, stride, 0, one.panels,
            STORE,
        )  # fmt: skip
    for meeting in range(one.meetings):
        barrier(one.counter, meeting + 1, one.threads)
