"""Numba definitions for `automaton`: extend the suffix automaton of a text, match against it, and draft what follows a match.

Source: Blumer et al., The smallest automaton recognizing the subwords of a text (1985); occurrence counts for drafting: Oliaro
et al., SuffixDecoding (arXiv:2411.04975), section 3.
"""

from __future__ import annotations

import numpy as np

from paceline.kernels.native.memory import helper
from paceline.kernels.suffixes.automaton import BORDER, EDGES, LONGEST_MATCH, STATES

COUNTED = 64
"""Longest substrings, in tokens, whose occurrences are counted."""
_DOUBT = 1.0
"""Pseudo-count of unseen continuations after a match of one token; for longer matches, divided by their length."""

# columns of states and of edges, and indices of `marks` besides STATES and EDGES
_LENGTH, _LINK, _COUNT, _FIRST = 0, 1, 2, 3
_SOURCE, _TOKEN, _TARGET, _NEXT = 0, 1, 2, 3
_LAST, _ACTIVE, _ACTIVE_LENGTH = 2, 3, 4


@helper
def _slot(edges, table, state, token):
    """Hash slot of the edge from a state with a token: its own, or the empty one where it would go."""
    mask = len(table) - 1
    mixed = np.uint64(state) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(token + 1) * np.uint64(0xC2B2AE3D27D4EB4F)
    slot = np.int64((mixed ^ (mixed >> np.uint64(29))) & np.uint64(mask))
    while table[slot]:
        edge = table[slot] - 1
        if edges[edge, _SOURCE] == state and edges[edge, _TOKEN] == token:
            return slot
        slot = (slot + 1) & mask
    return slot


@helper
def _find_edge(edges, table, state, token):
    """Index of the edge from a state with a token, or -1."""
    return table[_slot(edges, table, state, token)] - 1


@helper
def _connect(states, edges, table, marks, state, token, target):
    """Add an edge."""
    slot = _slot(edges, table, state, token)
    edge = marks[EDGES]
    marks[EDGES] = edge + 1
    edges[edge, _SOURCE], edges[edge, _TOKEN], edges[edge, _TARGET] = state, token, target
    edges[edge, _NEXT] = states[state, _FIRST]
    states[state, _FIRST] = edge
    table[slot] = edge + 1


@helper
def _new_state(states, marks, length, link, count):
    """Add a state and return its index. length: of its longest string. link: its suffix link. count: its occurrences."""
    state = marks[STATES]
    marks[STATES] = state + 1
    states[state, _LENGTH], states[state, _LINK], states[state, _COUNT], states[state, _FIRST] = length, link, count, -1
    return state


@helper
def _suffix_state(states, state, length):
    """The state of the suffix of `length` tokens of the strings of `state`."""
    while state and states[states[state, _LINK], _LENGTH] >= length:
        state = states[state, _LINK]
    return state


@helper
def _append(states, edges, table, marks, token):
    """Add one token to the text: Blumer's online construction, and occurrence counts of substrings up to COUNTED tokens."""
    last = marks[_LAST]
    new = _new_state(states, marks, states[last, _LENGTH] + 1, 0, 0)
    state, edge = last, np.int64(-1)
    while state >= 0:
        edge = _find_edge(edges, table, state, token)
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
            copy = _new_state(states, marks, length, states[old, _LINK], states[old, _COUNT])
            out = states[old, _FIRST]
            while out >= 0:
                _connect(states, edges, table, marks, copy, edges[out, _TOKEN], edges[out, _TARGET])
                out = edges[out, _NEXT]
            while state >= 0:
                edge = _find_edge(edges, table, state, token)
                if edge < 0 or edges[edge, _TARGET] != old:
                    break
                edges[edge, _TARGET] = copy
                state = states[state, _LINK]
            states[old, _LINK] = states[new, _LINK] = copy
    marks[_LAST] = new
    active = _suffix_state(states, marks[_ACTIVE], marks[_ACTIVE_LENGTH])
    active = edges[_find_edge(edges, table, active, token), _TARGET]
    length = min(marks[_ACTIVE_LENGTH] + 1, COUNTED)
    active = _suffix_state(states, active, length)
    marks[_ACTIVE], marks[_ACTIVE_LENGTH] = active, length
    while active:
        states[active, _COUNT] += 1
        active = states[active, _LINK]


def extend(states, edges, table, marks, tokens, count):
    """Append the first `count` of these tokens to the text. tokens: int64 [at least count]."""
    for place in range(count):
        _append(states, edges, table, marks, tokens[place])


def rehash(edges, table, count):
    """Fill an empty hash table with the first `count` edges."""
    for edge in range(count):
        table[_slot(edges, table, edges[edge, _SOURCE], edges[edge, _TOKEN])] = edge + 1


@helper
def _match(states, edges, table, tokens, count):
    """State and length of the longest suffix of the first `count` tokens that occurs in the text, at most LONGEST_MATCH."""
    state, length = np.int64(0), np.int64(0)
    for place in range(count):
        token = tokens[place]
        edge = _find_edge(edges, table, state, token)
        while edge < 0 and state:
            state = np.int64(states[state, _LINK])
            length = np.int64(states[state, _LENGTH])
            edge = _find_edge(edges, table, state, token)
        if edge >= 0:
            length = min(length + 1, LONGEST_MATCH)
            state = np.int64(_suffix_state(states, edges[edge, _TARGET], length))
    return state, length


@helper
def _match_own_end(states, marks):
    """State and length of the longest suffix of the text itself that is indexed, at most LONGEST_MATCH."""
    length = min(marks[_ACTIVE_LENGTH], LONGEST_MATCH)
    return np.int64(_suffix_state(states, marks[_ACTIVE], length)), np.int64(length)


@helper
def _with_continuation(states, state, length):
    """State and length of the longest suffix of a match that is followed by any token: the text's end may occur nowhere else."""
    while state and states[state, _FIRST] < 0:
        state = np.int64(states[state, _LINK])
        length = np.int64(states[state, _LENGTH])
    return state, length


@helper
def _best_first(states, edges, state, length, nodes, depth, floor, opened, chances, draft, held):
    """Write the likeliest continuations of a match, best first. Returns their number and the sum of their path probabilities.

    state, length: of the match. nodes, depth, floor: at most so many nodes and levels, no path less likely. draft: int64 [nodes,
    2], token and parent. held: float64 [nodes], probability given the parent. opened: int64 [most, 5], candidates as state,
    length, token, parent, level; chances: float64 [most, 2], probability of a candidate's path and of its token; both are
    scratch.
    """
    taken, waiting, score = 0, 0, 0.0
    path, level = 1.0, 0
    while True:
        state, length = _with_continuation(states, state, length)
        if state and level < depth:
            total = _DOUBT / length
            edge = states[state, _FIRST]
            while edge >= 0:
                total += states[_suffix_state(states, edges[edge, _TARGET], length + 1), _COUNT]
                edge = edges[edge, _NEXT]
            edge = states[state, _FIRST]
            while edge >= 0 and waiting < len(opened):
                child = _suffix_state(states, edges[edge, _TARGET], length + 1)
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


def draft_tree(
    states, edges, table, marks, context, count, nodes, depth, factor, offset, floor, opened, chances, draft, held, found, score
):
    """Of the drafts after all suffixes of the longest match, write the one with the most expected tokens; in a tie, the one with
    the longer match. Returns its number of nodes.

    context: int64 [most], whose first `count` tokens are matched; a negative count stands for the text's own end. nodes, depth,
    factor, offset, floor: as in `automaton.Bounds`. draft: int64 [2, nodes, 2], token and parent; held: float64 [2, nodes],
    probability given the parent; both have two halves to alternate between. found: int64 [2], the half that holds the draft, and
    the length of its match in tokens. score: float64 [1], its expected tokens.
    """
    if count < 0:
        state, length = _match_own_end(states, marks)
    else:
        state, length = _match(states, edges, table, context, count)
    side, best = 0, 0
    found[1], score[0] = 0, 0.0
    state, length = _with_continuation(states, state, length)
    while state:
        room = min(nodes, np.int64(factor * length + offset))
        # shorter matches may not draft more nodes, and no node is worth more than one token
        if room <= score[0]:
            break
        other = 1 - side
        taken, expected = _best_first(
            states, edges, state, length, room, depth, floor, opened, chances, draft[other], held[other]
        )
        if expected > score[0]:
            side, best = other, taken
            found[1], score[0] = length, expected
        state = np.int64(states[state, _LINK])
        length = np.int64(states[state, _LENGTH])
    found[0] = side
    return best
