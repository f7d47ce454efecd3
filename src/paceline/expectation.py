"""Expectation: how much of what drafts were expected to bring came true of late.

Each node's chance is estimated well, but what is drafted is what looked best, and what looks best of many is on the whole less
good than it looks (the optimizer's curse: Smith and Winkler, Management Science 52, 2006). The share that came true corrects it.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

from paceline.step import Verdict
from paceline.tree import DraftTree

_RECENT = 0.98
"""What a step leaves of the steps before: some fifty count."""
_FORGIVEN = 0.995
"""What a step without drafts leaves of them: so that what was given up because of it is tried again."""
_DOUBT = 4.0
"""Tokens that must have been expected before it is held that too much is."""


class Expectation:
    def __init__(self) -> None:
        self._hits = self._expected = 0.0

    @property
    def truth(self) -> float:
        """The share, at most 1."""
        return min((self._hits + _DOUBT) / (self._expected + _DOUBT), 1.0)

    def observe(self, trees: Many[DraftTree], verdicts: Many[Verdict]) -> None:
        """See what came of what the target looked at, in a step of decoding."""
        drafted = any(len(tree) > 1 for tree in trees)
        fading = _RECENT if drafted else _FORGIVEN
        self._hits, self._expected = fading * self._hits, fading * self._expected
        if drafted:
            self._expected += sum(sum(tree.chances) - 1.0 for tree in trees)
            self._hits += sum(verdict.accepted for verdict in verdicts)
