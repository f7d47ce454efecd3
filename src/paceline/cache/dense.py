"""Dense slabs: per sequence and layer one tensor [K, capacity, D] for keys and one for values, grown by doubling.

Slots [0, length) hold the committed prefix in order, so that slot and position agree; later slots are scratch space for staged
rows. Shapes are taken from the first write of a layer: layers may differ, and values may be narrower than keys (MLA).
"""

from __future__ import annotations

import torch

from paceline.cache.slabs import Slab, SlabCache, capacity_for
from paceline.step import Segment


class _DenseSlab(Slab):
    """One sequence: its layers' keys and values."""

    def __init__(self, slots: int = 0) -> None:
        super().__init__(slots)
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def put(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Set the keys and values of a layer, in place of what it had."""
        before = self.layers.get(layer, ())
        self.layers[layer] = keys, values
        self.nbytes += keys.nbytes + values.nbytes - sum(store.nbytes for store in before)

    def copied(self, length: int, slots: int) -> _DenseSlab:
        copy = _DenseSlab(slots)
        copy.length = length
        for layer, (keys, values) in self.layers.items():
            copy.put(layer, _copied(keys, length, copy.capacity), _copied(values, length, copy.capacity))
        return copy

    def grow(self, slots: int) -> None:
        capacity = capacity_for(slots)
        for layer, (keys, values) in self.layers.items():
            self.put(layer, _copied(keys, self.length, capacity), _copied(values, self.length, capacity))
        # not before: memory may run out in between
        self.capacity = capacity

    # a forward in inference mode makes the tensors, and such tensors can only be written to in inference mode
    @torch.inference_mode()
    def move(self, slots: list[int], to: int) -> None:
        for pair in self.layers.values():
            for store in pair:
                store[:, to : to + len(slots)] = store[:, slots]


def _copied(old: torch.Tensor, length: int, capacity: int) -> torch.Tensor:
    """The first `length` slots, with room for `capacity`."""
    new = old.new_empty(old.shape[0], capacity, old.shape[2])
    new[:, :length] = old[:, :length]
    return new


class DenseCache(SlabCache[_DenseSlab]):
    """Holds tensors layer by layer for each sequence."""

    def __init__(self) -> None:
        super().__init__(_DenseSlab)

    def store(self, layer: int, segment: Segment, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the fresh rows of one layer and return all that the segment may attend to.

        keys: [K, rows, D]; values: [K, rows, D']. Returns views [K, end, D] and [K, end, D'].
        """
        slab = self._slabs[segment.sequence.key]
        pair = slab.layers.get(layer)
        if pair is None:
            pair = (
                keys.new_empty(keys.shape[0], slab.capacity, keys.shape[2]),
                values.new_empty(values.shape[0], slab.capacity, values.shape[2]),
            )
            slab.put(layer, *pair)
        all_keys, all_values = pair[0][:, : segment.end], pair[1][:, : segment.end]
        all_keys[:, segment.start :] = keys
        all_values[:, segment.start :] = values
        return all_keys, all_values
