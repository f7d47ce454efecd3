"""Panels: dense slabs per sequence, laid out so that compiled attention reads keys and values as it reads packed weights.

Keys are [layers, K, capacity / panel, D, panel] (panel slots side by side), values [layers, K, padded D / panel, capacity,
panel]; float32 or float16. Slots [0, length) hold the committed prefix in order, later slots are scratch space for staged rows.
Unwritten slots are zero, never garbage: a probability of zero times their content must be zero. All filling and moving is done
by numpy, on one thread: after a parallel operation torch's threads spin for milliseconds on the cores that the kernels need.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from paceline.cache.slabs import AHEAD, Slab, SlabCache, capacity_for

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
        # memory that was never written to is zero and takes no time; numpy does not align it to cache lines, as loads need
        apart, line = prod(keys), _LINE_BYTES // self.dtype.itemsize
        numbers = np.zeros(apart + prod(values) + line, self.dtype)
        start = -(numbers.ctypes.data // self.dtype.itemsize) % line
        numbers = numbers[start : start + apart + prod(values)]
        return numbers[:apart].reshape(keys), numbers[apart:].reshape(values), numbers.ctypes.data


class PanelSlab(Slab):
    """One sequence's keys and values in panels.

    place: for compiled code, the addresses of keys and values, and the capacity.
    """

    def __init__(self, shape: Shape, slots: int = 0) -> None:
        super().__init__(slots)
        self.shape = shape
        self.keys, self.values, address = shape.slab(self.capacity)
        self.place = address, address + self.keys.nbytes, self.capacity
        self.nbytes = self.keys.nbytes + self.values.nbytes

    def copied(self, length: int, slots: int) -> PanelSlab:
        copy, panels = PanelSlab(self.shape, slots), -(-length // self.shape.panel)
        copy.length = length
        copy.keys[:, :, :panels] = self.keys[:, :, :panels]
        copy.values[:, :, :, :length] = self.values[:, :, :, :length]
        return copy

    def grow(self, slots: int) -> None:
        larger = self.copied(self.length, slots)
        self.keys, self.values, self.capacity, self.place = larger.keys, larger.values, larger.capacity, larger.place
        self.nbytes = larger.nbytes

    def move(self, slots: list[int], to: int) -> None:
        source, target = np.array(slots), np.arange(to, to + len(slots))
        keys, values, panel = self.keys, self.values, self.shape.panel
        values[:, :, :, target] = values[:, :, :, source]
        keys[:, :, target // panel, :, target % panel] = keys[:, :, source // panel, :, source % panel]


class PanelCache(SlabCache[PanelSlab]):
    """Holds one array of keys and one of values for each sequence."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(partial(PanelSlab, shape))
        self.shape = shape

    def slab(self, key: int) -> PanelSlab:
        """The slab of a staged sequence."""
        return self._slabs[key]

    def advance(self, key: int, length: int) -> None:
        """Count the first `length` slots as committed: for code that writes them in order outside of a step."""
        self._slabs[key].length = length

    def shrink(self, key: int) -> None:
        slab = self._slabs.get(key)
        if slab is not None and capacity_for(slab.length + AHEAD) < slab.capacity:
            self._slabs[key] = slab.copied(slab.length, slab.length + AHEAD)
