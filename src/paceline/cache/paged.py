"""Pages: the keys and values of all sequences in one pool, page_size slots to a page; a sequence is a list of pages.

Slot s of a sequence is in page `blocks[s // page_size]` at offset `s % page_size`. Slots [0, length) hold the committed prefix
in order, followed by staged rows. Forks share pages by reference counting, and a shared page is copied before a step writes to
it. Shapes are taken from the first write of a layer. Branching: TREE.

Source: PagedAttention, Kwon et al. (arXiv:2309.06180), sections 4.1 to 4.4.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence as Many
from dataclasses import dataclass, field, replace
from itertools import islice

import torch

from paceline.cache.base import Branching, KVCache, check_starts, kept_slots
from paceline.cache.pages import PagePool
from paceline.cache.scaled import NARROW, narrowed, widened
from paceline.step import Segment, Step, Verdict

_STORES = ("keys", "values", "key_scales", "value_scales")
_SPARED = 16
"""One part in so many of a device's memory is left to forwards when a pool grows."""
_LEAST = 64
"""A pool grows by at least one part in so many of its pages: growing copies all of them, and invalidates recorded graphs."""
Move = Callable[[Many[int], Many[int]], None]
"""Copies slots within every store: where they come from and go to, as places in pages that are joined end to end."""


@dataclass(frozen=True)
class LayerPages:
    """keys: [pages, page_size, K, D]; values: [pages, page_size, K, D']; scales, of narrow formats only: float32 [pages,
    page_size, K]. dtype: of what is written, before it is narrowed."""

    keys: torch.Tensor
    values: torch.Tensor
    dtype: torch.dtype
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None

    @property
    def stores(self) -> list[torch.Tensor]:
        every = [getattr(self, name) for name in _STORES]
        return [store for store in every if store is not None]


@dataclass
class _Held:
    """One sequence: its pages, and how many slots are committed."""

    blocks: array[int] = field(default_factory=lambda: array("i"))
    length: int = 0


class PagedCache(KVCache):
    """Branching: TREE. Commit moves the accepted nodes' slots together; keys carry their rotation, so moving is exact.

    pages: how many there are; the pool of a layer is reserved at its first write. page_size: slots, a power of two. narrow:
    float8_e4m3fn or int8 to keep keys and values in, with a scale per token and head; None keeps them as they come. grows:
    whether a pool that is too small is replaced by a larger one; its pages then move, which a captured graph would not notice.
    mover: makes, for all stores [pages, page_size, ...], a function that moves slots in all at once; without one they move layer
    by layer. `stage` raises OutOfPages, and changes nothing, where the step needs more pages than are free and can be added.
    """

    branching = Branching.TREE

    def __init__(
        self,
        pages: int,
        page_size: int = 16,
        narrow: torch.dtype | None = None,
        *,
        grows: bool = False,
        mover: Callable[[Many[torch.Tensor]], Move] | None = None,
    ) -> None:
        if page_size < 1 or page_size & (page_size - 1):
            raise ValueError("a page holds a power of two of slots")
        if narrow is not None and narrow not in NARROW:
            raise ValueError("a narrow cache is in float8_e4m3fn or int8")
        self.page_size, self.moves = page_size, 0
        self._pool, self._narrow, self._grows, self._mover = PagePool(pages, page_size), narrow, grows, mover
        self._moved: Move | None = None
        """The function that `mover` made for the present stores."""
        self._layers: dict[int, LayerPages] = {}
        self._held: dict[int, _Held] = {}
        self._places: dict[int, torch.Tensor] = {}
        self._staged: Step | None = None

    def length(self, key: int) -> int:
        held = self._held.get(key)
        return held.length if held else 0

    def blocks(self, key: int) -> array[int]:
        """The pages of a sequence in the order of its slots, staged ones included; not to be kept over the next step."""
        return self._held[key].blocks

    def blocks_of(self, step: Step) -> list[array[int]]:
        """The pages of every sequence of a staged step, segment by segment."""
        return [self.blocks(segment.sequence.key) for segment in step.segments]

    def layer(self, layer: int) -> LayerPages:
        """A layer's pages, for a kernel to read. Raises KeyError before they were reserved."""
        return self._layers[layer]

    @torch.inference_mode()
    def stage(self, step: Step) -> None:
        check_starts(step, self)
        self._forget_staged()
        plan = []
        for segment in step.segments:
            held = self._held.get(segment.sequence.key) or _Held()
            lacking = -(-segment.end // self.page_size) - len(held.blocks)
            # of the pages that hold committed slots only the last can be written to, where it is not full
            copied = segment.start % self.page_size > 0 and self._pool.shared(held.blocks[-1])
            plan.append((held, lacking, copied))
        needed = sum(lacking + copied for _, lacking, copied in plan)
        if self._grows and needed > self._pool.free:
            self._make(needed - self._pool.free)
        taken = iter(self._pool.take(needed))
        for segment, (held, lacking, copied) in zip(step.segments, plan, strict=True):
            self._held[segment.sequence.key] = held
            if copied:
                self._copy_last(held.blocks, next(taken))
            held.blocks.extend(islice(taken, lacking))
        self._staged = step

    def _make(self, lacking: int) -> None:
        """Double the pages, or add as many as there is memory for, but at least `lacking`, and at least a small part of the
        present number; add fewer where that fails, and none where memory does not even suffice for `lacking`."""
        count = self._pool.count
        more = max(min(count, self._affordable()), count // _LEAST, lacking)
        # what a failed try held is free only after its error was handled, so the next try follows that
        while not self._grown(more) and more > lacking:
            more = max(more // 2, lacking)

    def _affordable(self) -> int:
        """How many more pages the device has memory for, beside what a forward takes and while a store is copied."""
        stores = [store for layer in self._layers.values() for store in layer.stores]
        if not stores or stores[0].device.type != "cuda":
            return self._pool.count
        device = stores[0].device
        free, total = torch.cuda.mem_get_info(device)
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        room = free + unused - max(store.nbytes for store in stores) - total // _SPARED
        return max(room // sum(store[0].nbytes for store in stores), 0)

    def _grown(self, more: int) -> bool:
        """Add so many pages: copy every store into a larger one, which `moves` counts. Returns whether there was memory.

        Store by store, since a device that could hold all of them twice is rare. Where there is no memory for one, some are
        larger than they need be, and nothing else is changed.
        """
        # it references the stores, and each must be freed as soon as it is copied
        self._moved = None
        count, moved = self._pool.count + more + 1, False
        try:
            for place, layer in self._layers.items():
                for name in _STORES:
                    store = getattr(layer, name)
                    if store is not None and len(store) < count:
                        larger, moved = _enlarged(store, count), True
                        layer = self._layers[place] = replace(layer, **{name: larger})
                        # frees the old store now
                        del store
        except torch.OutOfMemoryError:
            return False
        finally:
            # graphs recorded over stores that did not move are still valid
            self.moves += moved
        self._pool.extend(more)
        return True

    def _copy_last(self, blocks: array[int], page: int) -> None:
        """Replace a sequence's last page by a copy of it in `page`."""
        for layer in self._layers.values():
            for store in layer.stores:
                store[page] = store[blocks[-1]]
        self._pool.drop(blocks[-1:])
        blocks[-1] = page

    def _forget_staged(self) -> None:
        """Give back the pages of a step that was never committed."""
        for segment in self._staged.segments if self._staged else ():
            if segment.sequence.key in self._held:
                self._trim(self._held[segment.sequence.key])
        self._places.clear()
        self._staged = None

    def _trim(self, held: _Held) -> None:
        """Give back the pages behind the committed slots."""
        needed = -(-held.length // self.page_size)
        self._pool.drop(held.blocks[needed:])
        del held.blocks[needed:]

    def _flat(self, key: int, slots: Iterable[int]) -> list[int]:
        """Where slots lie in a pool whose pages are joined end to end."""
        blocks, size = self._held[key].blocks, self.page_size
        return [blocks[slot // size] * size + slot % size for slot in slots]

    def write(self, layer: int, destinations: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store fresh rows of one layer, all sequences at once. Does not wait for the device.

        destinations: int32 or int64 [T], page * page_size + place. keys: [T, K, D]; values: [T, K, D'].
        """
        pages = self.reserve(layer, keys, values)
        if pages.key_scales is None or pages.value_scales is None:
            parts = [(pages.keys, keys), (pages.values, values)]
        else:
            keys, key_scales = narrowed(keys, pages.keys.dtype)
            values, value_scales = narrowed(values, pages.values.dtype)
            parts = [
                (pages.keys, keys),
                (pages.values, values),
                (pages.key_scales, key_scales),
                (pages.value_scales, value_scales),
            ]
        for store, rows in parts:
            store.flatten(0, 1)[destinations] = rows

    def reserve(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> LayerPages:
        """The pages of one layer, which are made when first asked for, for rows [T, K, D] like these."""
        if layer in self._layers:
            return self._layers[layer]

        def pool(rows: torch.Tensor, *, scale: bool = False) -> torch.Tensor:
            shape = (self._pool.count + 1, self.page_size, *(rows.shape[1:2] if scale else rows.shape[1:]))
            return torch.empty(shape, dtype=torch.float32 if scale else self._narrow or rows.dtype, device=rows.device)

        scales = (pool(keys, scale=True), pool(values, scale=True)) if self._narrow else (None, None)
        self._moved = None
        self._layers[layer] = LayerPages(pool(keys), pool(values), keys.dtype, *scales)
        return self._layers[layer]

    def store(self, layer: int, segment: Segment, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the fresh rows of one layer and return copies of all that the segment may attend to: for models without a
        kernel that reads pages.

        keys: [K, rows, D]; values: [K, rows, D']. Returns [K, end, D] and [K, end, D'].
        """
        key = segment.sequence.key
        if key not in self._places:
            self._places[key] = _on(keys.device, self._flat(key, range(segment.end)))
        places = self._places[key]
        self.write(layer, places[segment.start :], keys.transpose(0, 1), values.transpose(0, 1))
        pages = self._layers[layer]
        found_keys = _read(pages.keys, pages.key_scales, places, pages.dtype)
        return found_keys, _read(pages.values, pages.value_scales, places, pages.dtype)

    # a forward in inference mode makes the tensors, and such tensors can only be written to in inference mode
    @torch.inference_mode()
    def commit(self, verdicts: Many[Verdict]) -> None:
        if self._staged is None:
            raise ValueError("nothing is staged")
        sources: list[int] = []
        destinations: list[int] = []
        for segment, (length, slots) in zip(self._staged.segments, kept_slots(self._staged, verdicts), strict=True):
            held = self._held[segment.sequence.key]
            held.length = length + len(slots)
            kept = range(length, held.length)
            if slots != list(kept):
                sources += self._flat(segment.sequence.key, slots)
                destinations += self._flat(segment.sequence.key, kept)
        if sources:
            self._move(sources, destinations)
        self._forget_staged()

    def _move(self, sources: list[int], destinations: list[int]) -> None:
        """Copy rows within the flat pool, all layers. A path moves forward, its slots in order, so that no row is written over
        before it is read."""
        if self._mover is not None:
            if self._moved is None:
                self._moved = self._mover([store for layer in self._layers.values() for store in layer.stores])
            self._moved(sources, destinations)
            return
        device = next((layer.keys.device for layer in self._layers.values()), torch.device("cpu"))
        come, go = _on(device, sources), _on(device, destinations)
        for layer in self._layers.values():
            for store in layer.stores:
                flat = store.flatten(0, 1)
                flat[go] = flat[come]

    def truncate(self, key: int, length: int) -> None:
        held = self._held.get(key)
        if held is not None and length < held.length:
            held.length = length
            self._trim(held)

    def fork(self, key: int, new_key: int, length: int | None = None) -> None:
        if key == new_key:
            if length is not None:
                self.truncate(key, length)
            return
        self.release(new_key)
        source, copy = self._held.get(key), _Held()
        if source is not None:
            copy.length = source.length if length is None else min(source.length, length)
            copy.blocks = source.blocks[: -(-copy.length // self.page_size)]
            self._pool.share(copy.blocks)
        self._held[new_key] = copy

    def release(self, key: int) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            self._pool.drop(held.blocks)

    @property
    def held_bytes(self) -> int:
        """Bytes of the pages in use; free pages, which are reserved once for all sequences, are not counted."""
        each = sum(store[0].nbytes for layer in self._layers.values() for store in layer.stores)
        return each * self._pool.used


def _enlarged(store: torch.Tensor, count: int) -> torch.Tensor:
    """The same pages with room for `count` of them."""
    grown = store.new_empty(count, *store.shape[1:])
    grown[: len(store)] = store
    return grown


def _on(device: torch.device, numbers: Many[int]) -> torch.Tensor:
    """int64, copied to the device without waiting for it."""
    return torch.tensor(numbers, pin_memory=device.type == "cuda").to(device, non_blocking=True)


def _read(store: torch.Tensor, scales: torch.Tensor | None, places: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[K, n, D]: rows at places of a pool whose pages are joined end to end."""
    rows = store.flatten(0, 1)[places]
    if scales is not None:
        rows = widened(rows, scales.flatten(0, 1)[places], dtype)
    return rows.transpose(0, 1)
