"""Numba definitions for `continuations`: earlier occurrences of a text's last tokens vote on the next ones, as a draft tree.

How votes are weighted, and where a draft ends, is described in `drafters/ngram.py`.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from paceline.kernels.native.memory import helper
from paceline.kernels.ngrams.continuations import LOOKED_AT
from paceline.kernels.ngrams.index import AGREED, BEFORE, LEADS
from paceline.kernels.ngrams.index_kernel import extend, slot_of

_LIKELY = np.array((0.0, 0.3, 0.55, 0.68, 0.75, 0.8, 0.86, 0.88, 0.92, 0.93, 0.94, 0.95, 0.98))
"""By match length in tokens, how often the token after the match was right, measured on texts of the embedded model."""
LONGEST = len(_LIKELY) - 1
_LENGTH_COUNTS = np.array([3.0 ** min(length, 8) for length in range(LONGEST + 1)])
"""Weight of a vote by the length of its match."""
_AGE_COUNTS = np.array([0.85**rank for rank in range(LOOKED_AT)])
"""Weight of a vote by its rank among the votes."""
_LEAD_COUNTS = np.array(list(accumulate(_AGE_COUNTS, initial=0.0)))
"""Weight of the majority's vote by the number of occurrences it leads by: the sum of the weights of so many votes."""
_WORTH = 0.08
"""Least probability of a node's path; about the cost of a row relative to a forward pass."""


@helper
def _match_length(text, size, end, known):
    """How many tokens before `end` equal the last ones of the text, at most LONGEST. known: how many are known to be equal."""
    length, longest = min(known, LONGEST), min(LONGEST, end)
    while length < longest and text[end - length - 1] == text[size - length - 1]:
        length += 1
    return length


@helper
def collect_votes(text, size, lengths, tables, ends, seen, weights, matches, places):
    """Write the votes and return their number: the ends of matches, the longest first, of equal lengths the latest first; last,
    if there are many occurrences, the end of one that is followed by the majority token.

    Index arrays: as in `index.NgramIndex`. seen: int64 [lengths * LOOKED_AT, 2], scratch. weights: float64 [votes]. matches,
    places: int64 [votes], lengths of the matches and their ends.
    """
    count, agreed, lead, agreed_length = 0, 0, 0, 0
    for row in range(len(lengths) - 1, -1, -1):
        n = lengths[row]
        if n > size:
            continue
        last = tables[row, slot_of(text, tables[row], n, size)]
        end, looked_at = last, 0
        while end and looked_at < LOOKED_AT:
            looked_at += 1
            known = False
            for other in range(count):
                known = known or seen[other, 1] == end
            if not known:
                seen[count, 0], seen[count, 1] = _match_length(text, size, end, n), end
                count += 1
            end = ends[row, BEFORE, end]
        if looked_at == LOOKED_AT:
            agreed, lead, agreed_length = ends[row, AGREED, last], ends[row, LEADS, last], min(n, LONGEST)
            break
    votes = min(count, LOOKED_AT)
    for rank in range(votes):
        best = rank
        for other in range(rank + 1, count):
            longer = seen[other, 0] - seen[best, 0]
            if longer > 0 or (longer == 0 and seen[other, 1] > seen[best, 1]):
                best = other
        length, place = seen[best, 0], seen[best, 1]
        seen[best, 0], seen[best, 1] = seen[rank, 0], seen[rank, 1]
        weights[rank], matches[rank], places[rank] = _LENGTH_COUNTS[length] * _AGE_COUNTS[rank], length, place
    if lead:
        weights[votes] = _LENGTH_COUNTS[agreed_length] * _LEAD_COUNTS[min(lead, LOOKED_AT)]
        matches[votes], places[votes] = agreed_length, agreed
        votes += 1
    return votes


@helper
def _grow_tree(
    text, size, lengths, tables, ends, nodes, depth, floor, paths, draft, held, seen, weights, matches, places, leaf, waiting,
    chances, tokens, masks, sums,
):  # fmt: skip
    """Write the draft tree, best first, and return its number of nodes, the root included.

    nodes, depth, paths: at most so many nodes, levels and leaves. floor: nodes with a lower confidence get no children. draft:
    int64 [nodes + 1, 2], token and parent, the root at 0. held: float64 [nodes + 1], confidence of a node given its parent.
    Scratch: leaf: int64 [nodes + 1], whether a node has no children; waiting: int64 [most, 4], candidates as parent, depth,
    token, bit mask of votes; chances: float64 [most, 2], probability of a candidate's path and of its token; tokens, masks: int64
    [votes] and sums: float64 [votes], candidates at one node.
    """
    votes = collect_votes(text, size, lengths, tables, ends, seen, weights, matches, places)
    draft[0, 0], draft[0, 1], held[0] = text[size - 1], -1, 1.0
    if not votes:
        return 1
    for node in range(nodes + 1):
        leaf[node] = 1
    taken, left, node, level, chance, said = 1, 0, 0, 0, 1.0, (1 << votes) - 1
    while True:
        if level < depth and held[node] >= floor:
            # past the end of the text, continue as if it repeated itself from the match on
            split, total, first = 0, 0.0, -1
            for vote in range(votes):
                if not said >> vote & 1:
                    continue
                first = vote if first < 0 else first
                token, one = text[places[vote] + level % (size - places[vote])], 0
                while one < split and tokens[one] != token:
                    one += 1
                if one == split:
                    tokens[one], masks[one], sums[one] = token, 0, 0.0
                    split += 1
                masks[one] |= 1 << vote
                sums[one] += weights[vote]
                total += weights[vote]
            best = _LIKELY[min(matches[first] + level, LONGEST)]
            for one in range(split):
                confidence = best * sums[one] / total if split > 1 else best
                if chance * confidence >= _WORTH:
                    waiting[left, 0], waiting[left, 1] = node, level + 1
                    waiting[left, 2], waiting[left, 3] = tokens[one], masks[one]
                    chances[left, 0], chances[left, 1] = chance * confidence, confidence
                    left += 1
        # the likeliest candidate that may still be added, in a tie the first; candidates that may not are dropped here
        best_at = -1
        while left:
            best_at = 0
            for one in range(1, left):
                if chances[one, 0] > chances[best_at, 0]:
                    best_at = one
            if paths > 1 or leaf[waiting[best_at, 0]]:
                break
            left = _remove(waiting, chances, best_at, left)
            best_at = -1
        if best_at < 0 or taken > nodes:
            return taken
        parent, level, token, said = waiting[best_at, 0], waiting[best_at, 1], waiting[best_at, 2], waiting[best_at, 3]
        chance, held[taken] = chances[best_at, 0], chances[best_at, 1]
        left = _remove(waiting, chances, best_at, left)
        paths -= 1 - leaf[parent]
        leaf[parent], node = 0, taken
        draft[taken, 0], draft[taken, 1] = token, parent
        taken += 1


@helper
def _remove(waiting, chances, place, left):
    """Remove one candidate and keep the order of the others. Returns how many are left."""
    for one in range(place, left - 1):
        for column in range(4):
            waiting[one, column] = waiting[one + 1, column]
        chances[one, 0], chances[one, 1] = chances[one + 1, 0], chances[one + 1, 1]
    return left - 1


def draft_tree(
    text, lengths, tables, ends, counts, known, size, nodes, depth, floor, paths, draft, held, seen, weights, matches, places,
    leaf, waiting, chances, tokens, masks, sums,
):  # fmt: skip
    """Index the tokens after `known`, and then draft. Returns the number of nodes, the root included. Arguments as in
    `_grow_tree`."""
    extend(text, lengths, tables, ends, counts, known, size)
    return _grow_tree(
        text, size, lengths, tables, ends, nodes, depth, floor, paths, draft, held, seen, weights, matches, places, leaf,
        waiting, chances, tokens, masks, sums,
    )  # fmt: skip
