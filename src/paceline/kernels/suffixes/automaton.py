"""SuffixAutomaton: all substrings of a growing text, how often each occurs and what follows it, in a few words per token.

A state stands for all substrings that end at the same positions. States and edges are rows of two arrays, and edges are found by
hash. A token costs O(1) amortised, plus one walk along suffix links that counts the substrings of up to `COUNTED` tokens it ends.

Source: Blumer et al., The smallest automaton recognizing the subwords of a text (1985); occurrence counts for drafting: Oliaro
et al., SuffixDecoding (arXiv:2411.04975), section 3; the automaton for drafting: Hu et al., SAM Decoding (arXiv:2411.10666).
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.kernels.compiled_call import Call, CompiledFunction

LONGEST_MATCH = 32
"""Longest suffix that is looked up, in tokens. It is below `COUNTED`, so that a match with a draft after it is still counted."""
BORDER = -1
"""Separates texts; counted as a continuation, but never drafted."""
_MOST_OPEN = 512
"""Most candidates of a draft at a time."""
_ADDED = 64
"""Up to so many tokens are appended through a reused buffer."""
STATES, EDGES, _LAST = 0, 1, 2
"""Indices of `marks`: the number of states, the number of edges, and the state of the whole text."""

_AUTOMATON = {"states": "int32[:,:]", "edges": "int32[:,:]", "table": "int32[:]", "marks": "int64[:]"}
_EXTEND = CompiledFunction("suffixes.automaton_kernel.extend", **_AUTOMATON, tokens="int64[:]", count="int64")
_REHASH = CompiledFunction("suffixes.automaton_kernel.rehash", edges="int32[:,:]", table="int32[:]", count="int64")
_DRAFT = CompiledFunction(
    "suffixes.automaton_kernel.draft_tree",
    **_AUTOMATON,
    context="int64[:]",
    **dict.fromkeys(("count", "nodes", "depth"), "int64"),
    **dict.fromkeys(("factor", "offset", "floor"), "float64"),
    opened="int64[:,:]",
    chances="float64[:,:]",
    draft="int64[:,:,:]",
    held="float64[:,:]",
    found="int64[:]",
    score="float64[:]",
)
KERNELS = (_DRAFT, _EXTEND, _REHASH)


@dataclass(frozen=True)
class Continuation:
    """A draft tree of what may follow a text, best first. tokens, parents: per node; parent 0 is the text's end, k the k-th node.

    shares: probability of each token given its parent. score: expected accepted tokens. match: length in tokens of the suffix
    that was matched.
    """

    tokens: list[int]
    parents: list[int]
    shares: list[float]
    score: float
    match: int


NOTHING = Continuation([], [], [], 0.0, 0)


@dataclass(frozen=True)
class Bounds:
    """Size of a draft. nodes, depth: at most so many; after a short match, at most factor * match + offset nodes.

    floor: least probability of a path.
    """

    nodes: int
    depth: int
    factor: float
    offset: float
    floor: float


class SuffixAutomaton:
    """`extend` appends to its text; `draft` finds what followed earlier occurrences of the end of that text, or of another.

    Arrays are int32 and double as they fill: 100 to 260 bytes per token. Token ids may be any >= -1.
    """

    def __init__(self) -> None:
        self._states = np.zeros((256, 4), np.int32)
        self._states[0] = (0, -1, 0, -1)
        self._edges = np.zeros((512, 4), np.int32)
        self._table = np.zeros(1024, np.int32)
        self._marks = np.zeros(5, np.int64)
        self._marks[STATES] = 1
        self._added = np.empty(_ADDED, np.int64)
        self._extended: Call | None = None
        self._room = 0
        self._drafted: Call | None = None

    @property
    def tokens(self) -> int:
        """Tokens of the text, borders included; after an interrupted `extend`, those that were appended."""
        return int(self._states[self._marks[_LAST], 0])

    def extend(self, tokens: Many[int]) -> None:
        """Append tokens; BORDER begins another text."""
        if not tokens:
            return
        self._reserve(self.tokens + len(tokens))
        if len(tokens) > len(self._added):
            _EXTEND(*self._arrays, np.array(tokens, np.int64), len(tokens))
        else:
            call = self._extended
            if call is None:
                call = self._extended = _EXTEND.call(**self._named, tokens=self._added)
            self._added[: len(tokens)] = tokens
            call.record.count = len(tokens)
            call()

    def _reserve(self, tokens: int) -> None:
        """Make room for a text of so many tokens: n tokens have at most 2 n states and 3 n edges."""
        if 2 * tokens + 1 <= len(self._states) and 3 * tokens <= len(self._edges):
            return
        states, edges, table = self._states, self._edges, self._table
        if 2 * tokens + 1 > len(states):
            states = _longer(states, 2 * tokens + 1)
        if 3 * tokens > len(edges):
            edges = _longer(edges, 3 * tokens)
            table = np.zeros(1 << (2 * len(edges) - 1).bit_length(), np.int32)
            _REHASH(edges, table, self._marks[EDGES])
        # prepared calls hold old addresses; all arrays are replaced at once, so that an interrupt leaves all new or all old
        self._extended = self._drafted = None
        self._states, self._edges, self._table = states, edges, table

    def draft(self, bounds: Bounds, context: Many[int] | None = None) -> Continuation:
        """Draft what followed earlier occurrences of the longest suffixes of `context`, or of the text itself; NOTHING where
        there are none."""
        call = self._drafted
        if call is None or bounds.nodes > self._room:
            call = self._prepared(max(bounds.nodes, self._room))
        record = call.record
        if context is None:
            record.count = -1
        else:
            context = context[-LONGEST_MATCH:]
            self._context[: len(context)] = context
            record.count = len(context)
        record.nodes, record.depth = bounds.nodes, bounds.depth
        record.factor, record.offset, record.floor = bounds.factor, bounds.offset, bounds.floor
        taken = call()
        if not taken:
            return NOTHING
        side, match = self._found.tolist()
        tokens, parents = self._draft[side, :taken].T.tolist()
        return Continuation(tokens, parents, self._held[side, :taken].tolist(), float(self._score[0]), match)

    def _prepared(self, nodes: int) -> Call:
        """A prepared call for drafts of up to so many nodes, with its buffers."""
        self._room = nodes
        self._context, self._found, self._score = np.zeros(LONGEST_MATCH, np.int64), np.zeros(2, np.int64), np.zeros(1)
        self._draft, self._held = np.zeros((2, nodes, 2), np.int64), np.zeros((2, nodes))
        opened, chances = np.empty((_MOST_OPEN, 5), np.int64), np.empty((_MOST_OPEN, 2))
        self._drafted = _DRAFT.call(
            **self._named, context=self._context, opened=opened, chances=chances, draft=self._draft, held=self._held,
            found=self._found, score=self._score,
        )  # fmt: skip
        return self._drafted

    @property
    def _arrays(self) -> tuple[np.ndarray, ...]:
        return self._states, self._edges, self._table, self._marks

    @property
    def _named(self) -> dict[str, np.ndarray]:
        return dict(zip(_AUTOMATON, self._arrays, strict=True))

    @property
    def held_bytes(self) -> int:
        """Size of the arrays in bytes."""
        return self._states.nbytes + self._edges.nbytes + self._table.nbytes + self._marks.nbytes


def _longer(rows: Any, needed: int) -> Any:
    # a prompt is appended at once, then single tokens: without spare room, the first token would copy everything
    longer = np.zeros((max(needed + needed // 4, 2 * len(rows)), rows.shape[1]), rows.dtype)
    longer[: len(rows)] = rows
    return longer
