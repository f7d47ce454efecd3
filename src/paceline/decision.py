"""Decision: how deep one costly drafter goes, and for whom. It stands for a while, since deciding takes time too.

Beside what look-ups found other drafts are worth it than alone, so each such situation has a decision of its own: for one
sequence what was found is told by about how many tokens are expected of it, in a batch only that something was.

That nobody asks stands longer each time, while the batch is about as large: what is learnt meanwhile is little. Beside a look-up
asking is worth less, so what nobody is worth alone nobody is worth there. A draft for some stands for a few steps, while the batch
is the same; but not beside what look-ups found in a batch, which is another thing each time. What was decided beside a prompt
stands for that step alone.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from math import inf, log2

from paceline.sequence import Sequence
from paceline.tree import DraftTree

_LONGEST_REST = 16
"""Steps for which the decision that nobody asks may stand."""
_FIRST_REST, _FIRST_REST_BESIDE = 1, 4
"""For which it stands at first, alone and beside what a look-up found, where less is lost by not asking."""
_REPEATED = 7
"""Further steps in which what was granted once is granted again."""
_SHRUNK = 0.75
"""Share of a batch that must be left, for what nobody was worth in it to be held worth it by nobody still."""
_CLASSES_PER_DOUBLING = 2
"""Of the tokens that are expected of what was found."""

Found = tuple[int, ...]
"""What look-ups found, as far as decisions differ by it."""
ALONE: Found = ()
_SOMETHING: Found = (0,)


def found_in(trees: Many[DraftTree]) -> Found:
    """What is found in the trees of a batch; their confidences are probabilities."""
    if len(trees) == 1:
        tree = trees[0]
        return (int(_CLASSES_PER_DOUBLING * log2(sum(tree.chances))) + 1,) if len(tree) > 1 else ALONE
    return _SOMETHING if any(len(tree) > 1 for tree in trees) else ALONE


@dataclass(frozen=True)
class Decision:
    """depth: in levels, 0 for none. chosen: places in the batch of the sequences that are drafted for. least: where their drafts
    end before (`stopping`). draft_s: seconds that they are expected to take. pays: how likely the first and the last node of a
    chain that was drafted for one sequence alone must come true for all of it to be worth its rows."""

    depth: int = 0
    chosen: Many[int] = ()
    least: Many[float] = ()
    draft_s: float = 0.0
    pays: tuple[float, float] = (inf, inf)


@dataclass(frozen=True)
class _Held:
    """until: the last step in which it stands. rest: steps for which it was to, if nobody asks."""

    decision: Decision
    keys: list[int]
    until: int
    rest: int

    def suits(self, sequences: Many[Sequence], reads: bool) -> bool:
        """Whether it is still about this batch."""
        if not self.decision.chosen:
            return len(sequences) > _SHRUNK * len(self.keys)
        return not reads and [sequence.key for sequence in sequences] == self.keys


class Decisions:
    """Those on one drafter that still stand; whoever asks for one asks once a step."""

    def __init__(self) -> None:
        self._step = 0
        self._held: dict[Found, _Held] = {}

    def standing(self, sequences: Many[Sequence], found: Found, reads: bool) -> Decision | None:
        """What is decided for this batch, if that still stands. reads: whether a prompt is read."""
        self._step += 1
        held = self._held.get(found)
        if held is None or held.until < self._step or not held.suits(sequences, reads):
            held = self._held.get(ALONE)
            if held is None or held.decision.chosen or held.until < self._step or not held.suits(sequences, reads):
                return None
        return held.decision

    def take(self, decision: Decision, sequences: Many[Sequence], found: Found, reads: bool) -> None:
        """Decide anew, in the step in which nothing stood."""
        before = self._held.get(found)
        steps, rest = 0, 0
        if not decision.chosen:
            rest = before.rest if before else 0
            if not reads:
                steps = rest = min(max(2 * rest, _FIRST_REST_BESIDE if found else _FIRST_REST), _LONGEST_REST)
        elif not reads and found != _SOMETHING:
            steps = _REPEATED
        self._held[found] = _Held(decision, [sequence.key for sequence in sequences], self._step + steps, rest)
