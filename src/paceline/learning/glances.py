"""Glances: thinking about drafts now and then, while nobody is asked for any."""

from __future__ import annotations

_CALMING = 2
"""Steps for which nobody was asked for a draft, after which the next is calm."""
_OF = 8
"""Of so many calm ones in a row drafts are thought about in the first, or where there is another request, and the last is learnt
from, and so is the middle one, for often another request comes before."""
_SOME = 4
"""In a crowd one in so many of its requests must be another: with short answers hardly a step goes by in which none begins."""


class Glances:
    """resting: whether nothing is thought about in this step, as nobody was asked for a while."""

    def __init__(self) -> None:
        self.resting = False
        self._passed = self._unasked = 0
        """Steps from the last in which drafts were thought about to this one, both counted; those in a row in which nobody was
        asked."""
        self._newest = -1
        """The last request in the batch when drafts were thought about."""

    @property
    def last(self) -> bool:
        """Whether drafts are thought about in the next step."""
        return self._passed == _OF

    @property
    def telling(self) -> bool:
        """Whether this step is learnt from, in which nothing is thought about."""
        return self.last or self._passed == _OF // 2

    def begin(self) -> None:
        """A step begins; drafts are thought about unless `rests` is asked."""
        self.resting = False

    def rests(self, newest: int, requests: int) -> bool:
        """Whether nothing need be thought about in this step. newest: the number of the last request in the batch. requests:
        how many there are."""
        if self._unasked <= _CALMING or self.last or abs(newest - self._newest) > requests // _SOME:
            self._passed, self._newest = 0, newest
        self._passed += 1
        self.resting = self._passed > 1
        return self.resting

    def saw(self, asked: bool) -> None:
        """A step ended in which somebody was asked, or nobody."""
        self._unasked = 0 if asked else self._unasked + 1
