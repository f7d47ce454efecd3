"""Occurrences: where every n-gram of one growing text ended last, and, per such end, where the same n-gram had ended before.

It grows token by token, so a step costs what it adds; it remembers the tokens it was grown from, so it can be cut back too.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from sys import getsizeof


class Occurrences:
    """shortest, longest: the n-grams that are indexed, in tokens."""

    def __init__(self, shortest: int, longest: int) -> None:
        self.lengths = range(shortest, longest + 1)
        self.tokens = array("i")
        self.last: dict[tuple[int, ...], int] = {}
        self._before = {n: array("i", [0]) for n in self.lengths}
        """n -> per end its predecessor; 0 for none."""

    def grow(self, tokens: list[int]) -> None:
        """Take in what is new but for the last token: an n-gram is indexed once something follows it."""
        last, seen = self.last, len(self.tokens)
        self.tokens.extend(tokens[seen:-1])
        for n, before in self._before.items():
            for end in range(seen + 1, len(tokens)):
                if n > end:
                    before.append(0)
                    continue
                ngram = tuple(tokens[end - n : end])
                before.append(last.get(ngram, 0))
                last[ngram] = end

    def truncate(self, size: int) -> None:
        """Keep what `size` tokens have told, the last of them being followed by nothing yet."""
        while len(self.tokens) > max(size - 1, 0):
            end = len(self.tokens)
            for n in self.lengths:
                earlier = self._before[n].pop()
                if earlier:
                    self.last[tuple(self.tokens[end - n :])] = earlier
                elif n <= end:
                    del self.last[tuple(self.tokens[end - n :])]
            self.tokens.pop()

    def ends(self, tokens: list[int], n: int) -> Iterator[int]:
        """Where the last n tokens of a text had ended before, the latest place first; nowhere if it has fewer."""
        end = self.last.get(tuple(tokens[-n:]), 0) if n <= len(tokens) else 0
        before = self._before[n]
        while end:
            yield end
            end = before[end]

    def copy(self) -> Occurrences:
        other = Occurrences(self.lengths[0], self.lengths[-1])
        other.tokens, other.last = self.tokens[:], dict(self.last)
        other._before = {n: ends[:] for n, ends in self._before.items()}
        return other

    @property
    def held_bytes(self) -> int:
        # a tuple of n references with its header and collector's links, and the integer it leads to
        ngrams = sum(56 + 8 * n + 32 for n in self.lengths) / len(self.lengths) * len(self.last)
        return int(getsizeof(self.last) + ngrams + self.tokens.itemsize * len(self.tokens) * (1 + len(self.lengths)))
