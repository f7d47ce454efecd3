"""Continuations: what followed earlier occurrences of a text's last tokens, as a draft tree, in one compiled call.

How votes are weighted, and where a draft ends, is described in `drafters/ngram.py`.
"""

from __future__ import annotations

import numpy as np

from paceline.kernels.compiled_call import CompiledFunction
from paceline.kernels.ngrams.index import INDEX, KERNELS as INDEX_KERNELS, NgramIndex

LOOKED_AT = 6
"""Occurrences that vote, and occurrences looked at per match length: bounds the work on repetitive text."""
_VOTES = LOOKED_AT + 1
_MOST_LENGTHS = 32
_DRAFT = CompiledFunction(
    "ngrams.continuations_kernel.draft_tree",
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
KERNELS = (_DRAFT, *INDEX_KERNELS)


class ContinuationLookup:
    """Drafts trees of up to `nodes` nodes besides the root.

    Buffers are reused and everything is one call: with a small model, a lookup without a match costs as much as a row saves.
    """

    def __init__(self, nodes: int) -> None:
        most = (nodes + 1) * _VOTES
        self._draft, self._held = np.empty((nodes + 1, 2), np.int64), np.empty(nodes + 1)
        self._call = _DRAFT.call(
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
        self, text: NgramIndex, tokens: list[int], nodes: int, depth: int, floor: float, paths: int
    ) -> tuple[list[int], list[int], list[float]] | None:
        """Index the new tokens of a text and draft what may follow it: token ids, parents and confidences of a tree's nodes,
        beginning with the root, the last token of the text. None if nothing is found.

        nodes, depth, paths: at most so many, the root not counted. floor: nodes with a lower confidence get no children.
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
