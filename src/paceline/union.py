"""Union: two draft trees while they become one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Nodes(Protocol):
    """What a tree says of each of its nodes."""

    @property
    def tokens(self) -> tuple[int, ...]: ...
    @property
    def parents(self) -> tuple[int, ...]: ...
    @property
    def sources(self) -> tuple[str, ...]: ...
    @property
    def confidences(self) -> tuple[float, ...]: ...


class Union:
    """Two trees while they become one. apart: equal tokens below one node stay two nodes."""

    def __init__(self, root: int, apart: bool) -> None:
        self.tokens, self.parents, self.sources, self.confidences = [root], [-1], [""], [1.0]
        self._apart = apart
        self._children: dict[tuple[int, int], int] = {}
        self._words: dict[int, tuple[float, float]] = {}
        """Node that both trees hold -> how likely either says it is."""

    def take(self, tree: Nodes, nodes: Iterable[int], place: dict[int, int], probes: bool = False) -> dict[int, int]:
        """Add nodes of a tree; where each of its nodes is in the union. What both hold counts as likely as either says."""
        for node in nodes:
            parent, token = place[tree.parents[node]], tree.tokens[node]
            at = None if self._apart or probes else self._children.get((parent, token))
            if at is not None:
                self._words[at] = self.confidences[at], tree.confidences[node]
                self.confidences[at] = max(self._words[at])
            else:
                at = len(self.tokens)
                self._children.setdefault((parent, token), at)
                self.tokens.append(token)
                self.parents.append(parent)
                self.sources.append(tree.sources[node])
                self.confidences.append(tree.confidences[node])
            place[node] = at
        return place

    def weigh(self, first: int) -> None:
        """Where the two trees hold different tokens for likely, what the likelier one leaves is all that the other can have.

        first: nodes of the union when it held one tree alone. Each tree was judged on its own: together they would count for more
        than certain.
        """
        below = dict[int, list[int]]()
        for node in range(1, len(self.tokens)):
            below.setdefault(self.parents[node], []).append(node)
        for nodes in below.values():
            if len(nodes) == 1:
                continue
            # by tree: how much likelier than it says itself are tokens that the other holds
            against = [0.0, 0.0]
            for node in sorted(nodes, key=lambda node: -self.confidences[node]):
                words = self._words.get(node)
                if words is not None:
                    against = [more + self.confidences[node] - word for more, word in zip(against, words, strict=True)]
                else:
                    side = node >= first
                    self.confidences[node] *= max(1.0 - against[side], 0.0)
                    against[not side] += self.confidences[node]
