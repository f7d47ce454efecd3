"""SuffixAutomaton: every string of a growing text, how often it occurs, and what follows it, in a few words per token.

A state stands for all strings that end at the same places. States and edges are rows of two arrays, edges are found by hash; a
token costs O(1) amortised, and one walk along suffix links that counts the strings up to `COUNTED` tokens it ends.

Source: Blumer et al., The smallest automaton recognizing the subwords of a text (1985); occurrence counts for drafting: Oliaro
et al., SuffixDecoding (arXiv:2411.04975), section 3; the automaton for drafting: Hu et al., SAM Decoding (arXiv:2411.10666).
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.kernels.lookups import compiled

COUNTED = 64
"""Longest strings whose occurrences are counted."""
LONGEST_MATCH = 32
"""Longest suffix of a text that is looked up: a draft behind it stays within what is counted."""
BORDER = -1
"""Stands between two texts; it is counted as what follows, and never drafted."""
_DOUBT = 1.0
"""Continuations never seen that count beside those seen behind a match of one token; of a longer one in proportion fewer."""
_MOST_OPEN = 512
"""Candidates of one draft that wait to be taken."""

# columns of states, of edges, and places of `marks`
_LENGTH, _LINK, _COUNT, _FIRST = 0, 1, 2, 3
_SOURCE, _TOKEN, _TARGET, _NEXT = 0, 1, 2, 3
_STATES, _EDGES, _LAST, _ACTIVE, _ACTIVE_LENGTH = 0, 1, 2, 3, 4


@compiled
def _slot(edges, table, state, token):
    """Where in the table the edge of a state with a token is, or would go."""
    mask = len(table) - 1
    mixed = np.uint64(state) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(token + 1) * np.uint64(0xC2B2AE3D27D4EB4F)
    slot = np.int64((mixed ^ (mixed >> np.uint64(29))) & np.uint64(mask))
    while table[slot]:
        edge = table[slot] - 1
        if edges[edge, _SOURCE] == state and edges[edge, _TOKEN] == token:
            return slot
        slot = (slot + 1) & mask
    return slot


@compiled
def _edge(edges, table, state, token):
    """The edge, or -1."""
    return table[_slot(edges, table, state, token)] - 1


@compiled
def _connect(states, edges, table, marks, state, token, target):
    slot = _slot(edges, table, state, token)
    edge = marks[_EDGES]
    marks[_EDGES] = edge + 1
    edges[edge, _SOURCE], edges[edge, _TOKEN], edges[edge, _TARGET] = state, token, target
    edges[edge, _NEXT] = states[state, _FIRST]
    states[state, _FIRST] = edge
    table[slot] = edge + 1


@compiled
def _state(states, marks, length, link, count):
    state = marks[_STATES]
    marks[_STATES] = state + 1
    states[state, _LENGTH], states[state, _LINK], states[state, _COUNT], states[state, _FIRST] = length, link, count, -1
    return state


@compiled
def _within(states, state, length):
    """The state of the suffix of so many tokens of a state's strings."""
    while state and states[states[state, _LINK], _LENGTH] >= length:
        state = states[state, _LINK]
    return state


@compiled
def _append(states, edges, table, marks, token):
    """Blumer's online construction, and the counts."""
    last = marks[_LAST]
    new = _state(states, marks, states[last, _LENGTH] + 1, 0, 0)
    state, edge = last, np.int64(-1)
    while state >= 0:
        edge = _edge(edges, table, state, token)
        if edge >= 0:
            break
        _connect(states, edges, table, marks, state, token, new)
        state = states[state, _LINK]
    if state >= 0:
        old = edges[edge, _TARGET]
        length = states[state, _LENGTH] + 1
        if states[old, _LENGTH] == length:
            states[new, _LINK] = old
        else:
            copy = _state(states, marks, length, states[old, _LINK], states[old, _COUNT])
            out = states[old, _FIRST]
            while out >= 0:
                _connect(states, edges, table, marks, copy, edges[out, _TOKEN], edges[out, _TARGET])
                out = edges[out, _NEXT]
            while state >= 0:
                edge = _edge(edges, table, state, token)
                if edge < 0 or edges[edge, _TARGET] != old:
                    break
                edges[edge, _TARGET] = copy
                state = states[state, _LINK]
            states[old, _LINK] = states[new, _LINK] = copy
    marks[_LAST] = new
    active = _within(states, marks[_ACTIVE], marks[_ACTIVE_LENGTH])
    active = edges[_edge(edges, table, active, token), _TARGET]
    length = min(marks[_ACTIVE_LENGTH] + 1, COUNTED)
    active = _within(states, active, length)
    marks[_ACTIVE], marks[_ACTIVE_LENGTH] = active, length
    while active:
        states[active, _COUNT] += 1
        active = states[active, _LINK]


@compiled
def _extend(states, edges, table, marks, tokens):
    for token in tokens:
        _append(states, edges, table, marks, token)


@compiled
def _filled(edges, table, count):
    """Enter all edges into an empty table."""
    for edge in range(count):
        table[_slot(edges, table, edges[edge, _SOURCE], edges[edge, _TOKEN])] = edge + 1


@compiled
def _matched(states, edges, table, tokens):
    """The state and length of the longest suffix of `tokens` in the text, at most LONGEST_MATCH tokens."""
    state, length = np.int64(0), np.int64(0)
    for token in tokens:
        edge = _edge(edges, table, state, token)
        while edge < 0 and state:
            state = np.int64(states[state, _LINK])
            length = np.int64(states[state, _LENGTH])
            edge = _edge(edges, table, state, token)
        if edge >= 0:
            length = min(length + 1, LONGEST_MATCH)
            state = np.int64(_within(states, edges[edge, _TARGET], length))
    return state, length


@compiled
def _ended(states, marks):
    """The same for the text's own end."""
    length = min(marks[_ACTIVE_LENGTH], LONGEST_MATCH)
    return np.int64(_within(states, marks[_ACTIVE], length)), np.int64(length)


@compiled
def _followed(states, state, length):
    """The longest suffix that something follows: what a text ends with may stand nowhere else."""
    while state and states[state, _FIRST] < 0:
        state = np.int64(states[state, _LINK])
        length = np.int64(states[state, _LENGTH])
    return state, length


@compiled
def _grown(states, edges, state, length, nodes, depth, floor, opened, chances, draft, held):
    """Fill `draft` and `held` with the likeliest continuations of a state; how many, and the sum of their probabilities.

    Best first: of all tokens that could be added behind what was taken, the one on the likeliest path is next.
    opened: int64 [most, 5], a token that waits: state, length, token, parent, level. chances: float64 [most, 2]: path, share.
    """
    taken, waiting, score = 0, 0, 0.0
    path, level = 1.0, 0
    while True:
        state, length = _followed(states, state, length)
        if state and level < depth:
            total = _DOUBT / length
            edge = states[state, _FIRST]
            while edge >= 0:
                total += states[_within(states, edges[edge, _TARGET], length + 1), _COUNT]
                edge = edges[edge, _NEXT]
            edge = states[state, _FIRST]
            while edge >= 0 and waiting < len(opened):
                child = _within(states, edges[edge, _TARGET], length + 1)
                share = states[child, _COUNT] / total
                if path * share >= floor and edges[edge, _TOKEN] != BORDER:
                    opened[waiting, 0], opened[waiting, 1], opened[waiting, 2] = child, length + 1, edges[edge, _TOKEN]
                    opened[waiting, 3], opened[waiting, 4] = taken, level + 1
                    chances[waiting, 0], chances[waiting, 1] = path * share, share
                    waiting += 1
                edge = edges[edge, _NEXT]
        if taken == nodes or not waiting:
            return taken, score
        best = 0
        for one in range(1, waiting):
            if chances[one, 0] > chances[best, 0]:
                best = one
        state, length, level = opened[best, 0], opened[best, 1], opened[best, 4]
        draft[taken, 0], draft[taken, 1] = opened[best, 2], opened[best, 3]
        path, held[taken] = chances[best, 0], chances[best, 1]
        taken += 1
        score += path
        waiting -= 1
        for column in range(5):
            opened[best, column] = opened[waiting, column]
        chances[best, 0], chances[best, 1] = chances[waiting, 0], chances[waiting, 1]


@compiled
def _drafted(states, edges, state, length, nodes, depth, factor, offset, floor, opened, chances, draft, held):
    """Of all suffixes of the match, the draft with the most expected tokens; the longer match where two are equal.

    draft: int64 [2, nodes, 2], token and parent; held: float64 [2, nodes]. The side of both that holds it comes first, then how
    many nodes, their expected tokens, and the length of the match.
    """
    side, best, score, used = 0, 0, 0.0, np.int64(0)
    state, length = _followed(states, state, length)
    while state:
        room = min(nodes, np.int64(factor * length + offset))
        # shorter matches may draft no more, and no node is worth more than one token
        if room <= score:
            break
        other = 1 - side
        taken, expected = _grown(states, edges, state, length, room, depth, floor, opened, chances, draft[other], held[other])
        if expected > score:
            side, best, score, used = other, taken, expected, length
        state = np.int64(states[state, _LINK])
        length = np.int64(states[state, _LENGTH])
    return side, best, score, used


@dataclass(frozen=True)
class Continuation:
    """What may follow a text, best first. tokens, parents: per node; parent 0 is the text's end, k the k-th node.

    shares: how likely each token is once its parent is right. score: tokens expected to come true. match: tokens of the suffix it
    was found by.
    """

    tokens: list[int]
    parents: list[int]
    shares: list[float]
    score: float
    match: int


NOTHING = Continuation([], [], [], 0.0, 0)


@dataclass(frozen=True)
class Bounds:
    """How far a draft goes. nodes, depth: at most so many, and fewer behind a short match: factor * match + offset nodes.

    floor: no path less likely than this.
    """

    nodes: int
    depth: int
    factor: float
    offset: float
    floor: float


class SuffixAutomaton:
    """Grows by `extend`; what follows the end of its own text, or of another, is found by `draft`.

    Arrays are int32 and double as they fill: 100 to 260 bytes per token. Raises nothing for any token id >= -1.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self._states = np.zeros((256, 4), np.int32)
        self._states[0] = (0, -1, 0, -1)
        self._edges = np.zeros((512, 4), np.int32)
        self._table = np.zeros(1024, np.int32)
        self._marks = np.zeros(5, np.int64)
        self._marks[_STATES] = 1

    def extend(self, tokens: Many[int]) -> None:
        """Add to the end of the text; BORDER begins another text."""
        if not tokens:
            return
        self._reserve(self.tokens + len(tokens))
        _extend(self._states, self._edges, self._table, self._marks, np.array(tokens, np.int64))
        self.tokens += len(tokens)

    def _reserve(self, tokens: int) -> None:
        """Make room: a text of n tokens has at most 2 n states and 3 n edges."""
        if 2 * tokens + 1 > len(self._states):
            self._states = _longer(self._states, 2 * tokens + 1)
        if 3 * tokens > len(self._edges):
            self._edges = _longer(self._edges, 3 * tokens)
            self._table = np.zeros(1 << (2 * len(self._edges) - 1).bit_length(), np.int32)
            _filled(self._edges, self._table, self._marks[_EDGES])

    def draft(self, bounds: Bounds, context: Many[int] | None = None) -> Continuation:
        """What follows the longest suffixes of `context`, or of the text itself where they stood before."""
        states, edges, table, marks = self._states, self._edges, self._table, self._marks
        if context is None:
            state, length = _ended(states, marks)
        else:
            state, length = _matched(states, edges, table, np.array(context[-LONGEST_MATCH:], np.int64))
        if not state:
            return NOTHING
        draft, held = np.empty((2, bounds.nodes, 2), np.int64), np.empty((2, bounds.nodes))
        side, taken, score, match = _drafted(
            states, edges, state, length, bounds.nodes, bounds.depth, bounds.factor, bounds.offset, bounds.floor,
            np.empty((_MOST_OPEN, 5), np.int64), np.empty((_MOST_OPEN, 2)), draft, held,
        )  # fmt: skip
        tokens, parents = draft[side, :taken].T.tolist()
        return Continuation(tokens, parents, held[side, :taken].tolist(), score, match)

    @property
    def held_bytes(self) -> int:
        return self._states.nbytes + self._edges.nbytes + self._table.nbytes + self._marks.nbytes


def _longer(rows: Any, needed: int) -> Any:
    longer = np.zeros((max(needed, 2 * len(rows)), rows.shape[1]), rows.dtype)
    longer[: len(rows)] = rows
    return longer
