"""Reconsideration: decides in which steps drafting is reconsidered while no drafter has been worth asking.

To consider every drafter in every step takes time even if none is asked. So after a few steps without any, only one step in eight
considers them, and a step in which the batch has new requests.
"""

from __future__ import annotations

_CALMING = 2
"""Steps without any drafter asked after which the next step may skip the decision."""
_OF = 8
"""Steps from one reconsideration to the next. Of those that skip it, the last is learnt from, and so is the middle one, as a new
request often comes before the last."""
_SOME = 4
"""In a batch, one in so many requests must be new for drafting to be reconsidered at once: with short answers nearly every step
has a new one."""


class Reconsideration:
    """skipping: whether this step asks no drafter, without considering any."""

    def __init__(self) -> None:
        self.skipping = False
        self._passed = self._unasked = 0
        """Steps since the last reconsideration, that step included; steps in a row in which no drafter was asked."""
        self._newest = -1
        """Key of the newest request of the batch at the last reconsideration."""

    @property
    def last(self) -> bool:
        """Whether this is the last step before the next reconsideration."""
        return self._passed == _OF

    @property
    def observed(self) -> bool:
        """Whether this step, which skips the decision, is learnt from."""
        return self.last or self._passed == _OF // 2

    def begin(self) -> None:
        """A step begins. Drafters are considered in it unless `skips` says otherwise."""
        self.skipping = False

    def skips(self, newest: int, requests: int) -> bool:
        """Whether this step asks no drafter, without considering any.

        newest: key of the newest request in the batch. requests: how many there are.
        """
        if self._unasked <= _CALMING or self.last or abs(newest - self._newest) > requests // _SOME:
            self._passed, self._newest = 0, newest
        self._passed += 1
        self.skipping = self._passed > 1
        return self.skipping

    def saw(self, asked: bool) -> None:
        """A step ended. asked: whether a drafter was asked in it."""
        self._unasked = 0 if asked else self._unasked + 1
