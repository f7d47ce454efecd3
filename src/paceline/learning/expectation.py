"""Expectation: how much of what drafts were expected to bring came true of late.

Each node's chance is estimated well, but what is drafted is what looked best, and what looks best of many is on the whole less
good than it looks (the optimizer's curse: Smith and Winkler, Management Science 52, 2006). The share that came true corrects it.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

from paceline.step import Verdict
from paceline.tree import DraftTree

_RECENT = 0.98
"""What a step with its drafts leaves of the steps before: some fifty count."""
_FORGIVEN = 0.995
"""What a step without them leaves: so that what was given up because of it is tried again."""
_DOUBT = 4.0
"""Tokens that must have been expected before it is held that too much is."""


@dataclass(slots=True)
class _Record:
    """Tokens of one drafter that came true, and how many were expected to, of late."""

    hits: float = 0.0
    expected: float = 0.0


class Expectation:
    """By drafter: one that promises too much must not be made good by another that keeps more."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}
        self._truths: dict[str, float] = {}

    def truth(self, source: str) -> float:
        """The share for one drafter, at most 1."""
        return self._truths.get(source, 1.0)

    def chances(self, tree: DraftTree) -> Many[float]:
        """Per candidate, how likely it comes true, given what its drafter kept of late: never likelier than its parent."""
        truths, alone = self._truths, tree.only_source
        if alone is not None:
            # nearly always; what comes true with its parent is no likelier than that, whatever share of both is kept
            truth = truths.get(alone, 1.0)
            return tree.chances if truth == 1.0 else [1.0, *[chance * truth for chance in tree.chances[1:]]]
        found = [1.0]
        for node in range(1, tree.candidates):
            found.append(min(tree.chances[node] * truths.get(tree.sources[node], 1.0), found[tree.parents[node]]))
        return found

    def observe(self, trees: Many[DraftTree], verdicts: Many[Verdict], steps: int = 1) -> None:
        """See what came of what the target looked at in a step of decoding. steps: since the last that was seen, this one
        included."""
        drafted = {source for tree in trees if len(tree) > 1 for source in tree.sources[1 : tree.candidates]}
        for source in drafted:
            self._records.setdefault(source, _Record())
        for source, record in self._records.items():
            fading = _RECENT if source in drafted else _FORGIVEN**steps
            record.hits *= fading
            record.expected *= fading
        for tree, verdict in zip(trees, verdicts, strict=True) if drafted else ():
            if verdict.accepted > len(verdict.path):
                # a stop cut what came true
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
            self._truths[source] = min((record.hits + _DOUBT) / (record.expected + _DOUBT), 1.0)
