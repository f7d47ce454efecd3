"""Numba definitions for `index`: extend, truncate and rebuild the hash tables over the n-grams of one text.

A table holds no n-grams. It maps a hash to the position after the latest occurrence, and candidates are compared with the text.

Source: Boyer and Moore, MJRTY: A Fast Majority Vote Algorithm (1991), for the token that follows most occurrences of an n-gram.
"""

from __future__ import annotations

import numpy as np

from paceline.kernels.native.memory import helper
from paceline.kernels.ngrams.index import AGREED, BEFORE, LEADS


@helper
def _home(text, length, end, slots):
    """Hash slot of the n-gram text[end - length:end]. slots: size of the table, a power of two."""
    mixed = np.uint64(0xCBF29CE484222325)
    for at in range(end - length, end):
        mixed = (mixed ^ np.uint64(text[at] + 1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return np.int64(mixed & np.uint64(slots - 1))


@helper
def slot_of(text, table, length, end):
    """Slot of the n-gram text[end - length:end], found by linear probing: its own, or the empty one where it would go.

    text: int32. table: int32 [slots], per slot the end of the latest occurrence, 0 where empty.
    """
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
def extend(text, lengths, tables, ends, counts, known, size):
    """Index the n-grams that end after `known` and before the last of `size` tokens. Arrays: as in `index.NgramIndex`."""
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
            # a majority lasts until occurrences that disagree have used up its lead
            if lead and text[held[AGREED, earlier]] != text[end]:
                agreed, lead = held[AGREED, earlier], lead - 2
            held[BEFORE, end], held[AGREED, end], held[LEADS, end] = earlier, agreed, lead + 1


@helper
def _remove(text, table, length, slot):
    """Empty a slot, and move back entries that linear probing had placed after it."""
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
def truncate(text, lengths, tables, ends, counts, known, kept):
    """Remove all n-grams that end after `kept`, where those up to `known` are indexed."""
    for place in range(len(lengths)):
        for end in range(known, max(kept, lengths[place] - 1), -1):
            slot = slot_of(text, tables[place], lengths[place], end)
            if ends[place, BEFORE, end]:
                tables[place, slot] = ends[place, BEFORE, end]
            else:
                _remove(text, tables[place], lengths[place], slot)
                counts[place] -= 1


@helper
def rehash(text, lengths, tables, known):
    """Fill empty tables with the latest end of every n-gram, up to `known`. tables: int32 [lengths, slots]."""
    for place in range(len(lengths)):
        for end in range(lengths[place], known + 1):
            tables[place, slot_of(text, tables[place], lengths[place], end)] = end
