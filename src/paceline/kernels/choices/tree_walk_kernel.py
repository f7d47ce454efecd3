"""Numba definition for `tree_walk`: from the root of a draft tree on, choose a token and go to the child that carries it."""

from __future__ import annotations

import numpy as np

from paceline.kernels.choices import columns
from paceline.kernels.native.choosing import chosen, key_of
from paceline.kernels.native.memory import carray, helper, pointer
from paceline.kernels.native.shaping import copied, shaped


@helper
def _child(tokens, parents, begin, end, parent, token):
    """The first child of `parent` with this token, as an index in its tree, 0 for none. begin, end: of the tree in the arrays."""
    for at in range(begin + parent + 1, end):
        if parents[at] == parent and tokens[at] == token:
            return at - begin
    return 0


def walk_trees(count, sequences, numbers, size, nodes, held, copy):
    """Walk down `count` trees with `size` nodes in all, choosing a token at every node that is reached. The rest are addresses.

    sequences: int64 [count, COLUMNS]. numbers: float64 [count, NUMBERS]. nodes: int64 [COLUMNS_OF_NODES, size], whose rows CHOSEN
    and ACCEPTED are written (`columns`). held: int32 [MOST_KEPT], scratch for a top-k. copy: float32 [V], scratch for rows whose
    logits are biased or penalised.
    """
    integers = carray(pointer(sequences), (count, columns.COLUMNS), np.int64)
    others = carray(pointer(numbers), (count, columns.NUMBERS), np.float64)
    table = carray(pointer(nodes), (columns.COLUMNS_OF_NODES, size), np.int64)
    tokens, parents = table[columns.TOKEN], table[columns.PARENT]
    for owner in range(count):
        sequence, begin, end = integers[owner], integers[owner, columns.BEGIN], integers[owner, columns.END]
        temperature, top_p = np.float32(others[owner, columns.TEMPERATURE]), others[owner, columns.TOP_P]
        least_to_top, node = np.float32(others[owner, columns.LOG_MIN_P]), 0
        for level in range(end - begin):
            row = sequence[columns.ROWS] + node * sequence[columns.ROW_BYTES]
            if sequence[columns.SHAPE] != 0:
                copied(row, sequence[columns.VOCABULARY], copy)
                row, path = copy, nodes + 8 * (columns.CHOSEN * size + begin)
                shaped(row, sequence[columns.VOCABULARY], sequence[columns.SHAPE], path, level)
            key = key_of(sequence[columns.SEED], sequence[columns.POSITION] + level)
            token = chosen(
                row, sequence[columns.VOCABULARY], temperature, key, sequence[columns.TOP_K], top_p, least_to_top, held
            )
            node = _child(tokens, parents, begin, end, node, token)
            table[columns.CHOSEN, begin + level], table[columns.ACCEPTED, begin + level] = token, node
            if node == 0:
                break
