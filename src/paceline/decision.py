"""Decision: how deep one costly drafter goes, and for whom. It stands for a while, since deciding takes time too.

That nobody asks it stands longer each time, while the batch is about as large: what is learnt meanwhile is little. Where that
was decided beside what a look-up found, which makes asking worth less, it stands while look-ups find something. A draft for some
stands for a few steps, while the batch is the same and no look-up finds anything. What was decided beside a prompt stands for
that step alone.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

from paceline.sequence import Sequence

_LONGEST_REST = 16
"""Steps for which the decision that nobody asks may stand."""
_REPEATED = 7
"""Further steps in which what was granted once is granted again."""
_SHRUNK = 0.75
"""Share of a batch that must be left, for what nobody was worth in it to be held worth it by nobody still."""


@dataclass
class Decision:
    """depth: in levels, 0 for none. chosen: places in the batch of the sequences that are drafted for. least: where their drafts
    end before (`stopping`). draft_s: seconds that they are expected to take."""

    depth: int = 0
    chosen: Many[int] = ()
    least: Many[float] = ()
    draft_s: float = 0.0
    _keys: Many[int] = ()
    _beside: bool = False
    _left: int = 0
    _rest: int = 0

    def stands(self, sequences: Many[Sequence], found: bool, reads: bool) -> bool:
        """Whether it is still the decision for this batch. found: whether look-ups found something; reads: whether a prompt is
        read."""
        self._left -= 1
        if self._left < 0:
            return False
        if not self.chosen:
            return (found or not self._beside) and len(sequences) > _SHRUNK * len(self._keys)
        return not found and not reads and [sequence.key for sequence in sequences] == self._keys

    def take(self, depth: int, chosen: Many[int], sequences: Many[Sequence], found: bool, reads: bool) -> None:
        """Decide anew."""
        self.depth, self.chosen = depth, chosen
        self._keys, self._beside = [sequence.key for sequence in sequences], found
        if reads:
            self._left = 0
        elif chosen:
            self._left, self._rest = 0 if found else _REPEATED, 0
        else:
            self._rest = min(max(2 * self._rest, 1), _LONGEST_REST)
            self._left = self._rest
