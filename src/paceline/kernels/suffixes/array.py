"""Sorted suffixes of a text that is done: built in place, searched by halving, and read as what follows a match.

Suffixes are compared by their first `SORTED_TO` tokens and then by place, for nobody looks further: a match and the continuation
behind it are shorter. That bounds the work on texts that repeat themselves, and needs no memory beside the order itself.

Source: Manber and Myers, Suffix arrays (1993); the sort is Bentley and Sedgewick's multikey quicksort (1997); drafting from
what follows all hits: He et al., REST (arXiv:2311.08252), section 3.
"""

from __future__ import annotations

import numpy as np

from paceline.kernels.lookups import compiled

BORDER = -1
"""Ends every document; a match never holds it, and nothing behind it is read."""
SORTED_TO = 32
"""Tokens by which suffixes are compared."""
LONGEST_MATCH = 16
"""Tokens of the longest match that is looked for."""
ENOUGH = 16
"""Occurrences from which on a match needs no shorter one beside it."""
_FEW = 16
"""Suffixes that are sorted by insertion."""


@compiled
def counted(tokens, starts):
    """Add to starts[token + 1] how often each token of a piece occurs. starts: int64 [V + 1]."""
    for token in tokens:
        if token != BORDER:
            starts[token + 1] += 1


@compiled
def dealt(tokens, first, places, order):
    """Write where each suffix of a piece begins to the place of its first token. first: where the piece begins in the text.

    places: int64 [V + 1], where the next suffix of each token goes. order: int32.
    """
    for at in range(len(tokens)):
        token = tokens[at]
        if token != BORDER:
            order[places[token]] = first + at
            places[token] += 1


@compiled
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


@compiled
def in_order(tokens, order, looked_at):
    """Whether the suffixes at these places are suffixes, and stand behind those before them. Looks at no others."""
    for place in looked_at:
        at, before = np.int64(order[place]), np.int64(order[max(place - 1, 0)])
        for suffix in (at, before):
            if suffix < 0 or suffix >= len(tokens) or tokens[suffix] == BORDER:
                return False
        if place and not _before(tokens, before, at, 0):
            return False
    return True


@compiled
def _inserted(tokens, order, low, high, depth):
    for at in range(low + 1, high):
        suffix = order[at]
        place = at
        while place > low and _before(tokens, suffix, order[place - 1], depth):
            order[place] = order[place - 1]
            place -= 1
        order[place] = suffix


@compiled
def _middle(one, two, three):
    return max(min(one, two), min(max(one, two), three))


@compiled
def _waits(waiting, first, count, low, high, depth):
    """Note that a part is still to be sorted; of those since `first` the smallest is the last."""
    if high - low < 2:
        return count
    place = count
    while place > first and waiting[place - 1, 1] - waiting[place - 1, 0] < high - low:
        waiting[place] = waiting[place - 1]
        place -= 1
    waiting[place, 0], waiting[place, 1], waiting[place, 2] = low, high, depth
    return count + 1


@compiled
def sorted_between(tokens, order, low, high):
    """Sort order[low:high], whose suffixes share their first token. tokens: int32, ends with a border. order: int32."""
    # the smallest of three parts goes on first, so that what waits stays within twice the logarithm of the suffixes
    waiting = np.empty((128, 3), np.int64)
    waiting[0, 0], waiting[0, 1], waiting[0, 2] = low, high, 1
    count = 1
    while count:
        count -= 1
        low, high, depth = waiting[count, 0], waiting[count, 1], waiting[count, 2]
        if depth == SORTED_TO:
            order[low:high].sort()
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


@compiled
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


@compiled
def _first(tokens, order, text, start, low, high, past):
    """The first suffix from `low` that does not come before text[start:]; with `past`, that comes after all that begin so."""
    while low < high:
        middle = (low + high) // 2
        if _compared(tokens, np.int64(order[middle]), text, start) < past:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
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


@compiled
def _counted(tokens, order, low, high, length, hits, weight, depth, end, vocab_size, trie, sums, size):
    """Count what follows up to `hits` of the suffixes from `low` to `high`, evenly chosen; how many nodes the trie has then.

    trie: int32 [most, 4], token, parent, first child and next sibling per node; node 0 is the match. sums: float64 [most], how
    much was counted, `weight` in all. size: nodes that are there already.
    """
    path = np.zeros(depth + 1, np.int64)
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


@compiled
def drafted(tokens, order, text, shortest, hits, nodes, depth, floor, end, vocab_size, trie, sums, draft, held):
    """What followed the end of `text`, int64, as a tree, the likeliest first: how many nodes, and the length of the match.

    The longest match speaks for itself where it occurs `ENOUGH` times; else the longest that does has a say, the more the fewer
    occurrences there are. shortest: match. hits: occurrences that are looked at. nodes, depth, floor: bounds of the tree; no path
    in it is less likely than `floor`. end: the token that ends a text, or -1. draft: int64 [nodes, 2], token and parent, where
    parent 0 is the text's end and k the k-th node. held: float64 [nodes], how likely a token is once its parent is right.
    trie, sums: room for 1 + 2 * hits * depth nodes, as in `_counted`.
    """
    length, low, high = _longest(tokens, order, text, shortest, len(text), 1)
    if not length:
        return 0, 0
    found = high - low
    other, other_low, other_high = 0, 0, 0
    if found < ENOUGH:
        other, other_low, other_high = _longest(tokens, order, text, shortest, length - 1, ENOUGH)
    weight = found / (found + ENOUGH) if other else 1.0
    # what was never seen counts as a fraction of an occurrence
    seen = 1.0 if other else found / (found + 1.0 / length)
    trie[0, 0], trie[0, 1], trie[0, 2], trie[0, 3], sums[0] = -1, -1, 0, 0, 0.0
    size = _counted(tokens, order, low, high, length, hits, weight, depth, end, vocab_size, trie, sums, 1)
    if other:
        size = _counted(tokens, order, other_low, other_high, other, hits, 1 - weight, depth, end, vocab_size, trie, sums, size)
    return _chosen(trie, sums, size, seen, nodes, floor, draft, held), length


@compiled
def _chosen(trie, sums, size, seen, nodes, floor, draft, held):
    """Fill `draft` and `held` with the likeliest nodes of a trie; how many."""
    paths, shares = np.empty(size), np.empty(size)
    likely, places = np.empty(size, np.int64), np.zeros(size, np.int64)
    paths[0], count = 1.0, 0
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
