"""Drafts that compiled code makes for all sequences of a batch in one call: its inputs, and the trees made from its results."""

from __future__ import annotations

from collections.abc import Sequence as Many
from functools import lru_cache
from itertools import accumulate, chain, repeat
from operator import gt, is_
from struct import Struct
from typing import Any

import numpy as np
import torch

from paceline.budget import Budget
from paceline.growth import Growth
from paceline.kernels.choices.shapes import shape_of
from paceline.kernels.native import layout
from paceline.noise import signed_seed, stream
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.stopping import Stopping
from paceline.tree import DraftTree, Proposal
from paceline.tree_shapes import Shape, children

_ARRAYS = (
    "sequences", "least", "streams", "nodes", "numbers", "families", "asked", "owners", "found", "shares", "held", "values",
    "seeded", "paths",
)  # fmt: skip
_SIZES = "deepest", "most", "places", "wide"
_SETTINGS = "count", "beam", "vocabulary", "logits_width", "size", "choice"
_NONE = (0,) * 7
_CHOICES = {
    Proposal.POINT: layout.LIKELIEST,
    Proposal.COUPLED: layout.COUPLED,
    Proposal.IID: layout.INDEPENDENT,
    Proposal.WITHOUT_REPLACEMENT: layout.REPLACED,
    Proposal.HUB: layout.PAIRED,
}
_STAYS = Struct("=dqddqqq")
"""Fields of an OWNER that stay the same while the batch's sequences are the same."""
_ASKS = Struct("=qqqqdqdqqqqqqq")
"""Fields of an OWNER that are set for each draft: what is requested, and the draft's progress."""
_OWNER_BYTES = layout.OWNER.itemsize


def is_compiled(params: SamplingParams, kind: Proposal) -> bool:
    """Whether compiled code can choose tokens: not under a grammar, and not for drawn kinds (whose verifiers need the exact
    proposal) with a top-k above MOST_KEPT."""
    return params.grammar is None and not (kind.drawn and params.top_k > layout.MOST_KEPT)


def _told_cuts(params: SamplingParams) -> tuple[int, float, float]:
    """The cuts given to compiled code: top-k, top-p and the logarithm of min-p. A draft may ignore a top-k above MOST_KEPT."""
    if not params.cuts:
        return 0, 1.0, -float("inf")
    return params.top_k if params.top_k <= layout.MOST_KEPT else 0, params.top_p, params.log_min_p


class Slots:
    """The children of each place in a shape, as far as a budget has room for them.

    array: int64 [2 P + 1], P + 1 offsets (where each place's children begin, and where the last ones end), then the children.
    nodes: in all, besides the root. wide: most children of a place. rows: most places of one level that have children. fed:
    places other than the root that have children.
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


class Drafts:
    """The DRAFT record for compiled code, and the arrays it points to, which keep their addresses and grow to the largest drafts
    seen.

    call: address of the CALL record of the first step. step: address of the function that runs a step's part. known: tokens in
    the model's vocabulary. address: of the record. most_rows: most rows of a level. most_fed: most nodes of a sequence that are
    fed.
    """

    def __init__(self, call: int, step: int, known: int) -> None:
        self._known, self._sizes = known, _NONE
        self._of: tuple[Any, ...] = ()
        """The sequences last written, and the shape, kind and source that they were written for."""
        self._table: tuple[np.ndarray | None, int] = None, 0
        """The last table of chances used, and its address."""
        self._asked_for: tuple[int, ...] = ()
        job = np.zeros(1, layout.DRAFT)
        self._job, self.address = job[0], job.ctypes.data
        self._job["call"], self._job["step"] = call, step

    def plan(self, live: Many[tuple[Sequence, Budget]], growth: Growth) -> None:
        """Compute the largest sizes of the draft: a tree for each sequence, within its budget."""
        self._live, self._growth = live, growth
        count, deepest = len(live), max([budget.depth for _, budget in live])
        if growth.shape is None:
            self._slots: list[Slots] = []
            beam = wide = growth.width
            places, most, fed, rows = 1, 1 + beam + beam * beam * (deepest - 1), beam * (deepest - 1), count * beam
        else:
            slots = self._slots = [slots_of(growth.shape, budget.nodes, budget.depth) for _, budget in live]
            # streams are written for all places, whatever the budget
            places = len(growth.shape)
            wide = slots_of(growth.shape, places, places).wide
            most, fed = 1 + max([one.nodes for one in slots]), max([one.fed for one in slots])
            rows = sum([one.rows for one in slots])
        self.most_rows, self.most_fed = max(rows, count), fed
        self._planned = count, deepest, most, places, wide, self.most_rows

    def reserve(self, threads: int) -> None:
        """Make room for the planned draft. threads: how many it will run on."""
        sizes = *self._planned, threads
        if any(map(gt, sizes, self._sizes)):
            self._allot(*map(max, sizes, self._sizes))

    def lay(self, slabs: Many[tuple[int, int, int]], source: str, vocab_size: int, width: int) -> None:
        """Write the draft's inputs.

        slabs: for each sequence the addresses of its keys and values, and their capacity. vocab_size: the target's. width:
        numbers per row of logits.
        """
        live, growth = self._live, self._growth
        beam = growth.width if growth.shape is None else 0
        settings = len(live), beam, min(self._known, vocab_size), width, vocab_size, _CHOICES[growth.kind]
        # nearly always the same as in the draft before
        if settings != self._asked_for:
            self._asked_for = ()
            for name, value in zip(_SETTINGS, settings, strict=True):
                self._job[name] = value
            self._asked_for = settings
        self._source = source
        self._tell_of([sequence for sequence, _ in live])
        self._probs = None
        if growth.kind.drawn:
            # for every node that may have children
            self._probs = torch.empty(sum([one.fed + 1 for one in self._slots]), vocab_size)
        self._job["probs"] = 0 if self._probs is None else self._probs.data_ptr()
        # kept alive here, since compiled code reads them in place
        self._shaped = [shape_of(sequence) for sequence, _ in live if sequence.shapes_logits]
        shaped = iter(self._shaped)
        for place, ((sequence, budget), slab) in enumerate(zip(live, slabs, strict=True)):
            rule, begin = budget.stopping, place * self._deepest
            _ASKS.pack_into(
                self._records, place * _OWNER_BYTES + _STAYS.size, len(sequence.tokens),
                self._slots[place].address if self._slots else 0, budget.depth, budget.nodes, budget.floor,
                self._chances(rule), rule.odds if rule else 1.0,
                next(shaped).buffer_info()[0] if sequence.shapes_logits else 0, *slab, 1, 0, 0,
            )  # fmt: skip
            if rule:
                for level, least in zip(range(budget.depth), chain(rule.least, repeat(0.0))):  # noqa: B905 one has no end
                    self._least_of[begin + level] = least
            self._asked_at[place], self._owners_at[place] = 0, place

    def _chances(self, rule: Stopping | None) -> int:
        """The address of a rule's table of chances; each drafter always uses the same table."""
        if rule is None:
            return 0
        if rule.chances is not self._table[0]:
            self._table = rule.chances, rule.chances.ctypes.data
        return self._table[1]

    def _tell_of(self, sequences: list[Sequence]) -> None:
        """Write the fields that depend on the sequences alone; nearly always they are those of the draft before, and kept."""
        of = *sequences, self._growth.shape, self._growth.kind, self._source
        if len(self._of) == len(of) and all(map(is_, self._of, of)):
            return
        # empty until everything is written: after an interrupt, the next call starts over
        self._of = ()
        ends = [sequence.stop_ids for sequence in sequences]
        self._ends = np.array([token for tokens in ends for token in tokens], np.int64)
        at = self._ends.ctypes.data
        for place, sequence in enumerate(sequences):
            params, count = sequence.params, len(ends[place])
            seed = signed_seed(sequence.seed)
            _STAYS.pack_into(
                self._records, place * _OWNER_BYTES, params.temperature, *_told_cuts(params), seed, at, count
            )  # fmt: skip
            at += 8 * count
        if self._growth.kind.drawn and (shape := self._growth.shape) is not None:
            self._tell_streams(sequences, shape)
        self._of = of

    def _tell_streams(self, sequences: list[Sequence], shape: Shape) -> None:
        """Write the seeds of the draft's own random streams, as `draws.siblings` has them."""
        below = children(shape, len(shape), len(shape))
        of = [(place, trial) for place, those in enumerate(below) for trial in range(len(those))]
        for owner, sequence in enumerate(sequences):
            for place, trial in of:
                self._streams[owner, place, trial] = signed_seed(stream(sequence.draws_seed, self._source, place, trial))

    def _allot(self, sequences: int, deepest: int, most: int, places: int, wide: int, rows: int, threads: int) -> None:
        # empty until all arrays exist: after an interrupt, the next call starts over
        self._sizes, self._of = _NONE, ()
        self._sequences = np.zeros(sequences, layout.OWNER)
        self._least, self._streams = np.zeros((sequences, deepest), np.float32), np.zeros((sequences, places, wide), np.int64)
        self._nodes = np.zeros((sequences, layout.NODE_FIELDS, most), np.int64)
        # a root has no parent, and no slot of its own, since it is fed with the text
        self._nodes[:, (layout.PARENT, layout.SPOT), 0] = -1
        self._numbers = np.ones((sequences, layout.NODE_NUMBERS, most))
        self._families = np.zeros((sequences, most), np.int64)
        self._asked, self._owners = np.zeros((2, rows), np.int64)
        self._found, self._shares = np.zeros((rows, wide), np.int64), np.zeros((rows, wide), np.float32)
        self._held = np.zeros((threads, layout.MOST_KEPT), np.int32)
        self._values, self._seeded = np.zeros((threads, wide)), np.zeros((threads, wide), np.int64)
        self._paths = np.zeros((threads, deepest), np.int64)
        for name in _ARRAYS:
            self._job[name] = getattr(self, f"_{name}").ctypes.data
        for name, size in zip(_SIZES, (deepest, most, places, wide), strict=True):
            self._job[name] = size
        # writing a number through a memoryview takes a tenth of the time of a numpy slice
        self._records = self._sequences.view(np.uint8).data
        self._least_of: memoryview[Any] = self._least.reshape(-1).data
        self._asked_at: memoryview[Any] = self._asked.data
        self._owners_at: memoryview[Any] = self._owners.data
        self._deepest = deepest
        self._sizes = sequences, deepest, most, places, wide, rows, threads

    def trees(self) -> list[tuple[DraftTree, list[int]]]:
        """The drafted trees, each with the slots, counted from the text's end, that hold its fed path of first children: what the
        cache may keep."""
        rows, found = () if self._probs is None else self._probs.unbind(), []
        counts = self._sequences["count"][: len(self._live)].tolist()
        for at, ((sequence, budget), count) in enumerate(zip(self._live, counts, strict=True)):
            if count == 1:
                found.append((DraftTree.root(sequence.root), []))
                continue
            kind = Proposal.POINT if sequence.params.temperature == 0.0 else self._growth.kind
            if self._growth.chain is not None:
                tree = self._chain(sequence, kind, at, count, rows)
                # the last one drafted is never fed
                found.append((tree, list(range(count - 2))))
                continue
            nodes, numbers = self._nodes[at, :, :count].tolist(), self._numbers[at, :, :count].tolist()
            order = self._order(nodes[layout.PLACE], numbers[layout.WORTH], budget.nodes)
            tree = self._tree(sequence, kind, nodes, numbers[layout.CONFIDENCE], order, rows)
            found.append((tree, _fed_path(nodes, order)))
        # a row of the vocabulary's size per node, owned by the trees from here on
        self._probs = None
        return found

    def _chain(self, sequence: Sequence, kind: Proposal, at: int, count: int, rows: Many[torch.Tensor]) -> DraftTree:
        tokens = self._nodes[at, layout.TOKEN, 1:count].tolist()
        held = self._numbers[at, layout.CONFIDENCE, 1:count].tolist()
        proposals = {}
        if kind.drawn:
            shown = self._nodes[at, layout.SHOWN, : count - 1].tolist()
            proposals = {(node, self._source): rows[row] for node, row in enumerate(shown)}
        return DraftTree.chain(sequence.root, tokens, self._source, kind, held, proposals)

    def _order(self, places: list[int], worths: list[float], limit: int) -> list[int]:
        """The nodes below the root in the tree's order: by place in the shape; without a shape, the `limit` worthiest first."""
        below = range(1, len(places))
        if self._growth.shape is not None:
            return sorted(below, key=places.__getitem__)
        return sorted(below, key=lambda node: -worths[node])[:limit]

    def _tree(
        self,
        sequence: Sequence,
        kind: Proposal,
        nodes: list[list[int]],
        held: list[float],
        order: list[int],
        rows: Many[torch.Tensor],
    ) -> DraftTree:
        tokens, parents, shown = (nodes[field] for field in (layout.TOKEN, layout.PARENT, layout.SHOWN))
        places = {0: 0, **{node: place for place, node in enumerate(order, 1)}}
        inner = dict.fromkeys(parents[node] for node in order) if kind.drawn else ()
        return DraftTree.grown(
            self._source,
            [sequence.root, *[tokens[node] for node in order]],
            [-1, *[places[parents[node]] for node in order]],
            [1.0, *[held[node] for node in order]],
            kind,
            {(places[node], self._source): rows[shown[node]] for node in inner},
        )


def _fed_path(nodes: list[list[int]], order: list[int]) -> list[int]:
    """Slots of the fed nodes on the path of first children, from below the root down."""
    spots, path, node = nodes[layout.SPOT], list[int](), 0
    first: dict[int, int] = {}
    for child in order:
        first.setdefault(nodes[layout.PARENT][child], child)
    while (node := first.get(node, 0)) and spots[node] >= 0:
        path.append(spots[node])
    return path
