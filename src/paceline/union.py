"""Union: two draft trees while they become one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence as Many
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

    def take(self, tree: Nodes, nodes: Iterable[int], place: dict[int, int], probes: bool = False) -> dict[int, int]:
        """Add nodes of a tree; where each of its nodes is in the union. What both hold counts as likely as either says."""
        for node in nodes:
            parent, token = place[tree.parents[node]], tree.tokens[node]
            at = None if self._apart or probes else self._children.get((parent, token))
            if at is not None:
                self.confidences[at] = max(self.confidences[at], tree.confidences[node])
            else:
                at = len(self.tokens)
                self._children.setdefault((parent, token), at)
                self.tokens.append(token)
                self.parents.append(parent)
                self.sources.append(tree.sources[node])
                self.confidences.append(tree.confidences[node])
            place[node] = at
        return place

    def weigh(self, first: Many[int], second: Many[int]) -> None:
        """Where the two trees hold different tokens for likely, what the likelier one leaves is all that the other can have.

        first, second: where the candidates of either tree are in the union. Both were judged on their own: together they would
        count for more than certain.
        """
        both = set(first) & set(second)
        if len(both) == len(first) or len(both) == len(second):
            return
        of_first, below = set(first), dict[int, list[int]]()
        for node in (*first, *second):
            below.setdefault(self.parents[node], []).append(node)
        for nodes in below.values():
            if len(nodes) == 1:
                continue
            taken = [0.0, 0.0]
            for node in sorted({*nodes}, key=lambda node: -self.confidences[node]):
                if node in both:
                    taken = [share + self.confidences[node] for share in taken]
                    continue
                side = node not in of_first
                # what its own tree holds beside it was judged with it
                self.confidences[node] *= max(1.0 - taken[not side], 0.0)
                taken[side] += self.confidences[node]
