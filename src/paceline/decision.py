"""Decision: how deep one costly drafter goes, and for whom. It stands for a while, since deciding takes time too.

That nobody asks it stands longer each time, while the batch is about as large: what is learnt meanwhile is little. A draft for
some stands for a few steps, while the batch is the same. Neither outlives what is out of the ordinary: a look-up that found
something, or a prompt that is read beside it.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

from paceline.sequence import Sequence

_LONGEST_REST = 16
"""Steps for which the decision that nobody asks may stand."""
_REPEATED = 3
"""Further steps in which what was granted once is granted again."""
_SHRUNK = 0.75
"""Share of a batch that must be left, for what nobody was worth in it to be held worth it by nobody still."""


@dataclass
class Decision:
    """depth: in levels, 0 for none. chosen: places in the batch of the sequences that are drafted for."""

    depth: int = 0
    chosen: Many[int] = ()
    _keys: Many[int] = ()
    _left: int = 0
    _rest: int = 0

    def stands(self, sequences: Many[Sequence], odd: bool) -> bool:
        """Whether it is still the decision for this batch. odd: whether this step is out of the ordinary."""
        self._left -= 1
        if self._left < 0:
            return False
        if not self.chosen:
            return len(sequences) > _SHRUNK * len(self._keys)
        return not odd and [sequence.key for sequence in sequences] == self._keys

    def take(self, depth: int, chosen: Many[int], sequences: Many[Sequence], odd: bool) -> None:
        """Decide anew."""
        self.depth, self.chosen = depth, chosen
        self._keys = [sequence.key for sequence in sequences]
        if odd:
            self._left = 0
        elif chosen:
            self._left, self._rest = _REPEATED, 0
        else:
            self._rest = min(self._rest + 1, _LONGEST_REST)
            self._left = self._rest
