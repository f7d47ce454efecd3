"""Order: the suffixes of `array`, dealt by their first token, sorted where they lie, searched by halving, and counted.

Source: Manber and Myers, Suffix arrays (1993); the sort is Bentley and Sedgewick's multikey quicksort (1997), and Williams'
heapsort (1964) for what agrees as far as suffixes are compared.
"""

from __future__ import annotations

import numpy as np

from paceline.kernels.native.memory import helper
from paceline.kernels.suffixes.array import BORDER, ENOUGH, SORTED_TO

_FEW = 16
"""Suffixes that are sorted by insertion."""


def counted(tokens, starts):
    """Add to starts[token + 1] how often each token of a piece occurs. starts: int64 [V + 1]."""
    for token in tokens:
        if token != BORDER:
            starts[token + 1] += 1


def dealt(tokens, first, places, order):
    """Write where each suffix of a piece begins to the place of its first token. first: where the piece begins in the text.

    places: int64 [V + 1], where the next suffix of each token goes. order: int32.
    """
    for at in range(len(tokens)):
        token = tokens[at]
        if token != BORDER:
            order[places[token]] = first + at
            places[token] += 1


@helper
def _before(tokens, one, other, depth):
    """Whether a suffix comes before another that agrees with it in `depth` tokens."""
    while depth < SORTED_TO:
        left, right = tokens[one + depth], tokens[other + depth]
        if left != right:
            return left < right
        if left == BORDER:
            break
        depth += 1
    return one < other


def in_order(tokens, order, looked_at):
    """1 if the suffixes at these places are suffixes, and stand behind those before them, else 0. Looks at no others."""
    for place in looked_at:
        at, before = np.int64(order[place]), np.int64(order[max(place - 1, 0)])
        for suffix in (at, before):
            if suffix < 0 or suffix >= len(tokens) or tokens[suffix] == BORDER:
                return 0
        if place and not _before(tokens, before, at, 0):
            return 0
    return 1


@helper
def _inserted(tokens, order, low, high, depth):
    for at in range(low + 1, high):
        suffix = order[at]
        place = at
        while place > low and _before(tokens, suffix, order[place - 1], depth):
            order[place] = order[place - 1]
            place -= 1
        order[place] = suffix


@helper
def _sunk(order, low, place, count):
    """Let the suffix at low + place sink below all greater ones of a heap of `count`."""
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
def _by_place(order, low, high):
    """Sort order[low:high] as numbers."""
    count = high - low
    for place in range(count // 2 - 1, -1, -1):
        _sunk(order, low, place, count)
    for last in range(count - 1, 0, -1):
        order[low], order[low + last] = order[low + last], order[low]
        _sunk(order, low, 0, last)


@helper
def _middle(one, two, three):
    return max(min(one, two), min(max(one, two), three))


@helper
def _waits(waiting, first, count, low, high, depth):
    """Note that a part is still to be sorted; of those since `first` the smallest is the last."""
    if high - low < 2:
        return count
    place = count
    while place > first and waiting[place - 1, 1] - waiting[place - 1, 0] < high - low:
        for column in range(3):
            waiting[place, column] = waiting[place - 1, column]
        place -= 1
    waiting[place, 0], waiting[place, 1], waiting[place, 2] = low, high, depth
    return count + 1


def sorted_between(tokens, order, low, high, waiting):
    """Sort order[low:high], whose suffixes share their first token. tokens: int32, ends with a border. order: int32. waiting:
    int64 [WAITING, 3], scratch."""
    # the smallest of three parts goes on first, so that what waits stays within twice the logarithm of the suffixes
    waiting[0, 0], waiting[0, 1], waiting[0, 2] = low, high, 1
    count = 1
    while count:
        count -= 1
        low, high, depth = waiting[count, 0], waiting[count, 1], waiting[count, 2]
        if depth == SORTED_TO:
            _by_place(order, low, high)
            continue
        if high - low <= _FEW:
            _inserted(tokens, order, low, high, depth)
            continue
        pivot = _middle(tokens[order[low] + depth], tokens[order[(low + high) // 2] + depth], tokens[order[high - 1] + depth])
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
        count = _waits(waiting, first, count, low, less, depth)
        count = _waits(waiting, first, count, less, more, SORTED_TO if pivot == BORDER else depth + 1)
        count = _waits(waiting, first, count, more, high, depth)


@helper
def _compared(tokens, at, text, start):
    """-1, 0 or 1: the suffix comes before text[start:], begins with it, or comes after. What points nowhere comes before."""
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
def _first(tokens, order, text, start, low, high, past):
    """The first suffix from `low` that does not come before text[start:]; with `past`, that comes after all that begin so."""
    while low < high:
        middle = (low + high) // 2
        if _compared(tokens, np.int64(order[middle]), text, start) < past:
            low = middle + 1
        else:
            high = middle
    return low


@helper
def _longest(tokens, order, text, shortest, longest, enough):
    """The longest suffix of `text` with `enough` occurrences: its length, and the first and last but one of them; else 0.

    Where a suffix of the text occurs its own suffixes do too, and no less often: so lengths are halved as well.
    """
    length, low, high = 0, 0, 0
    while shortest <= longest:
        tried = (shortest + longest) // 2
        start = len(text) - tried
        found = _first(tokens, order, text, start, 0, len(order), 0)
        last = found + enough - 1
        if last < len(order) and _compared(tokens, np.int64(order[last]), text, start) == 0:
            length, low = tried, found
            shortest = tried + 1
        else:
            longest = tried - 1
    if length:
        high = _first(tokens, order, text, len(text) - length, low, len(order), 1)
    return length, low, high


@helper
def _counted(tokens, order, low, high, length, hits, weight, depth, end, vocab_size, trie, sums, path, size):
    """Count what follows up to `hits` of the suffixes from `low` to `high`, evenly chosen; how many nodes the trie has then.

    trie: int32 [most, 4], token, parent, first child and next sibling per node; node 0 is the match. sums: float64 [most], how
    much was counted, `weight` in all. path: int64 [depth + 1], scratch. size: nodes that are there already.
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
            # sorted suffixes share beginnings with their neighbours
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


def drafted(
    tokens, order, text, shortest, hits, nodes, depth, floor, end, vocab_size, trie, sums, path, chances, places, draft, held
):
    """What followed the end of `text`, int64, as a tree, the likeliest first: how many nodes.

    The longest match speaks for itself where it occurs `ENOUGH` times; else the longest that does has a say, the more the fewer
    occurrences there are. shortest: match. hits: occurrences that are looked at. nodes, depth, floor: bounds of the tree; no path
    in it is less likely than `floor`. end: the token that ends a text, or -1. draft: int64 [nodes, 2], token and parent, where
    parent 0 is the text's end and k the k-th node. held: float64 [nodes], how likely a token is once its parent is right.
    trie, sums: room for 1 + 2 * hits * depth nodes, as in `_counted`. path: int64 [depth + 1]. chances, places: float64 and int64
    [2, as many nodes].
    """
    length, low, high = _longest(tokens, order, text, shortest, len(text), 1)
    if not length:
        return 0
    found = high - low
    other, other_low, other_high = 0, 0, 0
    if found < ENOUGH:
        other, other_low, other_high = _longest(tokens, order, text, shortest, length - 1, ENOUGH)
    weight = found / (found + ENOUGH) if other else 1.0
    # what was never seen counts as a fraction of an occurrence
    seen = 1.0 if other else found / (found + 1.0 / length)
    trie[0, 0], trie[0, 1], trie[0, 2], trie[0, 3], sums[0] = -1, -1, 0, 0, 0.0
    size = _counted(tokens, order, low, high, length, hits, weight, depth, end, vocab_size, trie, sums, path, 1)
    if other:
        size = _counted(
            tokens, order, other_low, other_high, other, hits, 1 - weight, depth, end, vocab_size, trie, sums, path, size
        )
    return _chosen(trie, sums, size, seen, nodes, floor, chances[0], chances[1], places[0], places[1], draft, held)


@helper
def _chosen(trie, sums, size, seen, nodes, floor, paths, shares, likely, places, draft, held):
    """Fill `draft` and `held` with the likeliest nodes of a trie; how many. paths, shares, likely, places: [size], scratch."""
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
        # the first of equals: a parent stands before its children, and is no less likely
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
