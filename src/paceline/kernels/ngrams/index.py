"""Index: the tables of `occurrences`, grown by a token and cut back by one.

An n-gram is found by hash and compared with the text itself: a place in the text stands for it.

Source: of what most ends are followed by, the majority vote of Boyer and Moore, MJRTY: A Fast Majority Vote Algorithm (1991).
"""

from __future__ import annotations

import numpy as np

from paceline.kernels.native.memory import helper
from paceline.kernels.ngrams.occurrences import AGREED, BEFORE, LEADS


@helper
def _home(text, length, end, slots):
    """Where the n-gram that ends at `end` belongs in a table."""
    mixed = np.uint64(0xCBF29CE484222325)
    for at in range(end - length, end):
        mixed = (mixed ^ np.uint64(text[at] + 1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return np.int64(mixed & np.uint64(slots - 1))


@helper
def slot_of(text, table, length, end):
    """Where in a table the last end of the n-gram is that ends at `end`, or would go. table: int32 [slots], 0 where empty."""
    slot = _home(text, length, end, len(table))
    while table[slot]:
        other, same = table[slot], True
        for back in range(1, length + 1):
            if text[other - back] != text[end - back]:
                same = False
                break
        if same:
            return slot
        slot = (slot + 1) & (len(table) - 1)
    return slot


@helper
def grown(text, lengths, tables, ends, counts, known, size):
    """Take in the ends behind `known` up to the one that the last of `size` tokens follows."""
    for place in range(len(lengths)):
        n, table, held = lengths[place], tables[place], ends[place]
        for end in range(known + 1, min(n, size)):
            held[BEFORE, end] = held[AGREED, end] = held[LEADS, end] = 0
        for end in range(max(known + 1, n), size):
            slot = slot_of(text, table, n, end)
            earlier = table[slot]
            counts[place] += earlier == 0
            table[slot] = end
            agreed, lead = end, held[LEADS, earlier]
            # a majority stands until those who disagree have used up its lead
            if lead and text[held[AGREED, earlier]] != text[end]:
                agreed, lead = held[AGREED, earlier], lead - 2
            held[BEFORE, end], held[AGREED, end], held[LEADS, end] = earlier, agreed, lead + 1


@helper
def _emptied(text, table, length, slot):
    """Empty a slot, and move up what had to make way for it."""
    mask, other = len(table) - 1, slot
    while True:
        other = (other + 1) & mask
        if not table[other]:
            break
        home = _home(text, length, table[other], len(table))
        if ((other - home) & mask) >= ((other - slot) & mask):
            table[slot] = table[other]
            slot = other
    table[slot] = 0


@helper
def cut(text, lengths, tables, ends, counts, known, kept):
    """Forget all ends behind `kept`."""
    for place in range(len(lengths)):
        for end in range(known, max(kept, lengths[place] - 1), -1):
            slot = slot_of(text, tables[place], lengths[place], end)
            if ends[place, BEFORE, end]:
                tables[place, slot] = ends[place, BEFORE, end]
            else:
                _emptied(text, tables[place], lengths[place], slot)
                counts[place] -= 1


@helper
def filled(text, lengths, tables, known):
    """Enter the last end of every n-gram into empty tables."""
    for place in range(len(lengths)):
        for end in range(lengths[place], known + 1):
            tables[place, slot_of(text, tables[place], lengths[place], end)] = end
