"""Occurrences: where every n-gram of one growing text ended last, where the same n-gram had ended before each such end, and what
most of its ends are followed by.

It grows token by token, so a step costs what it adds; it remembers the tokens it was grown from, so it can be cut back too. An
n-gram is found by hash and compared with the text itself: a place in the text stands for it.

Source: of what most ends are followed by, the majority vote of Boyer and Moore, MJRTY: A Fast Majority Vote Algorithm (1991).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.kernels.lookups import compiled, helper

BEFORE, AGREED, LEADS = 0, 1, 2
"""What is held of an end: its predecessor, 0 for none; of the ends of its n-gram up to there, the last that is followed by what
most are followed by; by how many ends that majority leads."""
_AT_ONCE = 1024
"""Tokens that are taken in before tables are looked at again: they grow with the n-grams there are, not with the text."""


@helper
def _home(text, length, end, slots):
    """Where the n-gram that ends at `end` belongs in a table."""
    mixed = np.uint64(0xCBF29CE484222325)
    for at in range(end - length, end):
        mixed = (mixed ^ np.uint64(text[at] + 1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return np.int64(mixed & np.uint64(slots - 1))


@compiled
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


@compiled
def grown(text, known, size, lengths, tables, ends, counts):
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


@compiled
def _cut(text, known, kept, lengths, tables, ends, counts):
    """Forget all ends behind `kept`."""
    for place in range(len(lengths)):
        for end in range(known, max(kept, lengths[place] - 1), -1):
            slot = slot_of(text, tables[place], lengths[place], end)
            if ends[place, BEFORE, end]:
                tables[place, slot] = ends[place, BEFORE, end]
            else:
                _emptied(text, tables[place], lengths[place], slot)
                counts[place] -= 1


@compiled
def _filled(text, known, lengths, tables):
    """Enter the last end of every n-gram into empty tables."""
    for place in range(len(lengths)):
        for end in range(lengths[place], known + 1):
            tables[place, slot_of(text, tables[place], lengths[place], end)] = end


class Occurrences:
    """shortest, longest: of the n-grams that are indexed, in tokens; `lengths` are those that are.

    text: int32, the tokens, `size` of them. An n-gram is indexed once something follows it. tables: int32 [lengths, slots], the
    last ends. ends: int32 [lengths, 3, room], what is held of every end, at 0 of none. counts: int64 [lengths], table entries.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self.lengths = np.array(indexed(shortest, longest), np.int64)
        self.size = 0
        self.text = np.zeros(256, np.int32)
        self.tables = np.zeros((len(self.lengths), 512), np.int32)
        self.ends = np.zeros((len(self.lengths), 3, 256), np.int32)
        self.counts = np.zeros(len(self.lengths), np.int64)

    def grow(self, tokens: list[int]) -> None:
        """Take in what is new of a text that began as this one."""
        if self.size < len(tokens):
            known = self.written(tokens)
            grown(self.text, known, len(tokens), self.lengths, self.tables, self.ends, self.counts)
            self.size = len(tokens)

    def written(self, tokens: list[int]) -> int:
        """Take in all that is new but for a last piece, which is only written down; how many tokens are known, behind which
        whoever asks has `grown` take in that piece, and sets the size."""
        while True:
            known = max(self.size - 1, 0)
            size = min(len(tokens), known + _AT_ONCE)
            self._reserve(size)
            self.text[known:size] = tokens[known:size]
            if size == len(tokens):
                return known
            grown(self.text, known, size, self.lengths, self.tables, self.ends, self.counts)
            self.size = size

    def _reserve(self, size: int) -> None:
        """Make room for so many tokens."""
        if size > len(self.text):
            room = max(size, 2 * len(self.text))
            self.text = _longer(self.text, room)
            self.ends = _longer(self.ends, room)
        if 2 * size <= self.tables.shape[1]:
            # there are no more n-grams than tokens
            return
        most = max(self.counts.tolist()) + size - max(self.size - 1, 0)
        if 2 * most > self.tables.shape[1]:
            self.tables = np.zeros((len(self.lengths), 1 << (2 * most - 1).bit_length()), np.int32)
            _filled(self.text, max(self.size - 1, 0), self.lengths, self.tables)

    def truncate(self, size: int) -> None:
        """Keep what `size` tokens have told, the last of them being followed by nothing yet."""
        if size < self.size:
            known, kept = max(self.size - 1, 0), max(size - 1, 0)
            _cut(self.text, known, kept, self.lengths, self.tables, self.ends, self.counts)
            self.size = size

    def copy(self) -> Occurrences:
        other = Occurrences(int(self.lengths[0]), int(self.lengths[-1]))
        other.size, other.text, other.tables = self.size, self.text.copy(), self.tables.copy()
        other.ends, other.counts = self.ends.copy(), self.counts.copy()
        return other

    @property
    def held_bytes(self) -> int:
        return self.text.nbytes + self.tables.nbytes + self.ends.nbytes


def _longer(rows: Any, room: int) -> Any:
    longer = np.zeros((*rows.shape[:-1], room), rows.dtype)
    longer[..., : rows.shape[-1]] = rows
    return longer


_EVERY = 3
"""Up to here n-grams of every length are indexed."""


def indexed(shortest: int, longest: int) -> tuple[int, ...]:
    """The lengths that are indexed between two: up to 3 each, behind that twice the one before, and the longest. How far a match
    reaches is read off the text, so lengths need lie no closer than they must to tell a long match from many short ones."""
    found = [shortest]
    while found[-1] < longest:
        found.append(min(found[-1] + 1 if found[-1] < _EVERY else 2 * found[-1], longest))
    return tuple(found)
