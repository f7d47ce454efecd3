"""Chains that compiled code drafts for all sequences of a batch in one call: what it is told, and what becomes of its choices."""

from __future__ import annotations

from collections.abc import Sequence as Many
from itertools import chain, repeat
from typing import Any

import numpy as np
import torch

from paceline.kernels.choices.distributions import distribution
from paceline.kernels.choices.shapes import shape_of
from paceline.kernels.native import layout
from paceline.models.native_drafts import DraftJob, drawn_from
from paceline.noise import key, stream
from paceline.params import SamplingParams
from paceline.sampling import Context
from paceline.sequence import Sequence
from paceline.tree import Budget, DraftTree, Proposal

_ARRAYS = (
    "owners", "depths", "floors", "chances", "odds", "reaches", "least", "temperatures", "top_ks", "top_ps", "log_min_ps",
    "seeds", "positions", "shapes", "keys", "chosen", "confidences",
)  # fmt: skip
_LIMITS = "owners", "depths", "floors", "odds", "reaches", "chances", "least"
_ASKED = "sequences", "deepest", "vocabulary", "logits_width", "level_bytes", "choice"
_CHOICES = {kind: layout.DRAWN if kind.drawn else layout.LIKELIEST for kind in Proposal} | {Proposal.COUPLED: layout.COUPLED}


def is_compiled(params: SamplingParams, kind: Proposal) -> bool:
    """Whether a token can be chosen in compiled code: under a grammar none is, and none where a rule asks what is left by a
    top-k that is larger than compiled code finds."""
    return params.grammar is None and not (kind.drawn and params.top_k > layout.MOST_KEPT)


def _told_cuts(params: SamplingParams) -> tuple[int, float, float]:
    """Which tokens are left out: top-k, top-p and the logarithm of min-p. A draft may know nothing of a large top-k."""
    return params.top_k if params.top_k <= layout.MOST_KEPT else 0, params.top_p, params.log_min_p


def _first_position(sequence: Sequence) -> int:
    """Of what is drafted."""
    return len(sequence.tokens)


class Chains(DraftJob):
    """The arrays stay where they are, as those of a step do."""

    def __init__(self, call: int, step: int, known: int) -> None:
        super().__init__(layout.DRAFT, call, step, known)
        self._sequences = self._levels = 0
        self._asked: tuple[int, ...] = ()
        self._table: tuple[np.ndarray | None, int] = None, 0
        """The table of chances that was told last, and its address."""

    def lay(self, live: Many[tuple[Sequence, Budget]], kind: Proposal, source: str, vocab_size: int, width: int) -> int:
        """Tell what is to be drafted, a chain as deep as its budget for each sequence; how many rows of logits are written.

        vocab_size: the target's. width: numbers to a row of logits.
        """
        count, deepest = len(live), max(budget.depth for _, budget in live)
        if count > self._sequences or count * deepest > self._levels:
            self._grow(count, count * deepest)
        self._live, self._kind, self._source, self._vocab_size = live, kind, source, vocab_size
        self._deepest, level_bytes = deepest, 4 * count * width if kind.drawn else 0
        asked = count, deepest, min(self._known, vocab_size), width, level_bytes, _CHOICES[kind]
        # nearly always as in the draft before
        if asked != self._asked:
            self._asked = ()
            for name, value in zip(_ASKED, asked, strict=True):
                self._job[name] = value
            self._asked = asked
        sequences = [sequence for sequence, _ in live]
        self._tell_of(sequences)
        self._limit(live)
        self._shape(sequences)
        self._chosen[: count * deepest] = -1
        if kind is Proposal.COUPLED:
            for place, sequence in enumerate(sequences):
                self._positions[place] = _first_position(sequence)
        elif kind.drawn:
            for place, (sequence, budget) in enumerate(live):
                begin, text = place * deepest, len(sequence.tokens)
                # the draft's own stream for a node, as `draws.siblings` has it
                self._keys[begin : begin + budget.depth] = [
                    key(stream(sequence.seed, source, level), text) for level in range(budget.depth)
                ]
        return count * deepest if kind.drawn else count

    def _tell(self, sequences: list[Sequence]) -> None:
        super()._tell(sequences)
        count, cuts = len(sequences), [_told_cuts(sequence.params) for sequence in sequences]
        self._top_ks[:count], self._top_ps[:count], self._log_min_ps[:count] = zip(*cuts, strict=True)

    def _limit(self, live: Many[tuple[Sequence, Budget]]) -> None:
        """Tell how deep each draft goes, and where it ends before."""
        owners, depths, floors, odds, reaches, chances, least = self._limits
        for place, (_, budget) in enumerate(live):
            # compiled code moves these up as drafts end
            owners[place], depths[place], floors[place], reaches[place] = place, budget.depth, budget.floor, 1.0
            rule = budget.stopping
            chances[place] = self._table_at(rule.chances) if rule else 0
            if rule:
                begin, odds[place] = place * self._deepest, rule.odds
                for level, one in zip(range(self._deepest), chain(rule.least, repeat(0.0))):  # noqa: B905 one has no end
                    least[begin + level] = one

    def _table_at(self, table: np.ndarray) -> int:
        """The address of a table of chances: each drafter has one for good."""
        if table is not self._table[0]:
            self._table = table, table.ctypes.data
        return self._table[1]

    def _shape(self, sequences: list[Sequence]) -> None:
        """Tell what shapes the logits of each sequence."""
        self._shaped = [shape_of(sequence) for sequence in sequences if sequence.shapes_logits]
        shaped = iter(self._shaped)
        for place, sequence in enumerate(sequences):
            self._shapes[place] = next(shaped).buffer_info()[0] if sequence.shapes_logits else 0

    def _grow(self, sequences: int, levels: int) -> None:
        sequences, levels = max(sequences, 2 * self._sequences), max(levels, 2 * self._levels)
        # none until all are there: whoever is interrupted in between begins anew
        self._sequences = self._levels = 0
        self._told = []
        self._owners, self._depths = np.zeros(sequences, np.int64), np.zeros(sequences, np.int64)
        self._floors, self._temperatures = np.zeros(sequences, np.float32), np.zeros(sequences, np.float32)
        self._top_ks = np.zeros(sequences, np.int64)
        self._top_ps, self._log_min_ps = np.ones(sequences), np.zeros(sequences, np.float32)
        self._seeds, self._positions = np.zeros(sequences, np.int64), np.zeros(sequences, np.int64)
        self._shapes = np.zeros(sequences, np.int64)
        self._odds, self._reaches = np.ones(sequences, np.float32), np.ones(sequences, np.float32)
        self._chances, self._least = np.zeros(sequences, np.int64), np.zeros(levels, np.float32)
        self._keys, self._chosen = np.zeros(levels, np.uint64), np.zeros(levels, np.int64)
        self._confidences = np.zeros(levels, np.float32)
        for name in _ARRAYS:
            self._job[name] = getattr(self, f"_{name}").ctypes.data
        # a number is written into a view in a tenth of the time that numpy takes for a slice
        self._limits: list[memoryview[Any]] = [memoryview(getattr(self, f"_{name}")) for name in _LIMITS]
        self._sequences, self._levels = sequences, levels

    def trees(self, logits: torch.Tensor) -> list[DraftTree]:
        """What was drafted: a chain of `depth` tokens for each sequence, fewer behind doubt or what is no number.

        logits: float32 [rows, V], read where tokens are drawn: a level's first rows are those of the sequences that came so far.
        """
        deepest, size = self._deepest, len(self._live)
        chosen, confidences = self._chosen[: size * deepest].tolist(), self._confidences[: size * deepest].tolist()
        found, came = [], [0] * deepest
        for place, ((sequence, _), asked) in enumerate(zip(self._live, self._depths[:size].tolist(), strict=True)):
            begin, rows = place * deepest, list[torch.Tensor]()
            # what is no number ends a draft before its token
            count = asked - (chosen[begin + asked - 1] < 0)
            if self._kind.drawn:
                rows = [logits[level * size + came[level]] for level in range(count)]
                came[:asked] = [before + 1 for before in came[:asked]]
            found.append(self._tree(sequence, chosen[begin : begin + count], confidences[begin : begin + count], rows))
        return found

    def _tree(self, sequence: Sequence, tokens: list[int], held: list[float], rows: list[torch.Tensor]) -> DraftTree:
        temperature, kind = sequence.params.temperature, self._kind
        if temperature == 0.0:
            kind, rows = Proposal.POINT, []
        if not tokens:
            return DraftTree.root(sequence.root)
        proposals = {}
        if rows:
            probs = self._drawn_from(sequence, rows)
            tokens, held = tokens[: len(probs)], held[: len(probs)]
            if not tokens:
                return DraftTree.root(sequence.root)
            proposals = {(level, self._source): row for level, row in enumerate(probs)}
        return DraftTree.chain(sequence.root, tokens, self._source, kind, held, proposals)

    def _drawn_from(self, sequence: Sequence, rows: list[torch.Tensor]) -> torch.Tensor:
        """float32 [levels, V of the target]: what tokens were drawn from. rows: float32 [V], which compiled code has shaped."""
        params, known = sequence.params, min(self._known, self._vocab_size)
        if not params.cuts:
            probs = drawn_from(np.stack([row.numpy()[:known] for row in rows]), params.temperature, self._vocab_size)
            # numbers to choose by beside one that is none make no distribution: that ends the draft before its token
            return probs[: int((probs[:, 0] >= 0.0).cumprod(0).sum())]
        probs = np.zeros((len(rows), self._vocab_size), np.float32)
        for level, row in enumerate(rows):
            probs[level, :known] = distribution(row[:known], Context(sequence), shapes=False)
        return torch.from_numpy(probs)
