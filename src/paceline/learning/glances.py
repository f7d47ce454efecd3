"""Glances: thinking about drafts now and then, while nobody is asked for any."""

from __future__ import annotations

_CALMING = 2
"""Steps for which nobody was asked for a draft, after which the next is calm."""
_OF = 8
"""Of so many calm ones in a row drafts are thought about in the first, or where there is another request, and the last is learnt
from."""
_SOME = 4
"""In a crowd one in so many of its requests must be another: with short answers hardly a step goes by in which none begins."""


class Glances:
    """resting: whether nothing is thought about in this step. passed: steps from the last in which it was to this one, both
    counted."""

    def __init__(self) -> None:
        self.resting, self.passed = False, 0
        self._unasked, self._newest = 0, -1
        """Steps in a row in which nobody was asked; the last request in the batch when drafts were thought about."""

    @property
    def calm(self) -> bool:
        """Whether nobody was asked for a while, and nothing is thought about either."""
        return self.resting and self._unasked > _CALMING

    @property
    def last(self) -> bool:
        """Whether drafts are thought about in the next step."""
        return self.passed == _OF

    def begin(self) -> None:
        """A step begins; drafts are thought about unless `rests` is asked."""
        self.resting = False

    def rests(self, newest: int, requests: int) -> bool:
        """Whether nothing need be thought about in this step. newest: the number of the last request in the batch. requests:
        how many there are."""
        if self._unasked <= _CALMING or self.last or newest > self._newest + requests // _SOME:
            self.passed, self._newest = 0, newest
        self.passed += 1
        self.resting = self.passed > 1
        return self.resting

    def saw(self, asked: bool) -> None:
        """A step ended in which somebody was asked, or nobody."""
        self._unasked = 0 if asked else self._unasked + 1
