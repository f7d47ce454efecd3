"""Alignment: how far a text that is being written has come in another one, the reference, that it may follow with edits.

Both are token ids. A pointer says which token of the reference should come next, and moves on while that one comes. Where
another comes the text was edited there: the longest match of its last tokens, ahead of the edit and near it for choice, says
where it goes on, whether something was put in, left out or replaced.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence as Many

import numpy as np

_LIKELY = (0.25, 0.35, 0.55, 0.7, 0.8, 0.86, 0.9, 0.93, 0.95, 0.95, 0.96, 0.96, 0.97)
"""By tokens matched, how likely the next one matches too; the first is that of a mere guess."""
_LAST = len(_LIKELY) - 1
_COMPARED = 8
"""Tokens compared where a match is measured."""
_PLACES = 4
"""Places ahead of an edit that are compared, and half as many before it."""
_NEAR = 12
"""Tokens behind an edit within which one would look for where the text goes on."""
_NEARNESS, _START = 3, 3
"""Tokens of match that being near an edit counts for, and that the beginning of both texts does."""
_SURE = 3
"""Tokens matched from which on the text is held to have really been where the pointer said."""
_GUESSES = 2
"""Tokens behind an edit for which, where nothing matches, each is taken to replace one of the reference."""
_FADING = 0.9
"""What a token leaves of what was counted before it."""
_DOUBT = 1.0
"""Expected hits that must have come in, or failed to, before a reference is held to be better or worse than others."""
_GIVEN_UP, _LOST = 0.6, 8
"""A reference that keeps less than this of what it promises, and that nothing has led back to for so many tokens, must match
three in a row to be followed again."""
_GLANCE = 4
"""It is then looked at once in so many tokens."""
_FIRST, _GUESSED, _GROWTH = 1, 2, 8
"""Tokens drafted at most in the beginning, where rows beside a prompt cost in full; behind an edit while nothing is matched; and
with each token that is."""
_SCANNED = 1024
"""A reference of up to so many tokens is scanned where a longer one is indexed: an index would take longer to make."""
_LENGTHS = 3, 1
"""Of the n-grams that are looked for, the longer first."""
_WORTH = 0.15
"""Tokens are drafted as far as all of them come true together at least so often."""


class Reference:
    """Token ids to follow, and where in them each token, and each three in a row, stands.

    The index of a long one takes some twenty bytes a token and is made when it is first asked for, or before by `index`.
    """

    def __init__(self, tokens: Many[int]) -> None:
        self.tokens = tokens
        self._tables: dict[int, tuple[array[int], array[int]]] = {}

    def find(self, ending: Many[int], edit: int, shortest: int = 1) -> tuple[int, int, bool] | None:
        """Where a text goes on that ends so and was edited at `edit`: behind the longest match, the nearest ahead.

        Returns that place, the length of the match and whether it is near; None where the last `shortest` tokens (1 or 3)
        stand nowhere but at the end.
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
        """A few places behind an n-gram, those around an edit."""
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
        """All places behind an n-gram that something follows, in rising order."""
        tokens, size, places, at = self.tokens, len(ngram), list[int](), 0
        for _ in range(tokens.count(ngram[-1])):
            at = tokens.index(ngram[-1], at) + 1
            if size <= at < len(tokens) and all(tokens[at - back] == ngram[-back] for back in range(2, size + 1)):
                places.append(at)
        return places

    def _matched(self, ending: Many[int], place: int) -> int:
        """How many tokens before `place` are the last ones of a text."""
        tokens, length, longest = self.tokens, 0, min(place, len(ending))
        while length < longest and tokens[place - length - 1] == ending[-length - 1]:
            length += 1
        return length

    def index(self) -> None:
        """Make now what lookups will need: of the largest files it takes a second, which no step should."""
        if len(self.tokens) > _SCANNED:
            for n in _LENGTHS:
                self._table(n)

    def _table(self, n: int) -> tuple[array[int], array[int]]:
        """Keys of the n-grams that something follows, in rising order, and the place behind each; equal keys keep theirs."""
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
    """Where one text has come in its reference. place: that of the token that should come next. lost: nothing says which. seen:
    tokens of the text taken in.

    Tokens alone tell it, so whoever follows the same text anew arrives at the same place. Whether what should come does come is
    counted with every token, drafted or not: a reference that was given up can come back.
    """

    def __init__(self, reference: Reference, prompt: Many[int]) -> None:
        """Begin where the prompt leaves off, if its last tokens stand in the reference, else with its first token; in the
        prompt itself, taken as the reference, that token is nothing to go by."""
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
        """Take in the tokens that the text has grown by, those before `end` where that is given."""
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
                # a guess that came true is a match of one token, near the edit
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
        """How much of what it promised this reference has kept of late."""
        return (self._hits + _DOUBT) / (self._expected + _DOUBT)

    def confidences(self, longest: int, floor: float = 0.0) -> list[float]:
        """How likely each of the next tokens of the reference is to come once those before it have.

        As many as are worth drafting: more the more have matched, none where it failed too often, never more than `longest`, and
        none behind one below `floor`.
        """
        left = len(self.reference.tokens) - self.place
        if left <= 0:
            return []
        factor, known = min(self._factor, 1.0), self._matched + self._trust
        found, chance = [], 1.0
        most = self._matched * _GROWTH or (_FIRST if self._trust else _GUESSED)
        for depth in range(min(longest, left, most)):
            # behind a guess that came true as behind a match near the edit
            held = known + depth + _NEARNESS * (not known and depth > 0)
            confidence = factor * _LIKELY[min(held, _LAST)]
            chance *= confidence
            if chance < _WORTH:
                break
            found.append(confidence)
            if confidence < floor:
                break
        return found
