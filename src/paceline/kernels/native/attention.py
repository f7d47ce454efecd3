"""Attention of a flat ragged batch of trees, over keys and values that lie in panels, with the tiles of `products`.

Scores are a product of queries with panels of keys (PANEL keys side by side), outputs a product of probabilities with panels
of values. Row by row: every score is one sum over the head in order, the softmax runs over the row's own keys from the first
it sees to itself, and every output is one sum over keys in the order of their POSITIONS. A tree's node finds its ancestors at
scattered slots; they are gathered by position first and their part of the sum continues that of the prefix. So a node has the
same bits as the same token decoded alone.

Source: tree attention after SpecInfer (arXiv:2305.09781), section 4.2; grouped queries, Ainslie et al. (arXiv:2305.13245).
"""

from __future__ import annotations

import numpy as np

from paceline.kernels.native import arithmetic
from paceline.kernels.native.formats import padded
from paceline.kernels.native.memory import floats, helper, put
from paceline.kernels.native.products import call_product
from paceline.kernels.native.rows import up
from paceline.kernels.native.tiles import CONTINUE, MOST_ROWS, STORE
from paceline.kernels.native.vectors import PANEL

_f = np.float32


def scratch_bytes(head_size: int, longest: int) -> int:
    """Bytes one thread needs: queries, outputs, a tile of scores and one of probabilities, a gathered tail."""
    width = padded(head_size, PANEL)
    return 4 * (2 * MOST_ROWS * width + 2 * MOST_ROWS * (longest + PANEL) + 2 * longest * width + PANEL * width)


@helper
def attend(product, model, layer, segment, parents, index, key_head, first, last, projected, stride, attended, scratch, longest):
    """Queries [first, last) of one key head and segment: query q is row q // group of the segment, head q % group of the group.

    At most MOST_ROWS of them. projected: the flat rows of queries, keys and values, already rotated, `stride` floats apart.
    """
    head_size, group = model.head_size, model.heads // model.key_heads
    width = up(head_size, PANEL)
    count = last - first
    queries = scratch
    outputs = queries + 4 * MOST_ROWS * width
    scores = outputs + 4 * MOST_ROWS * width
    shares = scores + 4 * MOST_ROWS * (longest + PANEL)
    tail = shares + 4 * MOST_ROWS * (longest + PANEL)
    score_stride = longest + PANEL
    tree = segment.start + segment.chain
    plane = index * model.key_heads + key_head
    keys = segment.keys + 4 * plane * segment.capacity * head_size
    values = segment.values + 4 * plane * segment.capacity * width
    _transposed(projected, stride, segment.low, key_head * group, group, head_size, first, last, queries)
    # what any of these rows may see at its own slot
    low, high = tree, 0
    for row in range(first // group, (last - 1) // group + 1):
        position = _position(segment, parents, row)
        low = min(low, max(position + 1 - layer.window, 0) if layer.window > 0 else 0)
        high = max(high, min(position + 1, tree))
    low = low // PANEL * PANEL
    panel = 4 * head_size * PANEL
    if high > low:
        call_product(
            product,
            count,
            queries,
            keys,
            panel,
            head_size,
            scores,
            4 * score_stride,
            low // PANEL,
            up(high, PANEL) // PANEL,
            STORE,
        )
    for query in range(first, last):
        row = query // group
        if row >= segment.chain and (query == first or query % group == 0):
            members = min(last, (row + 1) * group) - query
            _tail_scores(
                product, segment, parents, row, query - first, members, count, queries, keys, head_size, scores, score_stride,
                tail,
            )  # fmt: skip
        position = _position(segment, parents, row)
        begin = max(position + 1 - layer.window, 0) if layer.window > 0 else 0
        line = scores + 4 * (query - first) * score_stride
        seen = line + 4 * begin
        number = position + 1 - begin
        arithmetic.scaled(seen, number, layer.score_scale)
        if layer.score_cap > 0:
            arithmetic.soft_capped(seen, number, layer.score_cap)
        arithmetic.soft_max(seen, number)
        _shared_out(line, begin, position + 1, low, high, query - first, count, shares)
    if high > low:
        call_product(
            product, count, shares, values + 4 * low * PANEL, 4 * segment.capacity * PANEL, high - low, outputs, 4 * width, 0,
            width // PANEL, STORE,
        )  # fmt: skip
    else:
        for k in range(count * width):
            put(floats(outputs), k, _f(0))
    for query in range(first, last):
        row = query // group
        if row >= segment.chain and (query == first or query % group == 0):
            members = min(last, (row + 1) * group) - query
            _tail_outputs(
                product, layer, segment, parents, row, query - first, members, values, width, scores, score_stride, shares, tail,
                outputs,
            )  # fmt: skip
        head = key_head * group + query % group
        target = floats(attended + 4 * ((segment.low + row) * model.heads + head) * head_size)
        source = floats(outputs + 4 * (query - first) * width)
        for k in range(head_size):
            put(target, k, source[k])


@helper
def _position(segment, parents, row):
    """Chain rows stand at their slots; a node stands behind its parent."""
    if row < segment.chain:
        return segment.start + row
    depth = 0
    while row >= segment.chain:
        row = parents[segment.low + row]
        depth += 1
    return segment.start + segment.chain - 1 + depth


@helper
def _transposed(projected, stride, low, head, group, head_size, first, last, queries):
    """Queries as the product wants them: [head_size, count]."""
    target, count = floats(queries), last - first
    for query in range(first, last):
        at = projected + 4 * ((low + query // group) * stride + (head + query % group) * head_size)
        source = floats(at)
        for k in range(head_size):
            put(target, k * count + query - first, source[k])


@helper
def _shared_out(line, begin, end, low, high, column, count, shares):
    """Write one query's probabilities of the slots [low, high) into its column of [high - low, count]; 0 where it sees none."""
    source, target = floats(line), floats(shares + 4 * column)
    first, last = min(max(begin, low), high), min(end, high)
    for slot in range(low, first):
        put(target, (slot - low) * count, _f(0))
    for slot in range(first, last):
        put(target, (slot - low) * count, source[slot])
    for slot in range(max(first, last), high):
        put(target, (slot - low) * count, _f(0))


@helper
def _tail_scores(product, segment, parents, row, column, members, count, queries, keys, head_size, scores, stride, tail):
    """Scores of one node's queries with its ancestors in the tree and itself, behind those with the prefix."""
    tree = segment.start + segment.chain
    position = _position(segment, parents, row)
    number = position + 1 - tree
    own = floats(tail)
    node = row
    # [panels, head_size, PANEL], as the keys of the slab
    for t in range(number - 1, -1, -1):
        slot = segment.start + node
        source = floats(keys + 4 * (slot // PANEL * head_size * PANEL + slot % PANEL))
        place = t // PANEL * head_size * PANEL + t % PANEL
        for k in range(head_size):
            put(own, place + k * PANEL, source[k * PANEL])
        node = parents[segment.low + node]
    wanted = tail + 4 * up(number, PANEL) * head_size
    source, target = floats(queries), floats(wanted)
    for k in range(head_size):
        for member in range(members):
            put(target, k * members + member, source[k * count + column + member])
    result = scores + 4 * (column * stride + tree)
    panels = up(number, PANEL) // PANEL
    call_product(product, members, wanted, tail, 4 * head_size * PANEL, head_size, result, 4 * stride, 0, panels, STORE)


@helper
def _tail_outputs(product, layer, segment, parents, row, column, members, values, width, scores, stride, shares, tail, outputs):
    """Continue one node's outputs over its ancestors in the tree and itself."""
    tree = segment.start + segment.chain
    position = _position(segment, parents, row)
    begin = max(position + 1 - layer.window, 0) if layer.window > 0 else 0
    number = position + 1 - tree
    own = floats(tail)
    node = row
    # [width / PANEL, number, PANEL], as the values of the slab
    for t in range(number - 1, -1, -1):
        slot = segment.start + node
        for panel in range(width // PANEL):
            source = floats(values + 4 * (panel * segment.capacity + slot) * PANEL)
            for k in range(PANEL):
                put(own, (panel * number + t) * PANEL + k, source[k])
        node = parents[segment.low + node]
    for member in range(members):
        line = scores + 4 * (column + member) * stride
        _shared_out(line, begin, position + 1, tree, position + 1, member, members, shares)
    result = outputs + 4 * column * width
    call_product(product, members, shares, tail, 4 * number * PANEL, number, result, 4 * width, 0, width // PANEL, CONTINUE)
