"""Dense slabs: per sequence and layer one tensor [K, capacity, D] for keys and one for values, grown by doubling.

Slots [0, length) hold the committed prefix in order, so that slot and position agree; slots after it are scratch for the
staged rows. Shapes are learnt from the first write of a layer: layers may differ, and values be narrower than keys (MLA).
"""

from __future__ import annotations

from collections.abc import Sequence as Many

import torch

from paceline.cache.base import Branching, KVCache, check_starts, kept_slots
from paceline.cache.slabs import AHEAD, FIRST_CAPACITY, capacity_for
from paceline.step import Segment, Step, Verdict


class _Slab:
    """One sequence: its layers' keys and values, and how many slots are committed. nbytes: of all layers."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.length = self.nbytes = 0
        self.capacity = FIRST_CAPACITY

    def put(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Hold these for a layer, in place of what it had."""
        before = self.layers.get(layer, ())
        self.layers[layer] = keys, values
        self.nbytes += keys.nbytes + values.nbytes - sum(store.nbytes for store in before)

    def copied(self, length: int, capacity: int) -> _Slab:
        """Another slab that holds the first `length` tokens, with room for `capacity`."""
        copy = _Slab()
        copy.length, copy.capacity = length, capacity
        for layer, (keys, values) in self.layers.items():
            copy.put(layer, _copied(keys, length, capacity), _copied(values, length, capacity))
        return copy


def _copied(old: torch.Tensor, length: int, capacity: int) -> torch.Tensor:
    """The first `length` slots, with room for `capacity`."""
    new = old.new_empty(old.shape[0], capacity, old.shape[2])
    new[:, :length] = old[:, :length]
    return new


class DenseCache(KVCache):
    """Branching: TREE. Commit moves the accepted nodes' slots together; keys carry their rotation, so moving is exact."""

    branching = Branching.TREE

    def __init__(self) -> None:
        self._slabs: dict[int, _Slab] = {}
        self._staged: Step | None = None

    def length(self, key: int) -> int:
        slab = self._slabs.get(key)
        return slab.length if slab else 0

    def stage(self, step: Step) -> None:
        check_starts(step, self)
        for segment in step.segments:
            slab = self._slabs.setdefault(segment.sequence.key, _Slab())
            if segment.end > slab.capacity:
                # room for the whole prompt at once: growing in between would copy what was read of it so far
                capacity = capacity_for(max(segment.end, len(segment.sequence.tokens)))
                for layer, (keys, values) in slab.layers.items():
                    slab.put(layer, _copied(keys, slab.length, capacity), _copied(values, slab.length, capacity))
                # not before: memory may end in between
                slab.capacity = capacity
        self._staged = step

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

    # a forward in inference mode makes the tensors, and such tensors can only be written to in inference mode
    @torch.inference_mode()
    def commit(self, verdicts: Many[Verdict]) -> None:
        if self._staged is None:
            raise ValueError("nothing is staged")
        for segment, (length, slots) in zip(self._staged.segments, kept_slots(self._staged, verdicts), strict=True):
            slab = self._slabs[segment.sequence.key]
            slab.length = length + len(slots)
            if slots != list(range(length, slab.length)):
                for pair in slab.layers.values():
                    for store in pair:
                        store[:, length : slab.length] = store[:, slots]
        self._staged = None

    def truncate(self, key: int, length: int) -> None:
        slab = self._slabs.get(key)
        if slab is not None:
            slab.length = min(slab.length, length)

    def fork(self, key: int, new_key: int, length: int | None = None) -> None:
        source = self._slabs.get(key) or _Slab()
        held = source.length if length is None else min(source.length, length)
        self._slabs[new_key] = source.copied(held, capacity_for(held + AHEAD))

    def move(self, key: int, new_key: int) -> None:
        self._slabs[new_key] = self._slabs.pop(key, None) or _Slab()

    def release(self, key: int) -> None:
        self._slabs.pop(key, None)

    @property
    def held_bytes(self) -> int:
        return sum([slab.nbytes for slab in self._slabs.values()])
