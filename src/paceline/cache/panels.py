"""Panels: dense slabs per sequence, laid out so that compiled attention reads keys and values as it reads packed weights.

Keys are [layers, K, capacity / panel, D, panel] (panel slots side by side), values [layers, K, padded D / panel, capacity,
panel]; float32 or float16. Slots [0, length) hold the committed prefix in order, slots after it are scratch for the staged rows.
Unwritten slots are zero, never garbage: a probability of zero times whatever lies there must be zero. All filling and moving is
numpy's, on one thread: after a parallel operation torch's threads spin for milliseconds on the cores that the kernels need.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from math import prod

import numpy as np

from paceline.cache.base import Branching, KVCache, check_starts, kept_slots
from paceline.cache.slabs import AHEAD, capacity_for
from paceline.step import Step, Verdict

_LINE_BYTES = 64
_FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True)
class Shape:
    """layers: L. heads: key heads K. size: of a head, D. panel: slots or numbers side by side. dtype: float32 or float16."""

    layers: int
    heads: int
    size: int
    panel: int
    dtype: np.dtype = _FLOAT32

    def slab(self, capacity: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Keys and values of so many slots, all zero, and the address of the keys; the values lie right behind them."""
        keys = self.layers, self.heads, capacity // self.panel, self.size, self.panel
        values = self.layers, self.heads, -(-self.size // self.panel), capacity, self.panel
        # pages that nobody has written to are zero and take no time; aligned loads need cache lines, which numpy does not promise
        apart, line = prod(keys), _LINE_BYTES // self.dtype.itemsize
        numbers = np.zeros(apart + prod(values) + line, self.dtype)
        start = -(numbers.ctypes.data // self.dtype.itemsize) % line
        numbers = numbers[start : start + apart + prod(values)]
        return numbers[:apart].reshape(keys), numbers[apart:].reshape(values), numbers.ctypes.data


class Slab:
    """One sequence's keys and values; `capacity` slots, the first `length` committed.

    place: for compiled code, the addresses of keys and values, and the capacity. nbytes: of both.
    """

    def __init__(self, shape: Shape, slots: int = 0) -> None:
        self.length, self.capacity = 0, capacity_for(slots)
        self.keys, self.values, address = shape.slab(self.capacity)
        self.place = address, address + self.keys.nbytes, self.capacity
        self.nbytes = self.keys.nbytes + self.values.nbytes

    def copied(self, shape: Shape, length: int, slots: int) -> Slab:
        """Another slab that holds the first `length` tokens, with room for `slots`."""
        copy, panels = Slab(shape, slots), -(-length // shape.panel)
        copy.length = length
        copy.keys[:, :, :panels] = self.keys[:, :, :panels]
        copy.values[:, :, :, :length] = self.values[:, :, :, :length]
        return copy

    def grow(self, shape: Shape, slots: int) -> None:
        """Make room for `slots`, by doubling; what is committed is kept."""
        larger = self.copied(shape, self.length, slots)
        self.keys, self.values, self.capacity, self.place = larger.keys, larger.values, larger.capacity, larger.place
        self.nbytes = larger.nbytes

    def move(self, shape: Shape, slots: list[int], to: int) -> None:
        """Copy the rows of `slots` to the slots from `to` on."""
        source, target = np.array(slots), np.arange(to, to + len(slots))
        keys, values, panel = self.keys, self.values, shape.panel
        values[:, :, :, target] = values[:, :, :, source]
        keys[:, :, target // panel, :, target % panel] = keys[:, :, source // panel, :, source % panel]


class PanelCache(KVCache):
    """Branching: TREE. Commit moves the accepted nodes' slots together; keys carry their rotation, so moving is exact."""

    branching = Branching.TREE

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._slabs: dict[int, Slab] = {}
        self._staged: Step | None = None

    def length(self, key: int) -> int:
        slab = self._slabs.get(key)
        return slab.length if slab else 0

    def reserve(self, key: int, slots: int) -> Slab:
        """The slab of a sequence, with room for `slots`."""
        slab = self._slabs.get(key)
        if slab is None:
            slab = self._slabs[key] = Slab(self.shape, slots)
        elif slots > slab.capacity:
            slab.grow(self.shape, slots)
        return slab

    def stage(self, step: Step) -> None:
        check_starts(step, self)
        for segment in step.segments:
            # room for the whole prompt at once: growing in between would hold, and copy, what was read of it so far
            self.reserve(segment.sequence.key, max(segment.end, len(segment.sequence.tokens)))
        self._staged = step

    def slab(self, key: int) -> Slab:
        """The slab of a staged sequence."""
        return self._slabs[key]

    def commit(self, verdicts: Many[Verdict]) -> None:
        if self._staged is None:
            raise ValueError("nothing is staged")
        for segment, (length, slots) in zip(self._staged.segments, kept_slots(self._staged, verdicts), strict=True):
            slab = self._slabs[segment.sequence.key]
            slab.length = length + len(slots)
            if slots and slots != list(range(length, slab.length)):
                slab.move(self.shape, slots, length)
        self._staged = None

    def advance(self, key: int, length: int) -> None:
        """Count the first `length` slots as committed: for whoever writes them in order outside of a step."""
        self._slabs[key].length = length

    def truncate(self, key: int, length: int) -> None:
        slab = self._slabs.get(key)
        if slab is not None:
            slab.length = min(slab.length, length)

    def fork(self, key: int, new_key: int, length: int | None = None) -> None:
        source = self._slabs.get(key) or Slab(self.shape)
        held = source.length if length is None else min(source.length, length)
        self._slabs[new_key] = source.copied(self.shape, held, held + AHEAD)

    def move(self, key: int, new_key: int) -> None:
        self._slabs[new_key] = self._slabs.pop(key, None) or Slab(self.shape)

    def shrink(self, key: int) -> None:
        slab = self._slabs.get(key)
        if slab is not None and capacity_for(slab.length + AHEAD) < slab.capacity:
            self._slabs[key] = slab.copied(self.shape, slab.length, slab.length + AHEAD)

    def release(self, key: int) -> None:
        self._slabs.pop(key, None)

    @property
    def held_bytes(self) -> int:
        return sum([slab.nbytes for slab in self._slabs.values()])
