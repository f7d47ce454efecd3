"""Constraint: what an answer must keep to, token by token; how it knows is for whoever compiled the grammar."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class GrammarError(Exception):
    """A grammar that cannot be used; the message is one sentence for the user."""


class GrammarsBusy(GrammarError):
    """A grammar that cannot be compiled now, whatever it says: others' still are, that take too long. It may be later."""


class Constraint(Protocol):
    """The state of one sequence's grammar. It has read the generated tokens that were committed, and no others.

    What it says of a draft depends on the committed tokens and the draft's alone, not on what else was asked, but for where it
    cannot say it now: `checked`.
    """

    def allowed(self, ancestors: tuple[int, ...]) -> np.ndarray:
        """bool [V], not to be written to: which tokens may follow the committed ones and then `ancestors`, nodes of a draft.

        EOS is among them where the answer may end there. All False is never returned: behind ancestors that the grammar refuses,
        and where the answer is over, everything is allowed, since nothing is chosen there; so it is behind a draft where saying
        it would hold up everybody.
        """
        ...

    def checked(self, tokens: tuple[int, ...]) -> int:
        """How many of these tokens, chosen one behind the other, were chosen where `allowed` said what may be; none of the others
        is to be committed. `allowed(())` always says it."""
        ...

    def forced(self, count: int) -> tuple[int, ...]:
        """Up to `count` token ids that must follow the committed ones, one behind the other; mostly none."""
        ...

    def readable(self, tokens: tuple[int, ...]) -> int:
        """How many of these tokens may be chosen one behind the other, all where that cannot be said. It takes less than to ask
        what else might be."""
        ...

    def commit(self, tokens: tuple[int, ...]) -> None:
        """Read tokens that became final."""
        ...

    def over(self, ancestors: tuple[int, ...]) -> str | None:
        """Why the answer is over behind the committed tokens and then `ancestors`, as a finish reason; None where it goes on.

        "stop" where nothing may follow and no token says so; where one does, it is left to be chosen. "length" where going on
        would take more than the caps of a grammar allow.
        """
        ...


class Ahead:
    """A constraint for a draft that goes on behind the committed tokens: what that commits, the constraint itself never reads."""

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
