"""Trees that compiled code drafts for all sequences of a batch in one call: what it is told, and what becomes of its choices."""

from __future__ import annotations

from collections.abc import Sequence as Many
from functools import lru_cache
from itertools import accumulate
from operator import gt

import numpy as np
import torch

from paceline.growth import Growth
from paceline.kernels.native import layout
from paceline.models.native_drafts import DraftJob, drawn_from
from paceline.noise import key, stream
from paceline.sequence import Sequence
from paceline.tree import Budget, DraftTree, Proposal
from paceline.tree_shapes import Shape, children

_ARRAYS = (
    "slots", "depths", "limits", "lengths", "floors", "chances", "odds", "least", "temperatures", "seeds", "keys", "slabs",
    "counts", "fed", "fresh", "nodes", "numbers", "families", "asked", "owners", "found", "shares", "values", "seeded",
)  # fmt: skip
_SIZES = "deepest", "most", "places", "wide"
_TOLD = "sequences", "beam", "vocabulary", "logits_width", "shown", "choice"
_NONE = (0,) * 6
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

    array: int64 [2 P + 1], where the children of every place begin, and where the last ones end, and behind that they. nodes: in
    all, besides the root. children: all of them, each by its parent's place and its number among the siblings. wide: children of
    a place, at most. rows: places of a level that have children, at most. fed: places that have children below the
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
        self.children = [(place, number) for place, of in enumerate(places) for number in range(len(of))]
        self.nodes, self.wide = len(below), max(map(len, places))
        self.rows, self.fed = max(map(inner.count, inner), default=1), len(inner) - 1


slots_of = lru_cache(maxsize=256)(Slots)


class Trees(DraftJob):
    """The arrays stay where they are, and grow to the largest drafts seen.

    rows: of logits that are written. most_rows: of a level. most_fed: nodes of a sequence that are fed.
    """

    def __init__(self, call: int, step: int, known: int) -> None:
        super().__init__(layout.TREES, call, step, known)
        self._sizes = _NONE

    def lay(self, live: Many[tuple[Sequence, Budget]], growth: Growth, source: str, vocab_size: int, width: int) -> None:
        """Tell what is to be drafted: a tree for each sequence, within its budget.

        vocab_size: the target's. width: numbers to a row of logits.
        """
        self._live, self._growth, self._source, self._vocab_size = live, growth, source, vocab_size
        count, deepest, drawn = len(live), max(budget.depth for _, budget in live), growth.kind.drawn
        slots = [] if growth.shape is None else [slots_of(growth.shape, budget.nodes, budget.depth) for _, budget in live]
        if growth.shape is None:
            beam = wide = growth.width
            places, most, fed, rows = 1, 1 + beam + beam * beam * (deepest - 1), beam * (deepest - 1), count * beam
        else:
            beam, places, wide = 0, len(growth.shape), max(one.wide for one in slots)
            most, fed = 1 + max(one.nodes for one in slots), max(one.fed for one in slots)
            rows = sum(one.rows for one in slots)
        self.most_rows, self.most_fed = max(rows, count), fed
        self.rows = sum(one.fed + 1 for one in slots) if drawn else self.most_rows
        sizes = count, deepest, most, places, wide, self.most_rows
        if any(map(gt, sizes, self._sizes)):
            self._allot(*map(max, sizes, self._sizes))
        told = count, beam, min(self._known, vocab_size), width, drawn, _CHOICES[growth.kind]
        for name, value in zip(_TOLD, told, strict=True):
            self._job[name] = value
        sequences = [sequence for sequence, _ in live]
        self._tell_of(sequences)
        self._limit([budget for _, budget in live])
        # compiled code reads them where they are
        self._shapes = slots
        self._slots[:count] = [one.address for one in slots] or 0
        self._lengths[:count] = [len(sequence.tokens) for sequence in sequences]
        self._nodes[:count, layout.TOKEN, 0] = [sequence.root for sequence in sequences]
        self._counts[:count], self._fed[:count], self._asked[:count], self._owners[:count] = 1, 0, 0, range(count)
        if drawn:
            self._key(slots)

    def _limit(self, budgets: list[Budget]) -> None:
        """Tell how large each tree may get, and who has no children."""
        count = len(budgets)
        self._depths[:count] = [budget.depth for budget in budgets]
        self._limits[:count] = [budget.nodes for budget in budgets]
        self._floors[:count] = [budget.floor for budget in budgets]
        for place, rule in enumerate(budget.stopping for budget in budgets):
            self._chances[place] = rule.chances.ctypes.data if rule else 0
            if rule:
                self._odds[place], self._least[place] = rule.odds, 0.0
                self._least[place, : len(rule.least)] = rule.least[: self._least.shape[1]]

    def _key(self, slots: list[Slots]) -> None:
        """Tell the draft's own streams, as `draws.siblings` has them."""
        for owner, ((sequence, _), one) in enumerate(zip(self._live, slots, strict=True)):
            text = len(sequence.tokens)
            for place, trial in one.children:
                self._keys[owner, place, trial] = key(stream(sequence.seed, self._source, place, trial), text)

    def _allot(self, sequences: int, deepest: int, most: int, places: int, wide: int, rows: int) -> None:
        # none until all are there: whoever is interrupted in between begins anew
        self._sizes, self._told = _NONE, []
        self._slots, self._lengths = np.zeros(sequences, np.int64), np.zeros(sequences, np.int64)
        self._depths, self._limits = np.zeros(sequences, np.int64), np.zeros(sequences, np.int64)
        self._floors, self._odds = np.zeros(sequences, np.float32), np.ones(sequences, np.float32)
        self._chances, self._least = np.zeros(sequences, np.int64), np.zeros((sequences, deepest), np.float32)
        self._temperatures, self._seeds = np.zeros(sequences, np.float32), np.zeros(sequences, np.int64)
        self._keys, self._slabs = np.zeros((sequences, places, wide), np.uint64), np.zeros((sequences, 3), np.int64)
        self._counts, self._fed, self._fresh = np.zeros((3, sequences), np.int64)
        self._nodes = np.zeros((sequences, layout.NODE_FIELDS, most), np.int64)
        # a root has no parent, and is fed with the text
        self._nodes[:, (layout.PARENT, layout.SPOT), 0] = -1
        self._numbers = np.ones((sequences, layout.NODE_NUMBERS, most))
        self._families = np.zeros((sequences, most), np.int64)
        self._asked, self._owners = np.zeros((2, rows), np.int64)
        self._found, self._shares = np.zeros((rows, wide), np.int64), np.zeros((rows, wide), np.float32)
        self._values, self._seeded = np.zeros((self._threads, wide)), np.zeros((self._threads, wide), np.int64)
        for name in _ARRAYS:
            self._job[name] = getattr(self, f"_{name}").ctypes.data
        for name, size in zip(_SIZES, (deepest, most, places, wide), strict=True):
            self._job[name] = size
        self._sizes = sequences, deepest, most, places, wide, rows

    def place(self, logits: int, slabs: Many[tuple[int, int, int]]) -> None:
        """Tell where the logits of the first level are to lie, and, for each sequence, keys and values, and their capacity."""
        self._job["logits"] = logits
        self._slabs[: len(slabs)] = slabs

    def trees(self, logits: torch.Tensor) -> list[tuple[DraftTree, list[int]]]:
        """What was drafted, and for each the slots, behind the text, in which its first path was fed: what a cache may keep.

        logits: float32 [rows, V], as they are shown.
        """
        found = []
        for at, ((sequence, budget), count) in enumerate(zip(self._live, self._counts[: len(self._live)].tolist(), strict=True)):
            nodes, numbers = self._nodes[at, :, :count].tolist(), self._numbers[at, :, :count].tolist()
            order = self._order(nodes[layout.PLACE], numbers[layout.WORTH], budget.nodes)
            found.append((self._tree(sequence, nodes, numbers[layout.CONFIDENCE], order, logits), _fed_path(nodes, order)))
        return found

    def _order(self, places: list[int], worths: list[float], limit: int) -> list[int]:
        """The nodes of the tree below its root: siblings in the order of their choice, what is worth more before the rest."""
        below = range(1, len(places))
        if self._growth.shape is not None:
            return sorted(below, key=places.__getitem__)
        return sorted(below, key=lambda node: -worths[node])[:limit]

    def _tree(
        self, sequence: Sequence, nodes: list[list[int]], held: list[float], order: list[int], logits: torch.Tensor
    ) -> DraftTree:
        if not order:
            return DraftTree.root(sequence.root)
        kind = Proposal.POINT if sequence.params.temperature == 0.0 else self._growth.kind
        tokens, parents, shown = (nodes[field] for field in (layout.TOKEN, layout.PARENT, layout.SHOWN))
        places = {0: 0, **{node: place for place, node in enumerate(order, 1)}}
        proposals = {}
        if kind.drawn:
            inner = list(dict.fromkeys(parents[node] for node in order))
            probs = self._drawn_from(sequence, logits.numpy()[[shown[node] for node in inner]])
            proposals = {(places[node], self._source): row for node, row in zip(inner, probs, strict=True)}
        return DraftTree.grown(
            self._source,
            [sequence.root, *[tokens[node] for node in order]],
            [-1, *[places[parents[node]] for node in order]],
            [1.0, *[held[node] for node in order]],
            kind,
            proposals,
        )

    def _drawn_from(self, sequence: Sequence, rows: np.ndarray) -> torch.Tensor:
        """float32 [nodes, V of the target]: what children were drawn from. rows: float32 [nodes, V]."""
        known = min(self._known, self._vocab_size)
        return drawn_from(rows[:, :known], sequence.params.temperature, self._vocab_size)


def _fed_path(nodes: list[list[int]], order: list[int]) -> list[int]:
    """Where the nodes were fed that take the first child from the root down, as far as they were."""
    spots, path, node = nodes[layout.SPOT], list[int](), 0
    first: dict[int, int] = {}
    for child in order:
        first.setdefault(nodes[layout.PARENT][child], child)
    while (node := first.get(node, 0)) and spots[node] >= 0:
        path.append(spots[node])
    return path
