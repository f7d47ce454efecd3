"""The memory that compiled code works on: the arrays of a step, and the scratch of a forward pass.

Both keep their addresses from step to step and grow to the largest step seen: asking numpy for an array's address takes longer
than filling an array at a known address.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Many
from typing import Any

import numpy as np

from paceline.kernels.native import layout
from paceline.kernels.native.formats import FORMATS, padded
from paceline.kernels.native.layout import WORD, word_of, words
from paceline.kernels.native.needs import highest_tile, lines_bytes, scratch_bytes
from paceline.kernels.native.vectors import PANEL
from paceline.models.packing import Weights

Record = tuple[int, int, int, int, int, int, int, int, int]
"""A SEGMENT: low, rows, start, chain, addresses of keys and values, capacity, nodes fed before, index of its first parent."""
_ROWS, _WANTED, _SEGMENTS = (word_of(layout.CALL, name) for name in ("rows", "wanted_count", "segment_count"))
_SEGMENT_WORDS = layout.SEGMENT.itemsize // 8


class StepArrays:
    """The arrays of a step. calls: the one CALL record that points to them."""

    def __init__(self, calls: np.ndarray) -> None:
        self._call, self._words, self._rows = calls[0], words(calls), 0

    def fill(
        self,
        tokens: Many[int],
        positions: Many[int],
        parents: Many[int],
        wanted: Many[int],
        segments: Many[Record],
    ) -> None:
        """Lay out a step: T tokens, positions and parents, the W rows whose logits are wanted, S segments; W and S up to T."""
        self.reserve(len(tokens))
        numbers, size, call = self._numbers, self._rows, self._words
        fields = [field for segment in segments for field in segment]
        for place, values in enumerate((tokens, positions, parents, wanted, fields)):
            numbers[place * size : place * size + len(values)] = array(WORD, values)
        call[_ROWS], call[_WANTED], call[_SEGMENTS] = len(tokens), len(wanted), len(segments)

    def reserve(self, rows: int) -> None:
        """Make room for so many rows, as a draft may reach."""
        if rows <= self._rows:
            return
        rows = max(rows, 2 * self._rows, 64)
        # 0 until all arrays exist: after an interrupt, the next call starts over
        self._rows = 0
        whole = np.zeros((4 + _SEGMENT_WORDS) * rows, np.int64)
        self._numbers: memoryview[int] = whole.data
        for place, name in enumerate(("tokens", "positions", "parents", "wanted", "segments")):
            self._call[name] = whole.ctypes.data + 8 * place * rows
        self._rows = rows


_TALLEST = max(map(highest_tile, FORMATS.values()))
"""Rows of the tallest tile of any format."""
_LINE = 16
"""Float32 numbers per cache line: aligned loads need line starts, which numpy does not guarantee."""


class Scratch:
    """The intermediate results of a forward pass."""

    def __init__(self, weights: Weights) -> None:
        form = weights.form
        width, experts = padded(form.hidden, PANEL), form.experts
        chosen = experts.chosen if experts else 0
        self._per_row = {
            "residual": width,
            "gated": max(weights.gated_width, weights.widths[layout.QKV] + form.heads * form.head_size),
            "inner": weights.gated_width // 2,
            "branch": width * (weights.joins_behind_norms or experts is not None),
            "mixture": width * (experts is not None),
            "routed": weights.widths[layout.GATE_UP] * (experts is not None),
            "weights": chosen,
            # numbers of eight bytes
            "chosen": 2 * chosen,
            "members": 2 * chosen,
            "places": 2 * chosen,
        }
        self._begins = 2 * (experts.count + 2) if experts else 0
        self._projected = weights.widths[layout.QKV]
        self._widest, self._row_bytes = weights.widest_input, weights.widest_row_bytes
        self._head_size = form.head_size
        self._held: dict[str, np.ndarray] = {}
        self._counter = np.zeros(8, np.int64)
        self._counts = words(self._counter)
        self._threads = self._rows = self._longest = 0

    def reserve(self, call: Any, threads: int, rows: int, longest: int) -> None:
        """Point a CALL record at room for a step. longest: slots of its longest sequence."""
        self._counts[0] = self._counts[1] = 0
        if threads <= self._threads and rows <= self._rows and longest <= self._longest:
            return
        record, threads, rows = call["scratch"], max(self._threads, threads), max(self._rows, rows)
        more = longest > self._longest
        longest = padded(max(longest, 2 * self._longest, 256), PANEL) if more else self._longest
        # 0 until everything is allocated: after an interrupt or a lack of memory, the next call starts over
        self._threads = self._rows = self._longest = 0
        for name, width in self._per_row.items():
            self._point(record, name, rows * width)
        self._point(record, "begins", self._begins)
        # attention has finished with these before the MLP begins
        record["projected"] = record["gated"]
        record["attended"] = record["projected"] + 4 * rows * self._projected
        record["counter"], record["longest"] = self._counter.ctypes.data, longest
        each = {
            # with more rows than a tile has, threads share the tiles
            "tiles": min(rows, _TALLEST) * self._row_bytes,
            "row": lines_bytes(self._widest, rows),
            "attention": scratch_bytes(self._head_size, rows, longest),
        }
        for name, size in each.items():
            # each thread's part on its own cache lines
            size = padded(size, 128) + 128
            record[name + "_bytes"] = size
            whole = max(threads * size, padded(rows * self._row_bytes, 128)) if name == "tiles" else threads * size
            self._point(record, name, whole // 4)
        self._threads, self._rows, self._longest = threads, rows, longest

    def _point(self, record: Any, name: str, count: int) -> None:
        # padding between rows is read too, and must be finite; zero pages that were never written take no memory
        numbers = self._held[name] = np.zeros(count + _LINE, np.float32)
        record[name] = numbers.ctypes.data + -numbers.ctypes.data % (4 * _LINE)
