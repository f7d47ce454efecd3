"""Packer: convert a matrix of floats to a format (`formats`), with its panels divided among threads.

A panel is widened to float32 in its thread's scratch and written from there, the scales of a group of inputs before its words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from paceline.kernels.native.formats import FORMATS, Format
from paceline.kernels.native.layout import PACKING
from paceline.kernels.native.memory import bits_of, carray, float_at, float_of, half_at, half_bits, helper, pointer
from paceline.kernels.native.vectors import PANEL

_SMALLEST = np.float32(2.0**-21)
"""Smallest scale. Integers are computed with the rounded scale, so it may be a subnormal float16; far below this, rounding the
scale would clip the largest integers."""
_ROUNDING = np.float32(1.5 * 2**23)
"""Adding and subtracting it rounds a small number to the nearest integer, ties to even."""
_NO_NUMBER, _NO_BRAIN = 0x7F800000, 0x7FC0
"""The bits of infinity: a magnitude with larger bits is NaN; and the bits of a bfloat16 NaN."""


@helper
def widened(one, panel, rows):
    """Write one panel as float32 [PANEL, padded inputs] to `rows`, padded with zeros."""
    wide, kind = carray(pointer(rows), PANEL * one.padded, np.float32), one.kind
    for lane in range(PANEL):
        begin, output = lane * one.padded, panel * PANEL + lane
        held = one.inputs if output < one.outputs else 0
        source = one.source + output * one.stride
        for at in range(held):
            wide[begin + at] = float_at(kind, source, at)
        for at in range(held, one.padded):
            wide[begin + at] = 0.0


@helper
def scale_of(numbers, size, highest, place):
    """Store at `place` the float16 scale that maps the largest magnitude of so many numbers to `highest`; returns it as float32.

    It is infinite if float16 has none large enough, and NaN if a number is NaN: both show in the model's output.
    """
    largest = np.int32(0)
    for at in range(size):
        # magnitudes are in the same order as their bits
        largest = max(largest, np.int32(bits_of(numbers[at]) & 0x7FFFFFFF))
    scale = float_of(largest) / highest
    if scale < _SMALLEST:
        scale = _SMALLEST
    carray(pointer(place), 1, np.uint16)[0] = half_bits(scale)
    return half_at(place)


@helper
def _single(number, scale):
    return np.int64(bits_of(number))


@helper
def _half(number, scale):
    return np.int64(half_bits(number))


@helper
def _brain(number, scale):
    """The bits of the nearest bfloat16, ties to even."""
    bits = np.int64(bits_of(number)) & 0xFFFFFFFF
    if bits & 0x7FFFFFFF > _NO_NUMBER:
        return _NO_BRAIN
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def _whole(form: Format) -> Callable[..., Any]:
    highest, excess, mask = np.float32(form.largest), form.excess, 2**form.bits - 1
    lowest = -highest - np.float32(form.bits == 4)

    @helper
    def whole(number, scale):
        level = (number / scale + _ROUNDING) - _ROUNDING
        return np.int64(min(max(level, lowest), highest)) + excess & mask

    return whole


def packer(name: str) -> Any:
    """One thread's part of packing in a format: (thread, address of a PACKING record)."""
    form = FORMATS[name]
    encoded = _whole(form) if form.scaled else {"fp32": _single, "fp16": _half}.get(name, _brain)
    together, bits, scaled, scale_bytes = form.together, form.bits, form.scaled, form.scale_bytes
    apart = form.multiplied
    word, highest = (np.uint16 if form.word_bytes == 2 else np.uint32), np.float32(form.largest)

    @helper
    def laid(numbers, size, scale, target, lane):
        """Write the words of one output. numbers: float32 [size]."""
        words = carray(pointer(target), size // together * PANEL, word)
        for at in range(size // together):
            value = 0
            for part in range(together):
                # consecutive nibbles go to different halves or bytes of the word: one shift brings those that are multiplied
                # together to the low ends of them
                shift = part % apart * (32 // apart) + part // apart * 4 if bits == 4 else part * bits
                value |= encoded(numbers[at * together + part], scale) << shift
            words[at * PANEL + lane] = value

    def packer(thread, address):
        one = carray(pointer(address), 1, PACKING)[0]
        rows, size = one.scratch + 4 * thread * PANEL * one.padded, one.group
        for panel in range(one.panels * thread // one.threads, one.panels * (thread + 1) // one.threads):
            widened(one, panel, rows)
            target = one.target + panel * one.panel_bytes
            for first in range(0, one.padded, size):
                for lane in range(PANEL):
                    numbers = carray(pointer(rows + 4 * (lane * one.padded + first)), size, np.float32)
                    scale = scale_of(numbers, size, highest, target + 2 * lane) if scaled else np.float32(1.0)
                    laid(numbers, size, scale, target + scale_bytes, lane)
                target += one.group_bytes

    return packer
