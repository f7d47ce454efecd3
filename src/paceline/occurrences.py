"""Occurrences: where every n-gram of one growing text ended last, where the same n-gram had ended before each such end, and what
most of its ends are followed by.

It grows token by token, so a step costs what it adds; it remembers the tokens it was grown from, so it can be cut back too.

Source: of what most ends are followed by, the majority vote of Boyer and Moore, MJRTY: A Fast Majority Vote Algorithm (1991).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from sys import getsizeof


class Occurrences:
    """shortest, longest: of the n-grams that are indexed, in tokens; `lengths` are those that are."""

    def __init__(self, shortest: int, longest: int) -> None:
        self.lengths = indexed(shortest, longest)
        self.tokens = array("i")
        self.last: dict[tuple[int, ...], int] = {}
        self._before = {n: array("i", [0]) for n in self.lengths}
        """n -> per end its predecessor; 0 for none."""
        self._agreed = {n: array("i", [0]) for n in self.lengths}
        """n -> per end, of the ends of its n-gram up to there, the last that is followed by what most are followed by."""
        self._leads = {n: array("i", [0]) for n in self.lengths}
        """n -> per end, by how many ends that majority leads."""

    def grow(self, tokens: list[int]) -> None:
        """Take in what is new but for the last token: an n-gram is indexed once something follows it."""
        last, seen, size = self.last, len(self.tokens), len(tokens)
        self.tokens.extend(tokens[seen:-1])
        for n in self.lengths:
            before, agreed, leads = self._before[n], self._agreed[n], self._leads[n]
            first = max(seen + 1, n)
            if first > seen + 1:
                for ends in (before, agreed, leads):
                    ends.extend([0] * (min(first, size) - seen - 1))
            for end, ngram in enumerate(_ngrams(tokens, n, first), first):
                earlier = last.get(ngram, 0)
                last[ngram] = end
                place, lead = end, leads[earlier]
                # a majority stands until those who disagree have used up its lead
                if lead and tokens[agreed[earlier]] != tokens[end]:
                    place, lead = agreed[earlier], lead - 2
                before.append(earlier)
                agreed.append(place)
                leads.append(lead + 1)

    def truncate(self, size: int) -> None:
        """Keep what `size` tokens have told, the last of them being followed by nothing yet."""
        while len(self.tokens) > max(size - 1, 0):
            end = len(self.tokens)
            for n in self.lengths:
                earlier = self._before[n].pop()
                self._agreed[n].pop()
                self._leads[n].pop()
                if earlier:
                    self.last[tuple(self.tokens[end - n :])] = earlier
                elif n <= end:
                    del self.last[tuple(self.tokens[end - n :])]
            self.tokens.pop()

    def ends(self, tokens: list[int], n: int) -> Iterator[int]:
        """Where the last n tokens of a text had ended before, the latest place first; nowhere if it has fewer."""
        end = self._end(tokens, n)
        before = self._before[n]
        while end:
            yield end
            end = before[end]

    def agreed(self, tokens: list[int], n: int) -> tuple[int, int]:
        """Of all places where the last n tokens of a text had ended, the latest that is followed by what most of them are
        followed by, and by how many of them that leads; (0, 0) for no places. Without a majority it is one of the commoner
        continuations, or the lead is 0."""
        end = self._end(tokens, n)
        return self._agreed[n][end], self._leads[n][end]

    def _end(self, tokens: list[int], n: int) -> int:
        return self.last.get(tuple(tokens[-n:]), 0) if n <= len(tokens) else 0

    def copy(self) -> Occurrences:
        other = Occurrences(self.lengths[0], self.lengths[-1])
        other.tokens, other.last = self.tokens[:], dict(self.last)
        other._before = {n: ends[:] for n, ends in self._before.items()}
        other._agreed = {n: ends[:] for n, ends in self._agreed.items()}
        other._leads = {n: ends[:] for n, ends in self._leads.items()}
        return other

    @property
    def held_bytes(self) -> int:
        # a tuple of n references with its header and collector's links, and the integer it leads to
        ngrams = sum(56 + 8 * n + 32 for n in self.lengths) / len(self.lengths) * len(self.last)
        return int(getsizeof(self.last) + ngrams + self.tokens.itemsize * len(self.tokens) * (1 + 3 * len(self.lengths)))


def _ngrams(tokens: list[int], n: int, first: int) -> Iterable[tuple[int, ...]]:
    """Those that end at `first` and behind it, up to the one that the last token follows."""
    end = len(tokens) - 1
    if first >= end:
        return (tuple(tokens[end - n : end]),) if first == end else ()
    # of a prompt all at once: cut out one by one they take half the time of an index
    return zip(*[tokens[first - n + offset : end + 1 - n + offset] for offset in range(n)], strict=True)


_EVERY = 3
"""Up to here n-grams of every length are indexed."""


def indexed(shortest: int, longest: int) -> tuple[int, ...]:
    """The lengths that are indexed between two: up to 3 each, behind that twice the one before, and the longest. How far a match
    reaches is read off the text, so lengths need lie no closer than they must to tell a long match from many short ones."""
    found = [shortest]
    while found[-1] < longest:
        found.append(min(found[-1] + 1 if found[-1] < _EVERY else 2 * found[-1], longest))
    return tuple(found)
