"""Walking: from the root of a tree to the child that carries the token chosen at it, as far as there is one (`walks`)."""

from __future__ import annotations

import numpy as np

from paceline.kernels.choices import columns
from paceline.kernels.native.choosing import chosen, key_of
from paceline.kernels.native.memory import carray, helper, pointer
from paceline.kernels.native.shaping import copied, shaped


@helper
def _child(tokens, parents, begin, end, parent, token):
    """The first child that carries a token, counted within its tree; 0 for none."""
    for at in range(begin + parent + 1, end):
        if parents[at] == parent and tokens[at] == token:
            return at - begin
    return 0


def followed(count, sequences, numbers, size, nodes, held, copy):
    """Walk down every tree. All but the first and the fourth are addresses.

    sequences: int64 [count, COLUMNS]. numbers: float64 [count, NUMBERS]. nodes: int64 [COLUMNS_OF_NODES, size], of which the last
    two are written. held: int32 [MOST_KEPT], scratch, where there is a top-k. copy: float32 [V], of rows that are shaped.
    """
    integers = carray(pointer(sequences), (count, columns.COLUMNS), np.int64)
    others = carray(pointer(numbers), (count, columns.NUMBERS), np.float64)
    table = carray(pointer(nodes), (columns.COLUMNS_OF_NODES, size), np.int64)
    tokens, parents = table[columns.TOKEN], table[columns.PARENT]
    for owner in range(count):
        told, begin, end = integers[owner], integers[owner, columns.BEGIN], integers[owner, columns.END]
        temperature, top_p = np.float32(others[owner, columns.TEMPERATURE]), others[owner, columns.TOP_P]
        least_to_top, node = np.float32(others[owner, columns.LOG_MIN_P]), 0
        for level in range(end - begin):
            row = told[columns.ROWS] + node * told[columns.ROW_BYTES]
            if told[columns.SHAPE] != 0:
                copied(row, told[columns.VOCABULARY], copy)
                row, path = copy, nodes + 8 * (columns.CHOSEN * size + begin)
                shaped(row, told[columns.VOCABULARY], told[columns.SHAPE], path, level)
            key = key_of(told[columns.SEED], told[columns.POSITION] + level)
            token = chosen(row, told[columns.VOCABULARY], temperature, key, told[columns.TOP_K], top_p, least_to_top, held)
            node = _child(tokens, parents, begin, end, node, token)
            table[columns.CHOSEN, begin + level], table[columns.ACCEPTED, begin + level] = token, node
            if node == 0:
                break
