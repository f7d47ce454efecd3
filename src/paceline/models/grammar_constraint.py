"""GrammarConstraint: the tokens that a compiled grammar allows next in one answer, also after drafted tokens (llguidance)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from llguidance import LLMatcher

from paceline.constraint import GrammarError


@dataclass(frozen=True)
class _Place:
    """The grammar's result after some tokens. allowed: bool [V]. over: as in `Constraint.over`. checked: False if the matcher
    exceeded its limits, so that nothing is known."""

    allowed: np.ndarray
    over: str | None = None
    checked: bool = True


class GrammarConstraint:
    """A `Constraint` whose matcher advances into a draft and rolls back.

    unread: a matcher in its initial state, from which copies are made. ends: EOS tokens that end this request; without any, the
    answer is over when nothing may follow. another: given a matcher, returns one that shares no state with it, and whether it was
    compiled for this call. Results for drafted tokens are kept until a commit takes another path.

    Copies of a matcher share a limited state space, which other requests and drafts fill too. If a matcher exceeds it, another
    one is tried, and finally a newly compiled one; only if that fails too is the answer over. The result depends only on the
    tokens before it. Compiling takes up to seconds, during which no step runs, so it is done only for tokens that are committed
    or about to be, never for tokens that are only drafted.
    """

    def __init__(
        self,
        unread: LLMatcher,
        vocab_size: int,
        ends: frozenset[int],
        another: Callable[[LLMatcher], tuple[LLMatcher, bool]],
    ) -> None:
        self._unread, self._vocab_size, self._ends, self._another = unread, vocab_size, ends, another
        self._matcher = unread.deep_copy()
        self._read: list[int] = []
        self._ahead: tuple[int, ...] | None = ()
        """The tokens that the matcher has read after the committed ones; None if unknown."""
        self._places: dict[tuple[int, ...], _Place] = {}
        self._everything = np.ones(vocab_size, bool)

    def allowed(self, ancestors: tuple[int, ...]) -> np.ndarray:
        return self._at(ancestors).allowed

    def checked(self, tokens: tuple[int, ...]) -> int:
        places = [self._places.get(tokens[:count]) for count in range(1, len(tokens))]
        return next((count for count, place in enumerate(places, 1) if place is not None and not place.checked), len(tokens))

    def over(self, ancestors: tuple[int, ...]) -> str | None:
        place = self._at(ancestors)
        if not place.checked:
            place = self._places[ancestors] = self._asked(ancestors)
        return place.over

    def forced(self, count: int) -> tuple[int, ...]:
        path: tuple[int, ...] = ()
        while len(path) < count and not self._ends.intersection(path[-1:]):
            allowed = self._at(path).allowed
            if np.count_nonzero(allowed) > max(len(self._ends), 1):
                break
            choices = np.flatnonzero(allowed).tolist()
            if len(choices) > 1 and not self._ends.issuperset(choices):
                break
            # the matcher returns all forced bytes at once, in one spelling; it has its own token for the end
            more = self._matcher.compute_ff_tokens() if self._go(path) and choices[0] not in self._ends else []
            path = (*path, *(more or choices[:1]))
        return path[:count]

    def readable(self, tokens: tuple[int, ...]) -> int:
        if not self._go(()):
            return len(tokens)
        count = self._matcher.validate_tokens(list(tokens))
        if self._matcher.is_error():
            return len(tokens)
        # the matcher does not know the EOS tokens: whether one is allowed is decided by the mask
        return count + (count < len(tokens) and tokens[count] in self._ends)

    def commit(self, tokens: tuple[int, ...]) -> None:
        if self._ahead is None or self._ahead[: len(tokens)] != tokens:
            self._go(tokens)
        size = len(tokens)
        known = self._ahead is not None and self._ahead[:size] == tokens
        self._ahead = self._ahead[size:] if self._ahead is not None and known else None
        self._read += tokens
        kept = {path: place for path, place in self._places.items() if path[:size] == tokens and place.checked}
        self._places = {path[size:]: place for path, place in kept.items()}

    def _at(self, ancestors: tuple[int, ...]) -> _Place:
        place = self._places.get(ancestors)
        if place is None:
            place = self._places[ancestors] = self._looked_up(ancestors)
        return place

    def _looked_up(self, ancestors: tuple[int, ...]) -> _Place:
        place = self._read_off(ancestors)
        if place is not None:
            return place
        return _Place(self._everything, checked=False) if ancestors else self._asked(ancestors)

    def _asked(self, ancestors: tuple[int, ...]) -> _Place:
        """Ask other matchers when this one has exceeded its limits."""
        place, made = None, False
        while place is None and not made:
            try:
                self._unread, made = self._another(self._unread)
            # it was compiled before, so the machine is too busy to compile it in time
            except GrammarError:
                break
            self._ahead = None
            place = self._read_off(ancestors)
        return place or _Place(self._everything, "length")

    def _read_off(self, ancestors: tuple[int, ...]) -> _Place | None:
        """The matcher's result; None if it has exceeded its limits."""
        reached = self._go(ancestors)
        if self._ahead is None or self._matcher.is_error():
            return None
        bits = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            return None
        mask = np.unpackbits(np.frombuffer(bits, np.uint8), count=self._vocab_size + 1, bitorder="little").astype(bool)
        if not reached:
            # a matcher beyond its limits reads nothing either, without an error
            return None if mask[ancestors[len(self._ahead)]] else _Place(self._everything)
        may_end, mask = bool(mask[-1]), mask[:-1]
        if may_end:
            mask[list(self._ends)] = True
        if mask.any():
            return _Place(mask)
        # nothing may follow: the answer is complete, or no token spells the required continuation
        return _Place(self._everything, "stop" if may_end else "length")

    def _go(self, ancestors: tuple[int, ...]) -> bool:
        """Advance the matcher to the end of the committed tokens and `ancestors`; False if it does not accept all of these.
        `_ahead` stays None if it does not accept the committed ones."""
        before = None if self._matcher.is_error() else self._ahead
        if before == ancestors:
            return True
        # unknown until it has arrived
        self._ahead = None
        if before is None:
            # it was interrupted, or exceeded its limits, from which a matcher cannot recover
            self._matcher, before = self._unread.deep_copy(), ()
            if self._matcher.try_consume_tokens(self._read) < len(self._read):
                return False
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, ancestors, strict=False)))
        if len(before) > same:
            self._matcher.rollback(len(before) - same)
        taken = same + self._matcher.try_consume_tokens(list(ancestors[same:]))
        self._ahead = ancestors[:taken]
        return taken == len(ancestors)
