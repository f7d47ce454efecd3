"""Union: two draft trees of one sequence as one tree.

Source: SpecInfer (arXiv:2305.09781), section 3, merges token trees of several draft models.
"""

from __future__ import annotations

from collections.abc import Iterable

from paceline.tree import DraftTree, Proposal


def union(one: DraftTree, other: DraftTree) -> DraftTree:
    """One tree with the nodes of the other that it lacks, the probes of both at the end.

    Both trees share the root. The union of two COUPLED trees is COUPLED; that of two trees drawn in the same way by
    different sources is drawn in that way, equal tokens side by side, each with its own proposal; any other is POINT and
    shows no proposals: what was drawn for either tree alone was not drawn for their union, so only verifiers that need no
    proposal are exact for it.
    """
    if one.tokens[0] != other.tokens[0]:
        raise ValueError("trees with different roots cannot be merged")
    if len(other) == 1 or len(one) == 1:
        return one if len(other) == 1 else other
    apart = one.kind.drawn and one.kind is other.kind and not {*one.sources[1:]} & {*other.sources[1:]}
    both = _Union(one.tokens[0], apart)
    places = [both.take(tree, range(1, tree.candidates), {0: 0}) for tree in (one, other)]
    candidates = len(both.tokens)
    if not apart:
        both.weigh(max(places[0].values()) + 1)
    for tree, place in zip((one, other), places, strict=True):
        both.take(tree, range(tree.candidates, len(tree)), place, probes=True)
    both_coupled = one.kind is other.kind is Proposal.COUPLED
    proposals = {
        (place[node], source): row
        for tree, place in zip((one, other), places, strict=True)
        for (node, source), row in tree.proposals.items()
        if apart
    }
    return DraftTree.unchecked(
        tokens=tuple(both.tokens),
        parents=tuple(both.parents),
        kind=one.kind if apart or both_coupled else Proposal.POINT,
        proposals=proposals,
        sources=tuple(both.sources),
        confidences=tuple(both.confidences),
        probes=len(both.tokens) - candidates,
    )


class _Union:
    """The union of two trees while it is built. apart: equal tokens below one node stay two nodes."""

    def __init__(self, root: int, apart: bool) -> None:
        self.tokens, self.parents, self.sources, self.confidences = [root], [-1], [""], [1.0]
        self._apart = apart
        self._children: dict[tuple[int, int], int] = {}
        self._words: dict[int, tuple[float, float]] = {}
        """Node that both trees hold -> its confidence in each of them."""

    def take(self, tree: DraftTree, nodes: Iterable[int], place: dict[int, int], probes: bool = False) -> dict[int, int]:
        """Add nodes of a tree; returns each node's place in the union. A node of both trees gets the higher confidence."""
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
        """Where the trees have different tokens below a node, scale each confidence by what likelier tokens of the other leave.

        first: nodes of the union when it held one tree alone. Each tree was judged on its own: together their confidences could
        exceed 1.
        """
        below = dict[int, list[int]]()
        for node in range(1, len(self.tokens)):
            below.setdefault(self.parents[node], []).append(node)
        for nodes in below.values():
            if len(nodes) == 1:
                continue
            # by tree: by how much tokens of the other are likelier than this tree says
            against = [0.0, 0.0]
            for node in sorted(nodes, key=lambda node: -self.confidences[node]):
                words = self._words.get(node)
                if words is not None:
                    against = [more + self.confidences[node] - word for more, word in zip(against, words, strict=True)]
                else:
                    side = node >= first
                    self.confidences[node] *= max(1.0 - against[side], 0.0)
                    against[not side] += self.confidences[node]
