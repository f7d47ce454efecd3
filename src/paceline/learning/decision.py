"""Decision: how deep one costly drafter goes, and for whom. It stands for a while, since deciding takes time too.

Beside what look-ups found other drafts are worth it than alone, and beside prompts that are read others than without, so each
such situation has a decision of its own. Prompts are told by about how much of them is read. For one sequence what was found is
told by about how many tokens are expected of it, and the drafter by how much of the text it lacks; in a batch, where that is
another thing each time, only whether anything is found.

What is decided as it was before stands longer each time: what is learnt meanwhile is little. That nobody asks does so until the
batch has shrunk; and the more look-ups find, or is to be read first, the less asking is worth, so what nobody is worth beside
less nobody is worth beside more. A draft for all stands while the batch is as large, one for some while it is the same. Beside
what is found in a batch it stands only where it is for all, or for those without a find, whoever they are in a later step.
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
"""Further steps for which the decision that nobody asks stands, at first and at most: alone, and beside what a look-up found,
where less is lost by not asking, and each kind of find is met but now and then."""
_REPEATED, _REPEATED_READING = (15, 60), (64, 64)
"""The same of what was granted once and is granted again: not for long at first, since it says where drafts end, which was learnt
of few. Beside a prompt, which comes once a request."""
_REPEATED_BESIDE = (4, 16)
"""The same beside what is found in a batch."""
_SHRUNK = 0.75
"""Share of a batch that must be left, for what nobody was worth in it to be held worth it by nobody still."""
_CLASSES_PER_DOUBLING = 2
"""Of the tokens that are expected of what was found."""
_NEXT_TO_NOTHING = 16
"""Tokens."""
_SOMETHING = -1


class Situation(NamedTuple):
    """What a draft is made beside. found: 0 where look-ups found nothing. read: 0 where no prompt is read. lacking: how much the
    drafter would have to read first, 0 for next to nothing. begins: whether it begins an answer."""

    found: int = 0
    read: int = 0
    lacking: int = 0
    begins: bool = False

    @property
    def repeats(self) -> bool:
        """Whether it says enough for what is decided in it to be right when it comes again."""
        return _SOMETHING not in self


ALONE = Situation()


def situation_of(trees: Many[DraftTree], read_rows: int, lacking: int = 0, begins: bool = False) -> Situation:
    """trees: what look-ups found, their confidences being probabilities. read_rows: those of prompts in the step. For one
    sequence, lacking: tokens of its text that the drafter has not read; begins: whether nothing of its answer is written."""
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
    """depth: in levels, 0 for none. chosen: places in the batch of the sequences that are drafted for. least: where their drafts
    end before (`stopping`). draft_s: seconds that they are expected to take. pays: how likely the first node of a chain that was
    drafted for one sequence alone, and any further one, must come true to be worth its row. drafted: levels that one of their
    drafts is expected to have."""

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
    """until: the last step in which it stands. steps: those for which it was to. without: whether it is for those without a find,
    in a batch where others have one."""

    decision: Decision
    keys: list[int]
    until: int
    steps: int
    without: bool

    def of(self, sequences: Many[Sequence], unfound: Many[int]) -> Decision | None:
        """The decision for these sequences, if it is still about them, in whatever order they stand now. unfound: as below."""
        if not self.decision.chosen:
            return self.decision if len(sequences) > _SHRUNK * len(self.keys) else None
        if len(self.decision.chosen) == len(self.keys):
            # of all of them little is known that is not known of others
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


class Decisions:
    """Those on one drafter that still stand. now: the step in which they were asked about last."""

    def __init__(self) -> None:
        self.now = 0
        self._held: dict[Situation, _Held] = {}
        self._rest: _Held | None = None

    def resting(self, sequences: Many[Sequence], now: int) -> bool:
        """They are asked about in step `now`. Whether nobody was worth asking where nothing was found and no prompt read: then
        nobody is, whatever is found or read, but for an answer that begins."""
        self.now = now
        return self._stands(self._rest, sequences) is not None

    def standing(self, sequences: Many[Sequence], situation: Situation, unfound: Many[int] = ()) -> Decision | None:
        """What is decided for this batch, if that still stands. unfound: places of those without a find, in a batch where others
        have one."""
        if decision := self._stands(self._held.get(situation), sequences, unfound):
            return decision
        # what nobody is worth beside less found, or with less to read first, nobody is worth here
        found, read, lacking, begins = situation
        for less in range(found, -1, -1) if situation.repeats else (0,):
            for known in (lacking, 0) if lacking else (0,):
                decision = self._stands(self._held.get(Situation(less, read, known, begins)), sequences)
                if decision is not None and not decision.chosen:
                    return decision
        return None

    def latest(self, sequences: Many[Sequence], situation: Situation) -> Decision:
        """What was decided last, if it is about this batch, whether it still stands or not; that nobody asks, if nothing was."""
        held = self._held.get(situation)
        return (held.of(sequences, ()) if held is not None else None) or NOBODY

    def _stands(self, held: _Held | None, sequences: Many[Sequence], unfound: Many[int] = ()) -> Decision | None:
        return held.of(sequences, unfound) if held is not None and held.until >= self.now else None

    def take(
        self, decision: Decision, sequences: Many[Sequence], situation: Situation, unfound: Many[int] = (), apart: int = 1
    ) -> None:
        """Decide anew, in the step in which nothing stood. unfound: as above. apart: steps from one that is learnt from to the
        next."""
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
        # what is granted stands the longer the less is learnt
        until = self.now + steps * (apart if chosen else 1)
        held = _Held(decision, [sequence.key for sequence in sequences], until, steps, without)
        self._held[situation] = held
        if situation == ALONE:
            self._rest = held if not decision.chosen else None
