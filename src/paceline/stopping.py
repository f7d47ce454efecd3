"""Stopping: where a draft ends before its budget does, by how likely what it holds so far comes true.

A draft that its drafter is sure of goes on, one that is in doubt ends: one more level is worth its time only as far as all levels
before it come true. The drafter decides, token by token, by chances that were learnt and a least one per level; who set these
knows what a level costs.

Source: the optimal policy ends a draft once a rejection is likelier than a threshold, SpecDec++ (Huang et al., arXiv:2405.19715),
section 4; it learns the chances with a head of the draft model, here they are counted (`learning/acceptance`).
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np

CLASSES = 10
"""Classes of confidence, all alike in width."""
DEEPEST = 8
"""Deeper nodes are judged as those of this depth."""
LIKELIEST = 0.999
"""No token is held likelier to come true."""


def class_of(confidence: float) -> int:
    """The class of a confidence, which may be any number."""
    # asked for every node of every draft, twice: `min` and `max` would take most of the time
    if confidence < 1.0:
        return int(confidence * CLASSES) if confidence > 0.0 else 0
    return CLASSES - 1


def shifted(chance: float, odds: float) -> float:
    """The probability whose odds are `odds` times those of `chance`: who is wrong more often than others is so where it is in
    doubt, and hardly where it is sure."""
    return chance * odds / (1.0 + chance * (odds - 1.0))


@dataclass(frozen=True, eq=False)
class Stopping:
    """chances: float32 [DEEPEST, CLASSES], how likely a token comes true once those before it have, by level and class of
    confidence; learnt on, so they change. odds: of this request, times all of theirs. least: by level from 1 on, a draft goes
    no further behind a node whose path is less likely than that.
    """

    chances: np.ndarray
    odds: float
    least: Many[float]

    def reach(self, before: float, level: int, confidence: float) -> float:
        """How likely the path to a node of this level comes true, where that to its parent does with probability `before`."""
        chance = float(self.chances[min(level, DEEPEST) - 1, class_of(confidence)])
        return before * min(shifted(chance, self.odds), LIKELIEST)

    def goes_on(self, level: int, reach: float) -> bool:
        """Whether a draft goes on behind a node of this level."""
        return level > len(self.least) or reach >= self.least[level - 1]
