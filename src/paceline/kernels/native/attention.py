"""Attention of a flat ragged batch of trees, over keys and values that lie in panels, with the tiles of `products`.

Scores are a product of queries with panels of keys (PANEL keys side by side), outputs a product of weights with panels of
values, divided by the sum of the weights. For each row, every score is one sum over the head in order, the weights are the
exponentials of the row's own scores, from the first key it sees to itself, and every output is one sum over keys in the order of
their POSITIONS. The ancestors of a tree's node lie in scattered slots; they are first gathered in order of position, and their
part of the sum continues that of the prefix. So a node has the same bits as the same token decoded alone.

Source: tree attention after SpecInfer (arXiv:2305.09781), section 4.2; grouped queries, Ainslie et al. (arXiv:2305.13245).
"""

from __future__ import annotations

import numpy as np

from paceline.kernels.native import arithmetic
from paceline.kernels.native.memory import floats, half_copied, helper, put
from paceline.kernels.native.products import asked_for, call_product
from paceline.kernels.native.rows import up
from paceline.kernels.native.tiles import CONTINUE, MOST_ROWS, STORE
from paceline.kernels.native.transposition import turned
from paceline.kernels.native.vectors import LANES, PANEL

_f = np.float32
_LEAST = _f(-3e38)
"""The score of a key that is not seen."""


@helper
def attend(product, model, layer, segment, parents, index, key_head, first, last, projected, stride, attended, scratch, longest):
    """Queries [first, last) of one key head and segment: query q is row q // group of the segment, head q % group of the group.
    Row r is node number segment.first + r.

    At most MOST_ROWS of them. projected: the flat rows of queries, keys and values, already rotated, `stride` floats apart.
    """
    head_size, group, kv_bytes = model.head_size, model.heads // model.key_heads, model.kv_bytes
    width = up(head_size, PANEL)
    count = last - first
    queries = scratch
    outputs = queries + 4 * MOST_ROWS * width
    scores = outputs + 4 * MOST_ROWS * width
    weights = scores + 4 * MOST_ROWS * (longest + PANEL)
    totals = weights + 4 * MOST_ROWS * (longest + PANEL)
    tail = totals + 4 * PANEL
    score_stride = longest + PANEL
    tree = segment.start + segment.chain
    plane = index * model.key_heads + key_head
    keys = segment.keys + kv_bytes * plane * segment.capacity * head_size
    values = segment.values + kv_bytes * plane * segment.capacity * width
    _transposed(projected, stride, segment.low, key_head, group, head_size, first, last, queries, outputs)
    # the range of positions that any of these rows sees and where slots equal positions
    low, high = tree, 0
    for row in range(first // group, (last - 1) // group + 1):
        position = _position(segment, parents, segment.first + row)
        low = min(low, max(position + 1 - layer.window, 0) if layer.window > 0 else 0)
        high = max(high, min(position + 1, tree))
    low = low // PANEL * PANEL
    panel = kv_bytes * head_size * PANEL
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
    asked_for(values + kv_bytes * low * PANEL)
    for query in range(first, last):
        row = query // group
        node = segment.first + row
        if node >= segment.chain and (query == first or query % group == 0):
            members = min(last, (row + 1) * group) - query
            _tail_scores(
                product, segment, parents, node, query - first, members, count, queries, keys, head_size, kv_bytes, scores,
                score_stride, tail,
            )  # fmt: skip
        position = _position(segment, parents, node)
        begin = max(position + 1 - layer.window, 0) if layer.window > 0 else 0
        line = scores + 4 * (query - first) * score_stride
        put(floats(totals), query - first, _weighed(layer, line + 4 * begin, position + 1 - begin))
        arithmetic.filled(line, low, begin, _f(0))
        arithmetic.filled(line, position + 1, high, _f(0))
    asked_for(keys + kv_bytes * segment.capacity * head_size)
    if high > low:
        turned(scores + 4 * low, 4 * score_stride, count, up(high - low, LANES) // LANES, weights)
        call_product(
            product, count, weights, values + kv_bytes * low * PANEL, kv_bytes * segment.capacity * PANEL, high - low, outputs,
            4 * width, 0, width // PANEL, STORE,
        )  # fmt: skip
    else:
        for k in range(count * width):
            put(floats(outputs), k, _f(0))
    for query in range(first, last):
        row = query // group
        node = segment.first + row
        if node >= segment.chain and (query == first or query % group == 0):
            members = min(last, (row + 1) * group) - query
            _tail_outputs(
                product, segment, parents, node, query - first, members, values, width, kv_bytes, scores, score_stride,
                weights, tail, outputs,
            )  # fmt: skip
        head = key_head * group + query % group
        target = floats(attended + 4 * ((segment.low + row) * model.heads + head) * head_size)
        source, total = floats(outputs + 4 * (query - first) * width), floats(totals)[query - first]
        for k in range(head_size):
            put(target, k, source[k] / total)


@helper
def _position(segment, parents, node):
    """A node's position: a chain row's is its slot, a tree node's is its parent's plus 1."""
    if node < segment.chain:
        return segment.start + node
    depth = 0
    while node >= segment.chain:
        node = parents[segment.family + node]
        depth += 1
    return segment.start + segment.chain - 1 + depth


@helper
def _transposed(projected, stride, low, key_head, group, head_size, first, last, queries, lines):
    """Queries in the product's layout: [head_size, count]. lines: scratch for them row by row."""
    wide, begin = up(head_size, LANES), key_head * (group + 2)
    for query in range(first, last):
        source = floats(projected + 4 * ((low + query // group) * stride + (begin + query % group) * head_size))
        target = floats(lines + 4 * (query - first) * wide)
        for k in range(head_size):
            put(target, k, source[k])
    turned(lines, 4 * wide, last - first, wide // LANES, queries)


@helper
def _weighed(layer, seen, number):
    """Turn one query's scores into weights in place; returns their sum."""
    # padded to whole panels, since a vector loop's remainder would be computed number by number
    whole, factor = up(number, PANEL), layer.score_scale
    if layer.score_cap > 0:
        arithmetic.scaled(seen, whole, factor)
        arithmetic.soft_capped(seen, whole, layer.score_cap)
        factor = _f(1)
    arithmetic.filled(seen, number, whole, _LEAST)
    return arithmetic.soft_max(seen, whole, factor)


@helper
def _copied(target, place, source, from_, kv_bytes):
    """Copy one number of a key or value from one array to another."""
    if kv_bytes == 2:
        half_copied(target + 2 * place, source + 2 * from_)
    else:
        put(floats(target), place, floats(source)[from_])


@helper
def _tail_scores(
    product, segment, parents, node, column, members, count, queries, keys, head_size, kv_bytes, scores, stride, tail
):
    """Scores of one node's queries with its ancestors in the tree and itself, after those with the prefix."""
    tree = segment.start + segment.chain
    position = _position(segment, parents, node)
    number = position + 1 - tree
    # [panels, head_size, PANEL], as the keys of the slab
    for t in range(number - 1, -1, -1):
        slot = segment.start + node
        source = slot // PANEL * head_size * PANEL + slot % PANEL
        place = t // PANEL * head_size * PANEL + t % PANEL
        for k in range(head_size):
            _copied(tail, place + k * PANEL, keys, source + k * PANEL, kv_bytes)
        node = parents[segment.family + node]
    wanted = tail + 4 * up(number, PANEL) * head_size
    source, target = floats(queries), floats(wanted)
    for k in range(head_size):
        for member in range(members):
            put(target, k * members + member, source[k * count + column + member])
    result = scores + 4 * (column * stride + tree)
    panels = up(number, PANEL) // PANEL
    call_product(product, members, wanted, tail, kv_bytes * head_size * PANEL, head_size, result, 4 * stride, 0, panels, STORE)


@helper
def _tail_outputs(
    product, segment, parents, node, column, members, values, width, kv_bytes, scores, stride, weights, tail, outputs
):
    """Continue one node's outputs over its ancestors in the tree and itself."""
    tree = segment.start + segment.chain
    position = _position(segment, parents, node)
    number = position + 1 - tree
    # [width / PANEL, number, PANEL], as the values of the slab
    for t in range(number - 1, -1, -1):
        slot = segment.start + node
        for panel in range(width // PANEL):
            source = (panel * segment.capacity + slot) * PANEL
            for k in range(PANEL):
                _copied(tail, (panel * number + t) * PANEL + k, values, source + k, kv_bytes)
        node = parents[segment.family + node]
    turned(scores + 4 * (column * stride + tree), 4 * stride, members, up(number, LANES) // LANES, weights)
    result = outputs + 4 * column * width
    call_product(
        product, members, weights, tail, kv_bytes * number * PANEL, number, result, 4 * width, 0, width // PANEL, CONTINUE
    )
