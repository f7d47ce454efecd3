"""Constraint: what an answer must keep to, token by token; how it knows is for the engine that compiled it."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Constraint(Protocol):
    """The state of one sequence's grammar. It has read the generated tokens that were committed, and no others."""

    def allowed(self, ancestors: tuple[int, ...]) -> np.ndarray:
        """bool [V]: which tokens may follow the committed ones and then `ancestors`, nodes of a draft. EOS is among them where
        the answer may end there. All False is never returned: behind ancestors that the grammar refuses, everything is allowed,
        since such a node is never reached."""
        ...

    def forced(self) -> tuple[int, ...]:
        """Token ids that must follow the committed ones, as far as there is no choice; mostly none."""
        ...

    def commit(self, tokens: tuple[int, ...]) -> None:
        """Read tokens that became final."""
        ...

    @property
    def finished(self) -> bool:
        """True where nothing but the end may follow."""
        ...
