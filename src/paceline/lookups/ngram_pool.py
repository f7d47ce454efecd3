"""NgramPool: the n-grams last seen behind every token, and guesses made from them."""

from __future__ import annotations

from collections.abc import Sequence as Many

Gram = tuple[int, ...]
_TOKENS = 4096
"""Most first tokens that n-grams are held for; the one that got an n-gram longest ago is dropped."""


class NgramPool:
    """Token -> up to `width` n-grams that begin with it, the latest last, each with how often it was seen. size: tokens of an
    n-gram, the first one included."""

    def __init__(self, size: int, width: int) -> None:
        self.size, self.width = size, width
        self._grams: dict[int, dict[Gram, int]] = {}

    def add(self, tokens: Many[int]) -> None:
        """Add one n-gram."""
        known = self._grams.pop(tokens[0], {})
        if len(self._grams) == _TOKENS:
            del self._grams[next(iter(self._grams))]
        self._grams[tokens[0]] = known
        rest = tuple(tokens[1:])
        known[rest] = known.pop(rest, 0) + 1
        if len(known) > self.width:
            del known[next(iter(known))]

    def learn(self, tokens: list[int], start: int) -> int:
        """Add the n-grams of a text that begin at `start` or later; returns where the first one begins that is not whole yet."""
        end = max(len(tokens) - self.size + 1, start)
        for at in range(max(start, end - _TOKENS), end):
            self.add(tokens[at : at + self.size])
        return end

    def guesses(self, root: int, depth: int) -> tuple[list[Gram], list[list[float]]]:
        """Paths of up to `depth` tokens behind the root, the latest n-gram first, each going on with the latest n-gram of its
        last token; and per token its share in what was seen there."""
        known = self._grams.get(root, {})
        paths, shares = [], []
        seen = sum(known.values()) + 1
        for path, count in reversed(known.items()):
            share = [count / seen] * len(path)
            while len(path) < depth and (after := self._grams.get(path[-1])):
                latest, count = next(reversed(after.items()))
                path += latest
                share += [count / (sum(after.values()) + 1)] * len(latest)
            paths.append(path[:depth])
            shares.append(share)
        return paths, shares

    @property
    def held_bytes(self) -> int:
        # per token a dictionary and its n-grams, tuples with a count
        return len(self._grams) * (200 + self.width * (100 + 8 * self.size))
