"""Stopping: where a draft ends before its budget does, by how likely all its tokens so far are right.

A draft of high confidence goes on, one of low confidence ends: one more level is worth its time only if all levels before it are
right. The drafter decides, token by token, by learnt probabilities and a minimum per level; the policy sets the minimum by what a
level costs.

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
"""No token is taken to be likelier than this."""


def class_of(confidence: float) -> int:
    """The class of a confidence, which may be any number."""
    # called for every node of every draft, twice: `min` and `max` would take most of the time
    if confidence < 1.0:
        return int(confidence * CLASSES) if confidence > 0.0 else 0
    return CLASSES - 1


def shifted(chance: float, odds: float) -> float:
    """The probability whose odds are `odds` times those of `chance`: drafts that are wrong more often than others are so where
    their confidence is low, and hardly where it is high."""
    return chance * odds / (1.0 + chance * (odds - 1.0))


@dataclass(frozen=True, eq=False)
class Stopping:
    """chances: float32 [DEEPEST, CLASSES], how likely a token is right once those before it are, by level and class of
    confidence; the learner keeps updating them. odds: of this request, multiplies the odds of all chances. least: by level from
    1 on, a draft ends behind a node whose path is less likely than this.
    """

    chances: np.ndarray
    odds: float
    least: Many[float]

    def reach(self, before: float, level: int, confidence: float) -> float:
        """How likely the path to a node of this level is right, where the path to its parent is with probability `before`."""
        chance = float(self.chances[min(level, DEEPEST) - 1, class_of(confidence)])
        return before * min(shifted(chance, self.odds), LIKELIEST)

    def goes_on(self, level: int, reach: float) -> bool:
        """Whether a draft goes on behind a node of this level."""
        return level > len(self.least) or reach >= self.least[level - 1]
