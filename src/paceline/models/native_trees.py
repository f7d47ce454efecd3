"""Trees that compiled code drafts for all sequences of a batch in one call: what it is told, and what becomes of its choices."""

from __future__ import annotations

import os
from collections.abc import Sequence as Many
from functools import lru_cache
from itertools import accumulate

import numpy as np
import torch
from torch.nn.functional import pad

from paceline.growth import Growth
from paceline.kernels.native import layout
from paceline.models.native_arrays import ends_of
from paceline.noise import key, signed_seed, stream
from paceline.sequence import Sequence
from paceline.tree import Budget, DraftTree, Proposal
from paceline.tree_shapes import Shape, children

_CHOICES = {
    Proposal.POINT: layout.LIKELIEST,
    Proposal.COUPLED: layout.COUPLED,
    Proposal.IID: layout.INDEPENDENT,
    Proposal.WITHOUT_REPLACEMENT: layout.REPLACED,
    Proposal.HUB: layout.PAIRED,
}


def is_compiled(sequence: Sequence) -> bool:
    """Whether trees can be drafted in compiled code: where nothing but the temperature shapes what is chosen from."""
    return not (sequence.shapes_logits or sequence.params.cuts)


class Slots:
    """Who hangs where in a shape, as far as a budget has room for it.

    array: int64 [2 P + 1], where the children of every place begin, and where the last ones end, and behind that they. wide:
    children of a place, at most. rows: places of a level that have children, at most. fed: places that have children below the
    root.
    """

    def __init__(self, shape: Shape, nodes: int, depth: int) -> None:
        places = children(shape, nodes, depth)
        begins = accumulate(map(len, places), initial=len(places) + 1)
        below = [child for of in places for child in of]
        self.array = np.array([*begins, *below], np.int64)
        self.address = self.array.ctypes.data
        levels = {0: 0}
        for place, of in enumerate(places):
            levels.update(dict.fromkeys(of, levels.get(place, 0) + 1))
        inner = [levels[place] for place, of in enumerate(places) if of]
        self.nodes, self.wide = len(below), max(map(len, places))
        self.rows, self.fed = max(map(inner.count, inner), default=1), len(inner) - 1


slots_of = lru_cache(maxsize=256)(Slots)


class Trees:
    """One draft: laid out, to be drafted by whoever runs the call, and read.

    live: whom for, and within what. known: tokens the model has. width: numbers to a row of logits.
    address: of the record. rows: of logits that are written. most_rows: of a level. most_fed: nodes of a sequence that are fed.
    """

    def __init__(
        self,
        live: Many[tuple[Sequence, Budget]],
        growth: Growth,
        source: str,
        vocab_size: int,
        known: int,
        width: int,
    ) -> None:
        self._live, self._growth, self._source, self._vocab_size, self._known = live, growth, source, vocab_size, known
        count, deepest = len(live), max(budget.depth for _, budget in live)
        beam = growth.width if growth.shape is None else 0
        shapes = [] if growth.shape is None else [slots_of(growth.shape, budget.nodes, budget.depth) for _, budget in live]
        if growth.shape is None:
            places, wide, rows = 1, beam, count * beam
            most, self.most_fed = 1 + beam + beam * beam * (deepest - 1), beam * (deepest - 1)
        else:
            places, wide = len(growth.shape), max(slots.wide for slots in shapes)
            rows = sum(slots.rows for slots in shapes)
            most, self.most_fed = 1 + max(slots.nodes for slots in shapes), max(slots.fed for slots in shapes)
        self._drawn = growth.kind.drawn
        self.most_rows = max(rows, count)
        self.rows = sum(slots.fed + 1 for slots in shapes) if self._drawn else self.most_rows
        self._job, self.address = _record(layout.TREES)
        sequences = [sequence for sequence, _ in live]
        rules = [budget.stopping for _, budget in live]
        least = np.zeros((count, deepest), np.float32)
        for place, rule in enumerate(rules):
            if rule:
                least[place, : len(rule.least)] = rule.least[:deepest]
        ends, bounds = ends_of([sequence.stop_ids for sequence in sequences])
        self._nodes = np.zeros((count, layout.NODE_FIELDS, most), np.int64)
        self._nodes[:, layout.TOKEN, 0] = [sequence.root for sequence in sequences]
        self._nodes[:, (layout.PARENT, layout.SPOT, layout.SHOWN), 0] = -1
        self._numbers = np.ones((count, layout.NODE_NUMBERS, most))
        self._counts = np.ones(count, np.int64)
        threads = os.cpu_count() or 1
        self._held = {
            "slots": np.array([slots.address for slots in shapes] or [0] * count, np.int64),
            "depths": np.array([budget.depth for _, budget in live], np.int64),
            "limits": np.array([budget.nodes for _, budget in live], np.int64),
            "lengths": np.array([len(sequence.tokens) for sequence in sequences], np.int64),
            "floors": np.array([budget.floor for _, budget in live], np.float32),
            "ends": ends,
            "end_bounds": bounds,
            "chances": np.array([rule.chances.ctypes.data if rule else 0 for rule in rules], np.int64),
            "odds": np.array([rule.odds if rule else 1.0 for rule in rules], np.float32),
            "least": least,
            "temperatures": np.array([sequence.params.temperature for sequence in sequences], np.float32),
            "seeds": np.array([signed_seed(sequence.seed) for sequence in sequences], np.int64),
            "keys": self._keys(places, wide) if self._drawn else np.zeros((count, places, wide), np.uint64),
            "counts": self._counts,
            "fed": np.zeros(count, np.int64),
            "fresh": np.zeros(count, np.int64),
            "nodes": self._nodes,
            "numbers": self._numbers,
            "families": np.zeros((count, most), np.int64),
            "asked": np.zeros(self.most_rows, np.int64),
            "owners": np.arange(self.most_rows, dtype=np.int64),
            "found": np.zeros((self.most_rows, wide), np.int64),
            "shares": np.zeros((self.most_rows, wide), np.float32),
            "held": np.zeros((threads, layout.MOST_KEPT), np.int32),
            "values": np.zeros((threads, wide)),
            "seeded": np.zeros((threads, wide), np.int64),
        }
        for name, array in self._held.items():
            self._job[name] = array.ctypes.data
        told = {
            "sequences": count,
            "deepest": deepest,
            "most": most,
            "places": places,
            "wide": wide,
            "beam": beam,
            "vocabulary": min(known, vocab_size),
            "logits_width": width,
            "shown": self._drawn,
            "choice": _CHOICES[growth.kind],
        }
        for name, value in told.items():
            self._job[name] = value

    def _keys(self, places: int, wide: int) -> np.ndarray:
        """uint64 [S, places, wide]: the draft's own streams, as `draws.siblings` has them."""
        keys = np.zeros((len(self._live), places, wide), np.uint64)
        assert self._growth.shape is not None
        for at, (sequence, budget) in enumerate(self._live):
            slots, text = children(self._growth.shape, budget.nodes, budget.depth), len(sequence.tokens)
            for place, below in enumerate(slots):
                for trial in range(len(below)):
                    keys[at, place, trial] = key(stream(sequence.seed, self._source, place, trial), text)
        return keys

    def begin(self, call: int, step: int, logits: int, slabs: Many[tuple[int, int, int]]) -> None:
        """Tell what this is drafted with: the addresses of the CALL record of the first step, of the step's part, and of the
        logits of the first level; and, for each sequence, those of keys and values, and their capacity.
        """
        self._job["call"], self._job["step"], self._job["logits"] = call, step, logits
        self._slabs = np.array(slabs, np.int64)
        self._job["slabs"] = self._slabs.ctypes.data

    def trees(self, logits: torch.Tensor) -> list[tuple[DraftTree, list[int]]]:
        """What was drafted, and for each the slots, behind the text, in which its first path was fed: what a cache may keep.

        logits: float32 [rows, V], as they are shown.
        """
        found = []
        for at, ((sequence, budget), count) in enumerate(zip(self._live, self._counts.tolist(), strict=True)):
            nodes, numbers = self._nodes[at, :, :count].tolist(), self._numbers[at, :, :count].tolist()
            order = self._order(nodes[layout.PLACE], numbers[layout.WORTH], budget.nodes)
            kind = Proposal.POINT if sequence.params.temperature == 0.0 else self._growth.kind
            found.append((self._tree(sequence, kind, nodes, numbers, order, logits), _fed_path(nodes, order)))
        return found

    def _order(self, places: list[int], worths: list[float], limit: int) -> list[int]:
        """The nodes of the tree below its root: siblings in the order of their choice, what is worth more before the rest."""
        below = range(1, len(places))
        if self._growth.shape is not None:
            return sorted(below, key=places.__getitem__)
        return sorted(below, key=lambda node: -worths[node])[:limit]

    def _tree(
        self,
        sequence: Sequence,
        kind: Proposal,
        nodes: list[list[int]],
        numbers: list[list[float]],
        order: list[int],
        logits: torch.Tensor,
    ) -> DraftTree:
        if not order:
            return DraftTree.root(sequence.root)
        tokens, parents, shown = (nodes[field] for field in (layout.TOKEN, layout.PARENT, layout.SHOWN))
        places = {0: 0, **{node: place for place, node in enumerate(order, 1)}}
        proposals = {}
        if kind.drawn:
            inner = dict.fromkeys(parents[node] for node in order)
            probs = self._drawn_from(sequence, logits[[shown[node] for node in inner]])
            proposals = {(places[node], self._source): row for node, row in zip(inner, probs, strict=True)}
        return DraftTree.grown(
            self._source,
            [sequence.root, *[tokens[node] for node in order]],
            [-1, *[places[parents[node]] for node in order]],
            [1.0, *[numbers[layout.CONFIDENCE][node] for node in order]],
            kind,
            proposals,
        )

    def _drawn_from(self, sequence: Sequence, rows: torch.Tensor) -> torch.Tensor:
        """float32 [nodes, V of the target]: what children were drawn from. rows: float32 [nodes, V]."""
        known = min(self._known, self._vocab_size)
        return pad((rows[:, :known] / sequence.params.temperature).softmax(-1), (0, self._vocab_size - known))


def _fed_path(nodes: list[list[int]], order: list[int]) -> list[int]:
    """Where the nodes were fed that take the first child from the root down, as far as they were."""
    spots, path, node = nodes[layout.SPOT], list[int](), 0
    first: dict[int, int] = {}
    for child in order:
        first.setdefault(nodes[layout.PARENT][child], child)
    while (node := first.get(node, 0)) and spots[node] >= 0:
        path.append(spots[node])
    return path


def _record(kind: np.dtype) -> tuple[np.void, int]:
    record = np.zeros(1, kind)
    return record[0], record.ctypes.data
