"""Alignment: how far a text that is being written has come in another one, the reference, that it may follow with edits.

Both are token ids. A pointer marks the token of the reference that should come next, and moves on while it does. Where another
token comes the text was edited there: it goes on behind the longest match of its last tokens, preferably ahead of the edit and
near it, whether something was inserted, left out or replaced.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence as Many

import numpy as np

_LIKELY = (0.25, 0.35, 0.55, 0.7, 0.8, 0.86, 0.9, 0.93, 0.95, 0.95, 0.96, 0.96, 0.97)
"""By tokens matched, how likely the next one matches too; the first is for a mere guess."""
_LAST = len(_LIKELY) - 1
_COMPARED = 8
"""Tokens compared where a match is measured."""
_PLACES = 4
"""Places ahead of an edit that are compared, and half as many before it."""
_NEAR = 12
"""A place up to so many tokens behind an edit is near it."""
_NEARNESS, _START = 3, 3
"""Matched tokens that being near an edit counts for, and that the beginning of both texts counts for."""
_SURE = 3
"""Matched tokens from which on the pointer is taken to have been right."""
_GUESSES = 2
"""First tokens behind an edit that, where nothing matches, are each taken to replace one of the reference."""
_FADING = 0.9
"""Decay of the counts per token."""
_DOUBT = 1.0
"""Pseudo-count of hits and of expected hits, so that a reference is taken to be better or worse than others only on evidence."""
_GIVEN_UP, _LOST = 0.6, 8
"""A reference with fewer hits than this share of those expected, and with no sure match for so many tokens, must match three in a
row to be followed again."""
_GLANCE = 4
"""Such a reference is then checked once in so many tokens."""
_FIRST, _GUESSED, _GROWTH = 1, 2, 8
"""Most tokens drafted at the beginning, where rows beside a prompt cost in full; behind an edit while nothing is matched; and per
token that is."""
_SCANNED = 1024
"""A reference of up to so many tokens is scanned where a longer one is indexed: an index would take longer to make."""
_LENGTHS = 3, 1
"""Lengths of the n-grams that are looked for, the longer first."""
_WORTH = 0.15
"""A draft ends where the probability that all its tokens are right would fall below this."""


class Reference:
    """Token ids to follow, and the places of each token and of each three in a row.

    The index of a long reference takes some twenty bytes a token and is made at the first search, or before by `index`.
    """

    def __init__(self, tokens: Many[int]) -> None:
        self.tokens = tokens
        self._tables: dict[int, tuple[array[int], array[int]]] = {}

    def find(self, ending: Many[int], edit: int, shortest: int = 1) -> tuple[int, int, bool] | None:
        """Where a text that ends with `ending` and was edited at `edit` goes on: behind the longest match, the nearest ahead.

        Returns that place, the length of the match and whether it is near; None where the last `shortest` tokens (1 or 3)
        occur nowhere but at the end of the reference.
        """
        if not ending or (len(self.tokens) <= _SCANNED and ending[-1] not in self.tokens):
            return None
        for n in _LENGTHS:
            if n < shortest or len(ending) < n:
                continue
            best = None
            for place in self._places(ending[-n:], edit):
                length, ahead = self._matched(ending, place), place - edit
                near = 0 <= ahead <= _NEAR
                found = length + _NEARNESS * near, -ahead if ahead > 0 else ahead, place, length, near
                # keys are equal for other n-grams only where token ids exceed 21 bits
                if length >= n and (best is None or found > best):
                    best = found
            if best is not None:
                return best[2:]
        return None

    def _places(self, ngram: Many[int], edit: int) -> Many[int]:
        """A few places behind occurrences of an n-gram, those around an edit."""
        if len(self.tokens) <= _SCANNED:
            places: Many[int] = self._scanned(ngram)
            low, high = 0, len(places)
        else:
            keys, places = self._table(len(ngram))
            key = 0
            for token in ngram:
                key = (key << 21) + token
            low = bisect_left(keys, key)
            if low == len(keys) or keys[low] != key:
                return ()
            high = bisect_right(keys, key, low)
        at = bisect_left(places, edit, low, high)
        return places[max(at - _PLACES // 2, low) : min(at + _PLACES, high)]

    def _scanned(self, ngram: Many[int]) -> list[int]:
        """All places behind occurrences of an n-gram, except at the end, in rising order."""
        tokens, size, places, at = self.tokens, len(ngram), list[int](), 0
        for _ in range(tokens.count(ngram[-1])):
            at = tokens.index(ngram[-1], at) + 1
            if size <= at < len(tokens) and all(tokens[at - back] == ngram[-back] for back in range(2, size + 1)):
                places.append(at)
        return places

    def _matched(self, ending: Many[int], place: int) -> int:
        """How many tokens before `place` match the last ones of a text."""
        tokens, length, longest = self.tokens, 0, min(place, len(ending))
        while length < longest and tokens[place - length - 1] == ending[-length - 1]:
            length += 1
        return length

    def index(self) -> None:
        """Make the index now: for the largest files it takes a second, which no step should."""
        if len(self.tokens) > _SCANNED:
            for n in _LENGTHS:
                self._table(n)

    def _table(self, n: int) -> tuple[array[int], array[int]]:
        """Keys of all n-grams except at the end, in rising order, and the place behind each; places of equal keys rise too."""
        if n not in self._tables:
            tokens = np.asarray(self.tokens, np.int64)
            count = max(len(tokens) - n, 0)
            keys = np.zeros(count, np.int64)
            for offset in range(n):
                keys = (keys << 21) + tokens[offset : count + offset]
            order = np.argsort(keys, kind="stable")
            self._tables[n] = array("q", keys[order].tobytes()), array("i", (order + n).astype(np.int32).tobytes())
        return self._tables[n]

    @property
    def held_bytes(self) -> int:
        """Bytes of the index."""
        return sum(part.itemsize * len(part) for table in self._tables.values() for part in table)


class Alignment:
    """How far one text has come in its reference. place: of the token that should come next. lost: that token is not known. seen:
    tokens of the text read.

    It depends on tokens alone, so following the same text anew leads to the same place. Hits are counted for every token, drafted
    or not, so that a reference that was given up can be followed again.
    """

    def __init__(self, reference: Reference, prompt: Many[int]) -> None:
        """Begin behind the prompt's last tokens, if they occur in the reference, else at the reference's first token; not where
        the reference is the prompt itself, whose first token is no better guess than others."""
        self.reference, self.place = reference, 0
        self._matched, self._trust = 0, _START
        self._edit, self._since, self.seen = 0, 0, len(prompt)
        self._hits = self._expected = 0.0
        self._given_up = self.lost = False
        found = reference.find(prompt[-_COMPARED:], 0, 3)
        if found is not None:
            self.place, self._matched, _ = found
            self._edit, self._trust = self.place, 0
        elif reference.tokens is prompt:
            self.place, self.lost = len(prompt), True

    def follow(self, text: Many[int], end: int | None = None) -> None:
        """Read the tokens that the text has grown by, those before `end` where that is given."""
        end = len(text) if end is None else end
        for at in range(self.seen, end):
            if self._followed or at % _GLANCE == 0:
                self._take(text, at)
        self.seen = end

    def due(self, length: int) -> bool:
        """Whether a text that has grown to so many tokens is to be followed now, or can wait for the next glance."""
        return self._followed or self.seen <= (length - 1) // _GLANCE * _GLANCE

    @property
    def _followed(self) -> bool:
        return not (self._given_up and self.lost)

    def _take(self, text: Many[int], at: int) -> None:
        tokens = self.reference.tokens
        if self.place < len(tokens):
            self._hits *= _FADING
            self._expected = self._expected * _FADING + _LIKELY[min(self._matched + self._trust, _LAST)]
            if tokens[self.place] == text[at]:
                # a guess that was right is a match of one token, near the edit
                self._trust = self._trust or _NEARNESS * (not self._matched)
                self._hits += 1.0
                self.place += 1
                self._matched += 1
                return
        if self._matched >= _SURE:
            self._edit, self._since = self.place, 0
        self._since += 1
        self._given_up = self._since > _LOST and self._factor < _GIVEN_UP
        found = self.reference.find(text[max(at + 1 - _COMPARED, 0) : at + 1], self._edit, 3 if self._given_up else 1)
        if found is not None:
            self.place, self._matched, near = found
            self._trust, self.lost = _NEARNESS * near, False
        else:
            self.place = self._edit + self._since if self._since <= _GUESSES else len(tokens)
            self._matched, self._trust, self.lost = 0, 0, self.place >= len(tokens)

    @property
    def _factor(self) -> float:
        """Ratio of this reference's recent hits to those expected."""
        return (self._hits + _DOUBT) / (self._expected + _DOUBT)

    def confidences(self, longest: int, floor: float = 0.0) -> list[float]:
        """How likely each of the next tokens of the reference is to come once those before it have.

        As many as are worth drafting: more the more have matched, none where the reference failed too often, never more than
        `longest`, and none behind one below `floor`.
        """
        left = len(self.reference.tokens) - self.place
        if left <= 0:
            return []
        factor, known = min(self._factor, 1.0), self._matched + self._trust
        found, chance = [], 1.0
        most = self._matched * _GROWTH or (_FIRST if self._trust else _GUESSED)
        for depth in range(min(longest, left, most)):
            # behind a guess that was right as behind a match near the edit
            held = known + depth + _NEARNESS * (not known and depth > 0)
            confidence = factor * _LIKELY[min(held, _LAST)]
            chance *= confidence
            if chance < _WORTH:
                break
            found.append(confidence)
            if confidence < floor:
                break
        return found
