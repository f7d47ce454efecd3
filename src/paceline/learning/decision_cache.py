"""DecisionCache: remembers per drafter how deep it drafts and for which sequences, for some steps, as deciding takes time.

Drafts that are worth their time in one situation are not in another: a lookup may have found something, or the step may read
prompts. So every situation has an entry of its own. Prompts are classified by about how many of their tokens are read. For a
single sequence, finds are classified by about how many tokens are expected of them, and drafters by how much of the text they
have yet to read. In a batch, where that changes in every step, it only counts whether anything was found.

- An entry that is renewed with the same depth is kept longer each time, as little was learnt meanwhile.
- The decision that nobody drafts holds until the batch has shrunk. The more lookups find or the drafter has to read first, the
  less a draft is worth; so it also holds in situations with more of both.
- A draft for the whole batch holds while the batch has the same size, a draft for some while it has the same sequences.
- Where something was found in a batch, a decision is kept only if it is for all sequences, or for exactly those without a find,
  whichever they are in a later step.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from math import inf, log2
from typing import NamedTuple

from paceline.learning.draft_curve import bucket
from paceline.sequence import Sequence
from paceline.tree import DraftTree

_RESTS, _RESTS_BESIDE = (1, 32), (8, 128)
"""Further steps for which the decision that nobody drafts is kept, at first and at most: where no lookup found anything, and
where one did, where less is lost by not drafting and each kind of find is rare."""
_REPEATED, _REPEATED_READING = (15, 60), (64, 64)
"""Further steps for which a granted draft is kept, at first and at most: not for long at first, as it also says where drafts end,
which few drafts have shown; and in steps that read prompts."""
_REPEATED_BESIDE = (4, 16)
"""Further steps for which a granted draft is kept in a batch where something was found, at first and at most."""
_SHRUNK = 0.75
"""The decision that nobody drafts holds while more than this share of the batch is left."""
_CLASSES_PER_DOUBLING = 2
"""Classes of finds per doubling of their expected tokens."""
_NEXT_TO_NOTHING = 16
"""Tokens that are classified as none."""
_SOMETHING = -1
"""Class of finds in a batch."""


class Situation(NamedTuple):
    """Classes of what a draft depends on. found: of what lookups found, 0 for nothing. read: of prompt tokens in the step, 0 for
    none. lacking: of tokens that the drafter has to read first, 0 for next to none. begins: whether it begins an answer."""

    found: int = 0
    read: int = 0
    lacking: int = 0
    begins: bool = False

    @property
    def repeats(self) -> bool:
        """Whether it is specific enough for a decision to be right the next time it comes up."""
        return _SOMETHING not in self


ALONE = Situation()


def situation_of(trees: Many[DraftTree], read_rows: int, lacking: int = 0, begins: bool = False) -> Situation:
    """The situation of a step.

    trees: what lookups found, with probabilities as confidences. read_rows: prompt rows of the step. For a single sequence,
    lacking: tokens of its text that the drafter has not read; begins: whether its answer has no token yet.
    """
    read = _about(read_rows)
    if len(trees) == 1:
        tree = trees[0]
        found = int(_CLASSES_PER_DOUBLING * log2(sum(tree.chances))) + 1 if len(tree) > 1 else 0
        return Situation(found, read, _about(lacking), begins)
    return Situation(_SOMETHING if any(len(tree) > 1 for tree in trees) else 0, read)


def _about(tokens: int) -> int:
    return bucket(tokens) if tokens > _NEXT_TO_NOTHING else 0


@dataclass(frozen=True)
class Decision:
    """How deep a drafter drafts and for whom.

    depth: in levels, 0 for none. chosen: indices in the batch of the sequences that are drafted for. least: per level, the path
    probability below which a draft ends (`stopping`). draft_s: expected seconds of the drafter. pays: for a chain of a single
    sequence, the probabilities from which its first node, and any further one, is worth its row. drafted: expected levels.
    """

    depth: int = 0
    chosen: Many[int] = ()
    least: Many[float] = ()
    draft_s: float = 0.0
    pays: tuple[float, float] = (inf, inf)
    drafted: float = 0.0


NOBODY = Decision()
"""Nobody is drafted for."""


@dataclass(frozen=True)
class _Held:
    """A cached decision. keys: of the batch. until: the last step in which it is valid. steps: for how many it was to be.
    without: whether it is for exactly the sequences without a find."""

    decision: Decision
    keys: list[int]
    until: int
    steps: int
    without: bool

    def of(self, sequences: Many[Sequence], unfound: Many[int]) -> Decision | None:
        """The decision for these sequences in their present order, or None where it does not apply. unfound: as in `get`."""
        if not self.decision.chosen:
            return self.decision if len(sequences) > _SHRUNK * len(self.keys) else None
        if len(self.decision.chosen) == len(self.keys):
            # a decision for all of a batch depends little on which sequences they are
            return self.decision if len(sequences) == len(self.keys) else None
        if self.without:
            same = len(sequences) == len(self.keys) and unfound
            return replace(self.decision, chosen=unfound) if same else None
        keys = [sequence.key for sequence in sequences]
        if keys == self.keys:
            return self.decision
        if len(keys) != len(self.keys) or set(keys) != set(self.keys):
            return None
        return replace(self.decision, chosen=[keys.index(self.keys[at]) for at in self.decision.chosen])


class DecisionCache:
    """The decisions on one drafter. now: the step that `declined` was last called for."""

    def __init__(self) -> None:
        self.now = 0
        self._held: dict[Situation, _Held] = {}
        self._declined: _Held | None = None

    def declined(self, sequences: Many[Sequence], now: int) -> bool:
        """Begin step `now`. Returns whether it is known that nobody drafts even where nothing was found and no prompt is read.

        Then nobody drafts in any situation, except at the beginning of an answer.
        """
        self.now = now
        return self._stands(self._declined, sequences) is not None

    def get(self, sequences: Many[Sequence], situation: Situation, unfound: Many[int] = ()) -> Decision | None:
        """The decision for this batch, or None where it must be made anew.

        unfound: indices of the sequences without a find, in a batch where others have one.
        """
        if decision := self._stands(self._held.get(situation), sequences, unfound):
            return decision
        # where nobody drafts with less found, or with less to read first, nobody drafts here
        found, read, lacking, begins = situation
        for less in range(found, -1, -1) if situation.repeats else (0,):
            for known in (lacking, 0) if lacking else (0,):
                decision = self._stands(self._held.get(Situation(less, read, known, begins)), sequences)
                if decision is not None and not decision.chosen:
                    return decision
        return None

    def latest(self, sequences: Many[Sequence], situation: Situation) -> Decision:
        """The last decision that applies to this batch, expired or not; NOBODY where there is none."""
        held = self._held.get(situation)
        return (held.of(sequences, ()) if held is not None else None) or NOBODY

    def _stands(self, held: _Held | None, sequences: Many[Sequence], unfound: Many[int] = ()) -> Decision | None:
        return held.of(sequences, unfound) if held is not None and held.until >= self.now else None

    def put(
        self, decision: Decision, sequences: Many[Sequence], situation: Situation, unfound: Many[int] = (), apart: int = 1
    ) -> None:
        """Store a new decision. unfound: as in `get`. apart: mean number of steps from one that is learnt from to the next."""
        before, chosen = self._held.get(situation), len(decision.chosen)
        without = sorted(decision.chosen) == [*unfound]
        if situation.read and situation.repeats:
            steps, most = _REPEATED_READING
        elif not chosen:
            steps, most = _RESTS_BESIDE if situation.found else _RESTS
        elif situation.repeats:
            steps, most = _REPEATED
        else:
            steps, most = _REPEATED_BESIDE if without or chosen == len(sequences) else (0, 0)
        if before is not None and before.decision.depth == decision.depth:
            steps = min(max(2 * before.steps, steps), most)
        # a granted draft is kept the longer, the less is learnt
        until = self.now + steps * (apart if chosen else 1)
        held = _Held(decision, [sequence.key for sequence in sequences], until, steps, without)
        self._held[situation] = held
        if situation == ALONE:
            self._declined = held if not decision.chosen else None
