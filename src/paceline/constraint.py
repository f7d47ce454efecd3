"""Constraint: which tokens an answer may contain, position by position; implemented where grammars are compiled."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class GrammarError(Exception):
    """A grammar that cannot be used; the message is one sentence for the user."""


class GrammarsBusy(GrammarError):
    """A grammar that cannot be compiled now, since earlier ones that take too long still are; it may be possible later."""


class Constraint(Protocol):
    """The state of one sequence's grammar. It has read the generated tokens that were committed, and no others.

    Its results for a draft depend only on the committed tokens and the draft's tokens, not on other calls, except where a result
    is not available now (`checked`).
    """

    def allowed(self, ancestors: tuple[int, ...]) -> np.ndarray:
        """bool [V], read-only: which tokens may follow the committed ones and then `ancestors`, tokens of a draft.

        EOS is allowed where the answer may end there. The result is never all False: everything is allowed behind ancestors that
        the grammar refuses and where the answer is over, since no token is chosen there, and behind a draft where computing the
        mask would delay all requests.
        """
        ...

    def checked(self, tokens: tuple[int, ...]) -> int:
        """How many of these tokens, chosen one after another, were chosen under a mask that was really computed; the others must
        not be committed. `allowed(())` is always computed."""
        ...

    def forced(self, count: int) -> tuple[int, ...]:
        """Up to `count` token ids that must follow the committed ones, one after another; usually none."""
        ...

    def readable(self, tokens: tuple[int, ...]) -> int:
        """How many of these tokens the grammar allows one after another; all where that is unknown. It takes less time than
        computing a mask per token."""
        ...

    def commit(self, tokens: tuple[int, ...]) -> None:
        """Read tokens that became final."""
        ...

    def over(self, ancestors: tuple[int, ...]) -> str | None:
        """The finish reason of an answer that is over behind the committed tokens and then `ancestors`; None where it goes on.

        "stop" where nothing may follow and there is no stop token; where there is one, it is left to be chosen. "length" where
        going on would exceed the limits set for grammars, or no token fits what must follow.
        """
        ...


class Ahead:
    """A constraint for a draft behind the committed tokens: tokens committed here are never read by the wrapped constraint."""

    def __init__(self, constraint: Constraint) -> None:
        self._constraint, self._read = constraint, ()

    def allowed(self, ancestors: tuple[int, ...]) -> np.ndarray:
        return self._constraint.allowed((*self._read, *ancestors))

    def checked(self, tokens: tuple[int, ...]) -> int:
        return max(self._constraint.checked((*self._read, *tokens)) - len(self._read), 0)

    def forced(self, count: int) -> tuple[int, ...]:
        return () if self._read else self._constraint.forced(count)

    def readable(self, tokens: tuple[int, ...]) -> int:
        return max(self._constraint.readable((*self._read, *tokens)) - len(self._read), 0)

    def commit(self, tokens: tuple[int, ...]) -> None:
        self._read = (*self._read, *tokens)

    def over(self, ancestors: tuple[int, ...]) -> str | None:
        return self._constraint.over((*self._read, *ancestors))
