"""Visits: when costly drafters were asked for which request, what of its text they have read, and over how many drafts to come
what they have yet to read pays."""

from __future__ import annotations

from paceline.frozen import frozen
from paceline.sequence import Sequence

_USUAL_LENGTH, _FEWEST_LEFT, _TOKENS_APART = 64.0, 4.0, 2.0
"""Tokens of an answer while none has ended, the fewest taken to be left of one, those from one draft of a drafter to its next."""
_SMOOTH = 0.1


@frozen
class _Visit:
    """step: when a drafter was last asked for a request. read_tokens: how much of its text it had read by then."""

    step: int
    read_tokens: int


_NEVER = _Visit(-1, 0)


class Visits:
    """Of all requests, by drafter."""

    def __init__(self) -> None:
        self._visits: dict[int, dict[str, _Visit]] = {}
        self._apart: dict[str, float] = {}
        """Drafter -> tokens from one of its drafts to the next, of late."""
        self._length = _USUAL_LENGTH
        """Tokens of an answer, of late."""

    def visit(self, part: str, sequence: Sequence, now: int, tried: bool) -> None:
        """A drafter is asked in step `now`. tried: though it is not thought to be worth it."""
        visits = self._visits.setdefault(sequence.key, {})
        if not tried and self.last(part, sequence) >= 0:
            apart = self._apart.get(part, _TOKENS_APART)
            self._apart[part] = apart + _SMOOTH * (self.lacking(part, sequence) - apart)
        visits[part] = _Visit(now, len(sequence.tokens))

    def ended(self, sequence: Sequence) -> None:
        """An answer ended. One of a single token, as those that classify are, says nothing of others."""
        if sequence.generated_tokens > 1:
            self._length += _SMOOTH * (sequence.generated_tokens - self._length)

    def last(self, part: str, sequence: Sequence) -> int:
        """The step in which a drafter was asked for a request last, -1 for never."""
        return self._visit(part, sequence).step

    def lacking(self, part: str, sequence: Sequence) -> int:
        """Tokens of a text that a drafter has not read."""
        return len(sequence.tokens) - self._visit(part, sequence).read_tokens

    def drafts_left(self, part: str, sequence: Sequence) -> float:
        """Drafts over which reading pays, if the answer is as long as answers were of late. Of one that is longer about as much
        is left as there is: so it is where lengths differ by orders of magnitude."""
        written = sequence.generated_tokens
        left = max(self._length - written if written < self._length else written, _FEWEST_LEFT)
        left = min(left, sequence.params.max_tokens - written)
        return max(left / max(self._apart.get(part, _TOKENS_APART), 1.0), 1.0)

    def fork(self, key: int, new_key: int, length: int) -> None:
        """Request `new_key` begins with the first `length` tokens of `key`, and so does what the drafters hold of it."""
        for part, visit in self._visits.get(key, {}).items():
            self._visits.setdefault(new_key, {})[part] = _Visit(_NEVER.step, min(visit.read_tokens, length))

    def release(self, key: int) -> None:
        """Forget a request."""
        self._visits.pop(key, None)

    def _visit(self, part: str, sequence: Sequence) -> _Visit:
        visits = self._visits.get(sequence.key)
        return visits.get(part, _NEVER) if visits else _NEVER
