"""Calibration: per drafter, the recent ratio of accepted to expected tokens, a factor from 0 to 1 that scales its probabilities.

The estimate of each node's probability is good. But what is drafted is what looked best, and the best-looking of many is on the
whole less good than it looks (the optimizer's curse: Smith and Winkler, Management Science 52, 2006). The factor corrects for it.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

from paceline.step import Verdict
from paceline.tree import DraftTree

_RECENT = 0.98
"""Decay per step with drafts of this drafter: some fifty steps count."""
_FORGIVEN = 0.995
"""Decay per step without: so that a drafter given up because of its factor is tried again."""
_DOUBT = 4.0
"""Pseudo-count of tokens that were expected and accepted: the factor falls only once about as many were expected."""


@dataclass(slots=True)
class _Record:
    """Decayed sums of one drafter's accepted tokens and of those that were expected to be accepted."""

    hits: float = 0.0
    expected: float = 0.0


class Calibration:
    """Factors by drafter: one that is overestimated must not be offset by another that is underestimated."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}
        self._factors: dict[str, float] = {}

    def factor(self, source: str) -> float:
        """The factor of one drafter, at most 1; 1 for one never seen."""
        return self._factors.get(source, 1.0)

    def chances(self, tree: DraftTree) -> Many[float]:
        """Per candidate, its calibrated probability of being accepted, never above its parent's."""
        factors, alone = self._factors, tree.only_source
        if alone is not None:
            # nearly always; one factor for all keeps every node below its parent
            factor = factors.get(alone, 1.0)
            return tree.chances if factor == 1.0 else [1.0, *[chance * factor for chance in tree.chances[1:]]]
        found = [1.0]
        for node in range(1, tree.candidates):
            found.append(min(tree.chances[node] * factors.get(tree.sources[node], 1.0), found[tree.parents[node]]))
        return found

    def observe(self, trees: Many[DraftTree], verdicts: Many[Verdict], steps: int = 1) -> None:
        """Update the factors with the verdicts of a decoding step. steps: since the last one observed, this one included."""
        drafted = {source for tree in trees if len(tree) > 1 for source in tree.sources[1 : tree.candidates]}
        for source in drafted:
            self._records.setdefault(source, _Record())
        for source, record in self._records.items():
            fading = _RECENT if source in drafted else _FORGIVEN**steps
            record.hits *= fading
            record.expected *= fading
        for tree, verdict in zip(trees, verdicts, strict=True) if drafted else ():
            if verdict.accepted > len(verdict.path):
                # a stop cut off accepted tokens
                continue
            if tree.only_source is not None:
                record = self._records[tree.only_source]
                record.expected += sum(tree.chances) - 1.0
                record.hits += len(verdict.path)
                continue
            for node in range(1, tree.candidates):
                self._records[tree.sources[node]].expected += tree.chances[node]
            for node in verdict.path:
                self._records[tree.sources[node]].hits += 1.0
        for source, record in self._records.items():
            self._factors[source] = min((record.hits + _DOUBT) / (record.expected + _DOUBT), 1.0)
