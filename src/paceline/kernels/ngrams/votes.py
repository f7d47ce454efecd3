"""Votes: which places of a text say what its end is followed by, and the tree of what they make likely; looked up in one call.

What a vote weighs, and when a draft ends, is said in `drafters/ngram.py`.
"""

from __future__ import annotations

import numpy as np

from paceline.kernels.lookups import Lookup
from paceline.kernels.ngrams.occurrences import INDEX, KERNELS as TABLE_KERNELS, Occurrences

LOOKED_AT = 6
"""Places that vote, and places looked at per match length: bounds the work on a text that says one thing over and over."""
_VOTES = LOOKED_AT + 1
_MOST_LENGTHS = 32
_CONTINUED = Lookup(
    "ngrams.voting.continued",
    **INDEX,
    **dict.fromkeys(("known", "size", "nodes", "depth"), "int64"),
    floor="float64",
    paths="int64",
    draft="int64[:,:]",
    held="float64[:]",
    seen="int64[:,:]",
    weights="float64[:]",
    **dict.fromkeys(("matches", "places", "leaf"), "int64[:]"),
    waiting="int64[:,:]",
    chances="float64[:,:]",
    **dict.fromkeys(("tokens", "masks"), "int64[:]"),
    sums="float64[:]",
)
KERNELS = (_CONTINUED, *TABLE_KERNELS)


class LookUp:
    """nodes: of the largest tree, besides the root.

    What is written to is kept, and all is one call: on a small model a look-up in vain takes as long as a row saves.
    """

    def __init__(self, nodes: int) -> None:
        most = (nodes + 1) * _VOTES
        self._draft, self._held = np.empty((nodes + 1, 2), np.int64), np.empty(nodes + 1)
        self._call = _CONTINUED.call(
            draft=self._draft,
            held=self._held,
            seen=np.empty((_MOST_LENGTHS * LOOKED_AT, 2), np.int64),
            weights=np.empty(_VOTES),
            leaf=np.empty(nodes + 1, np.int64),
            waiting=np.empty((most, 4), np.int64),
            chances=np.empty((most, 2)),
            sums=np.empty(_VOTES),
            **{name: np.empty(_VOTES, np.int64) for name in ("matches", "places", "tokens", "masks")},
        )

    def __call__(
        self, text: Occurrences, tokens: list[int], nodes: int, depth: int, floor: float, paths: int
    ) -> tuple[list[int], list[int], list[float]] | None:
        """What may follow a text, which is taken in as far as it is new: tokens, parents and confidences of a tree's nodes, its
        root, the last token, first; None for nothing.

        nodes, depth, paths: at most so many, besides the root. floor: nothing behind a token that is less likely.
        """
        known, size = text.written(tokens), len(tokens)
        call = text.calls.get(self)
        if call is None:
            call = text.calls[self] = self._call.again(**text.arrays)
        record = call.record
        record.known, record.size, record.nodes, record.depth = known, size, nodes, depth
        record.floor, record.paths = floor, paths
        taken = call()
        text.size = size
        if taken == 1:
            return None
        found, parents = self._draft[:taken].T.tolist()
        return found, parents, self._held[:taken].tolist()
