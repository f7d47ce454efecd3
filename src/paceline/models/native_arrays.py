"""What compiled code reads and writes on its way: the arrays of a step, and the scratch of a forward.

Both stay where they are from step to step and grow to the largest seen: asking numpy for the address of an array takes longer
than filling one that lies at a known place.
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
"""A SEGMENT: low, rows, start, chain, addresses of keys and values, capacity, nodes fed before, the parents' beginning."""
_ROWS, _WANTED, _SEGMENTS = (word_of(layout.CALL, name) for name in ("rows", "wanted_count", "segment_count"))
_SEGMENT_WORDS = layout.SEGMENT.itemsize // 8


class StepArrays:
    """calls: the one CALL record that points to them."""

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
        """Lay a step out: T tokens, positions and parents, the rows whose logits are wanted, S segments; S and W up to T."""
        self.reserve(len(tokens))
        numbers, size, call = self._numbers, self._rows, self._words
        fields = [field for segment in segments for field in segment]
        for place, values in enumerate((tokens, positions, parents, wanted, fields)):
            numbers[place * size : place * size + len(values)] = array(WORD, values)
        call[_ROWS], call[_WANTED], call[_SEGMENTS] = len(tokens), len(wanted), len(segments)

    def reserve(self, rows: int) -> None:
        """Have room for so many rows, which a draft may come to."""
        if rows <= self._rows:
            return
        rows = max(rows, 2 * self._rows, 64)
        # none until all are there: whoever is interrupted in between begins anew
        self._rows = 0
        whole = np.zeros((4 + _SEGMENT_WORDS) * rows, np.int64)
        self._numbers: memoryview[int] = whole.data
        for place, name in enumerate(("tokens", "positions", "parents", "wanted", "segments")):
            self._call[name] = whole.ctypes.data + 8 * place * rows
        self._rows = rows


_TALLEST = max(map(highest_tile, FORMATS.values()))
"""Rows of the tallest tile of any format."""
_LINE = 16
"""Numbers to a cache line, at which aligned loads begin, and which numpy does not promise."""


class Scratch:
    """What a forward writes on its way."""

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
            # of eight bytes
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
        # none until all of it is there: whoever is interrupted in between, or has no more memory, begins anew
        self._threads = self._rows = self._longest = 0
        for name, width in self._per_row.items():
            self._point(record, name, rows * width)
        self._point(record, "begins", self._begins)
        # attention is through with these before the MLP begins
        record["projected"] = record["gated"]
        record["attended"] = record["projected"] + 4 * rows * self._projected
        record["counter"], record["longest"] = self._counter.ctypes.data, longest
        each = {
            # of more rows than a tile has the tiles are everybody's
            "tiles": min(rows, _TALLEST) * self._row_bytes,
            "row": lines_bytes(self._widest, rows),
            "attention": scratch_bytes(self._head_size, rows, longest),
        }
        for name, size in each.items():
            # each thread's part on cache lines of its own
            size = padded(size, 128) + 128
            record[name + "_bytes"] = size
            whole = max(threads * size, padded(rows * self._row_bytes, 128)) if name == "tiles" else threads * size
            self._point(record, name, whole // 4)
        self._threads, self._rows, self._longest = threads, rows, longest

    def _point(self, record: Any, name: str, count: int) -> None:
        # padding between rows is read too, and must be numbers; pages that nobody has written to are zero and take no memory
        numbers = self._held[name] = np.zeros(count + _LINE, np.float32)
        record[name] = numbers.ctypes.data + -numbers.ctypes.data % (4 * _LINE)
