"""Numba definitions for `array`: build the suffix array of a text, search it for a match, and draft from what follows.

Source: Manber and Myers, Suffix arrays (1993); the sort is Bentley and Sedgewick's multikey quicksort (1997), and Williams'
heapsort (1964) for suffixes that agree in all tokens that are compared.
"""

from __future__ import annotations

import numpy as np

from paceline.kernels.native.memory import helper
from paceline.kernels.suffixes.array import BORDER, ENOUGH, SORTED_TO

_FEW = 16
"""Up to so many suffixes are sorted by insertion sort."""


def count_tokens(tokens, starts):
    """Add to starts[token + 1] how often each token occurs in a piece of the text. tokens: int32. starts: int64 [V + 1]."""
    for token in tokens:
        if token != BORDER:
            starts[token + 1] += 1


def bucket_suffixes(tokens, first, places, order):
    """Put the suffixes that begin in a piece of the text into the bucket of their first token, as positions in the text.

    tokens: int32, the piece. first: its position. places: int64 [V + 1], per token where its next suffix goes, advanced here.
    order: int32, the suffix array.
    """
    for at in range(len(tokens)):
        token = tokens[at]
        if token != BORDER:
            order[places[token]] = first + at
            places[token] += 1


@helper
def _precedes(tokens, one, other, depth):
    """Whether suffix `one` sorts before `other`, where the first `depth` tokens of both are the same."""
    while depth < SORTED_TO:
        left, right = tokens[one + depth], tokens[other + depth]
        if left != right:
            return left < right
        if left == BORDER:
            break
        depth += 1
    return one < other


def is_sorted(tokens, order, looked_at):
    """1 if order[place] is a valid suffix that sorts after order[place - 1] for all places `looked_at`, else 0."""
    for place in looked_at:
        at, before = np.int64(order[place]), np.int64(order[max(place - 1, 0)])
        for suffix in (at, before):
            if suffix < 0 or suffix >= len(tokens) or tokens[suffix] == BORDER:
                return 0
        if place and not _precedes(tokens, before, at, 0):
            return 0
    return 1


@helper
def _insertion_sort(tokens, order, low, high, depth):
    """Sort order[low:high], whose suffixes share `depth` tokens."""
    for at in range(low + 1, high):
        suffix = order[at]
        place = at
        while place > low and _precedes(tokens, suffix, order[place - 1], depth):
            order[place] = order[place - 1]
            place -= 1
        order[place] = suffix


@helper
def _sift_down(order, low, place, count):
    """Restore the max-heap order[low:low + count] below its element `place`."""
    suffix = order[low + place]
    while 2 * place + 1 < count:
        child = 2 * place + 1
        if child + 1 < count and order[low + child] < order[low + child + 1]:
            child += 1
        if order[low + child] <= suffix:
            break
        order[low + place] = order[low + child]
        place = child
    order[low + place] = suffix


@helper
def _heap_sort(order, low, high):
    """Sort order[low:high] by position in the text."""
    count = high - low
    for place in range(count // 2 - 1, -1, -1):
        _sift_down(order, low, place, count)
    for last in range(count - 1, 0, -1):
        order[low], order[low + last] = order[low + last], order[low]
        _sift_down(order, low, 0, last)


@helper
def _median(one, two, three):
    """The median of three numbers."""
    return max(min(one, two), min(max(one, two), three))


@helper
def _push_range(waiting, first, count, low, high, depth):
    """Push the range order[low:high] onto the stack, keeping entries from `first` on sorted by size, the smallest on top. Returns
    the size of the stack."""
    if high - low < 2:
        return count
    place = count
    while place > first and waiting[place - 1, 1] - waiting[place - 1, 0] < high - low:
        for column in range(3):
            waiting[place, column] = waiting[place - 1, column]
        place -= 1
    waiting[place, 0], waiting[place, 1], waiting[place, 2] = low, high, depth
    return count + 1


def sort_range(tokens, order, low, high, waiting):
    """Sort order[low:high], whose suffixes share their first token, by multikey quicksort.

    tokens: int32, the text, which ends with BORDER. order: int32. waiting: int64 [WAITING, 3], scratch for the stack of ranges.
    """
    # the smallest of three ranges is sorted first, so that the stack stays within twice the logarithm of the suffixes
    waiting[0, 0], waiting[0, 1], waiting[0, 2] = low, high, 1
    count = 1
    while count:
        count -= 1
        low, high, depth = waiting[count, 0], waiting[count, 1], waiting[count, 2]
        if depth == SORTED_TO:
            _heap_sort(order, low, high)
            continue
        if high - low <= _FEW:
            _insertion_sort(tokens, order, low, high, depth)
            continue
        pivot = _median(tokens[order[low] + depth], tokens[order[(low + high) // 2] + depth], tokens[order[high - 1] + depth])
        less, at, more = low, low, high
        while at < more:
            token = tokens[order[at] + depth]
            if token < pivot:
                order[at], order[less] = order[less], order[at]
                less += 1
                at += 1
            elif token > pivot:
                more -= 1
                order[at], order[more] = order[more], order[at]
            else:
                at += 1
        first = count
        count = _push_range(waiting, first, count, low, less, depth)
        count = _push_range(waiting, first, count, less, more, SORTED_TO if pivot == BORDER else depth + 1)
        count = _push_range(waiting, first, count, more, high, depth)


@helper
def _compare(tokens, at, text, start):
    """Compare the suffix at `at` with text[start:]: -1 if it sorts before, 0 if it begins with it, 1 if it sorts after. Positions
    outside the text sort before."""
    if at < 0:
        return -1
    for place in range(start, len(text)):
        if at >= len(tokens) or tokens[at] < text[place]:
            return -1
        if tokens[at] > text[place]:
            return 1
        at += 1
    return 0


@helper
def _lower_bound(tokens, order, text, start, low, high, past):
    """Binary search in order[low:high] for the first suffix that does not sort before text[start:] (past = 0), or that sorts
    after all which begin with it (past = 1)."""
    while low < high:
        middle = (low + high) // 2
        if _compare(tokens, np.int64(order[middle]), text, start) < past:
            low = middle + 1
        else:
            high = middle
    return low


@helper
def _longest_match(tokens, order, text, shortest, longest, enough):
    """The longest suffix of `text` with at least `enough` occurrences: its length and their range [low, high) in `order`.

    A suffix occurs at least as often as any longer one, so the length, from `shortest` to `longest`, is found by binary
    search too. All three are 0 where there is none.
    """
    length, low, high = 0, 0, 0
    while shortest <= longest:
        tried = (shortest + longest) // 2
        start = len(text) - tried
        found = _lower_bound(tokens, order, text, start, 0, len(order), 0)
        last = found + enough - 1
        if last < len(order) and _compare(tokens, np.int64(order[last]), text, start) == 0:
            length, low = tried, found
            shortest = tried + 1
        else:
            longest = tried - 1
    if length:
        high = _lower_bound(tokens, order, text, len(text) - length, low, len(order), 1)
    return length, low, high


@helper
def _count_continuations(tokens, order, low, high, length, hits, weight, depth, end, vocab_size, trie, sums, path, size):
    """Add the continuations of up to `hits` evenly spaced occurrences in order[low:high] to a trie. Returns its number of nodes.

    length: of the match. weight: total weight of these occurrences. depth: of the trie. end: token that ends a text, or -1. trie:
    int32 [most, 4], token, parent, first child and next sibling per node; node 0 is the match. sums: float64 [most], weight per
    node. path: int64 [depth + 1], scratch. size: nodes that are there already.
    """
    for level in range(depth + 1):
        path[level] = 0
    taken = min(hits, high - low)
    sums[0] += weight
    for hit in range(taken):
        at = np.int64(order[low + hit * (high - low) // taken]) + length
        node = np.int64(0)
        for level in range(1, depth + 1):
            token = np.int64(tokens[at]) if 0 <= at < len(tokens) else np.int64(BORDER)
            over = token == BORDER
            token = end if over else token
            if token < 0 or token >= vocab_size:
                break
            # neighbours in the suffix array share prefixes
            child = path[level]
            if not child or trie[child, 0] != token or trie[child, 1] != node:
                child = np.int64(trie[node, 2])
                while child and trie[child, 0] != token:
                    child = np.int64(trie[child, 3])
                if not child:
                    child = np.int64(size)
                    size += 1
                    trie[child, 0], trie[child, 1], trie[child, 2], trie[child, 3] = token, node, 0, trie[node, 2]
                    trie[node, 2], sums[child] = child, 0.0
            sums[child] += weight / taken
            path[level] = node = child
            if over or token == end:
                break
            at += 1
    return size


def draft_tree(
    tokens, order, text, shortest, hits, nodes, depth, floor, end, vocab_size, trie, sums, path, chances, places, draft, held
):
    """Write a draft tree of what followed the occurrences of the end of `text`, best first. Returns its number of nodes.

    If the longest match occurs at least `ENOUGH` times, it counts alone. Otherwise the longest match that does is mixed in, with
    more weight the fewer occurrences the longest match has.

    tokens, order: int32, the indexed text and its suffix array. text: int64. shortest: least length of a match in tokens. hits:
    occurrences that are counted, at most. nodes, depth, floor: at most so many nodes and levels, no path less likely. end: token
    that ends a text, or -1. draft: int64 [nodes, 2], token and parent; parent 0 is the text's end, k the k-th node. held: float64
    [nodes], probability given the parent. Scratch: trie, sums, path: as in `_count_continuations`, for 1 + 2 * hits * depth
    nodes; chances, places: float64 and int64 [2, as many nodes].
    """
    length, low, high = _longest_match(tokens, order, text, shortest, len(text), 1)
    if not length:
        return 0
    found = high - low
    other, other_low, other_high = 0, 0, 0
    if found < ENOUGH:
        other, other_low, other_high = _longest_match(tokens, order, text, shortest, length - 1, ENOUGH)
    weight = found / (found + ENOUGH) if other else 1.0
    # unseen continuations count as a fraction of an occurrence
    seen = 1.0 if other else found / (found + 1.0 / length)
    trie[0, 0], trie[0, 1], trie[0, 2], trie[0, 3], sums[0] = -1, -1, 0, 0, 0.0
    size = _count_continuations(tokens, order, low, high, length, hits, weight, depth, end, vocab_size, trie, sums, path, 1)
    if other:
        size = _count_continuations(
            tokens, order, other_low, other_high, other, hits, 1 - weight, depth, end, vocab_size, trie, sums, path, size
        )
    return _choose_nodes(trie, sums, size, seen, nodes, floor, chances[0], chances[1], places[0], places[1], draft, held)


@helper
def _choose_nodes(trie, sums, size, seen, nodes, floor, paths, shares, likely, places, draft, held):
    """Write the likeliest nodes of a trie to `draft` and `held`. Returns how many. Scratch: paths, shares, likely, places:
    [size]."""
    paths[0], places[0], count = 1.0, 0, 0
    for node in range(1, size):
        parent = trie[node, 1]
        shares[node] = seen * sums[node] / sums[parent]
        paths[node] = paths[parent] * shares[node]
        if paths[node] >= floor:
            likely[count] = node
            count += 1
    taken = 0
    while taken < nodes and count:
        # the first of equals: a parent comes before its children, and is no less likely
        best = 0
        for one in range(1, count):
            if paths[likely[one]] > paths[likely[best]]:
                best = one
        node = likely[best]
        draft[taken, 0], draft[taken, 1], held[taken] = trie[node, 0], places[trie[node, 1]], shares[node]
        taken += 1
        places[node] = taken
        count -= 1
        for one in range(best, count):
            likely[one] = likely[one + 1]
    return taken
