"""DraftHistory: per request and costly drafter, the step of its last draft and the tokens of the text it has read.

It also estimates over how many further drafts the time to read the rest of a text is paid back.
"""

from __future__ import annotations

from paceline.frozen import frozen
from paceline.sequence import Sequence

_USUAL_LENGTH, _FEWEST_LEFT, _TOKENS_APART = 64.0, 4.0, 2.0
"""In tokens: length of an answer while none has ended, the fewest assumed to be left of one, distance between two drafts."""
_SMOOTH = 0.1
"""Weight of the latest observation in the moving averages."""


@frozen
class _LastDraft:
    """step: in which a drafter was last asked for a request. read_tokens: tokens of the text that it had read by then."""

    step: int
    read_tokens: int


_NEVER = _LastDraft(-1, 0)


class DraftHistory:
    """Over all requests, by drafter."""

    def __init__(self) -> None:
        self._last_drafts: dict[int, dict[str, _LastDraft]] = {}
        self._apart: dict[str, float] = {}
        """Drafter -> tokens from one of its drafts to the next, as a moving average."""
        self._length = _USUAL_LENGTH
        """Tokens of an answer, as a moving average."""

    def record(self, drafter: str, sequence: Sequence, now: int, tried: bool) -> None:
        """A drafter is asked in step `now`. tried: whether that is a trial (`exploration`)."""
        last_drafts = self._last_drafts.setdefault(sequence.key, {})
        if not tried and self.last(drafter, sequence) >= 0:
            apart = self._apart.get(drafter, _TOKENS_APART)
            self._apart[drafter] = apart + _SMOOTH * (self.lacking(drafter, sequence) - apart)
        last_drafts[drafter] = _LastDraft(now, len(sequence.tokens))

    def ended(self, sequence: Sequence) -> None:
        """An answer ended. Answers of a single token, as for classification, are left out: they say nothing about others."""
        if sequence.generated_tokens > 1:
            self._length += _SMOOTH * (sequence.generated_tokens - self._length)

    def last(self, drafter: str, sequence: Sequence) -> int:
        """The step in which a drafter was last asked for a request, -1 for never."""
        return self._last_draft(drafter, sequence).step

    def lacking(self, drafter: str, sequence: Sequence) -> int:
        """Tokens of a text that a drafter has not read yet."""
        return len(sequence.tokens) - self._last_draft(drafter, sequence).read_tokens

    def drafts_left(self, drafter: str, sequence: Sequence) -> float:
        """Expected number of further drafts for a request, at least 1, if its answer is as long as recent ones.

        An answer that is longer already is expected to double: so it is where lengths differ by orders of magnitude.
        """
        written = sequence.generated_tokens
        left = max(self._length - written if written < self._length else written, _FEWEST_LEFT)
        left = min(left, sequence.params.max_tokens - written)
        return max(left / max(self._apart.get(drafter, _TOKENS_APART), 1.0), 1.0)

    def fork(self, key: int, new_key: int, length: int) -> None:
        """Request `new_key` begins with the first `length` tokens of `key`, with what its drafters had read of those."""
        for drafter, last in self._last_drafts.get(key, {}).items():
            self._last_drafts.setdefault(new_key, {})[drafter] = _LastDraft(_NEVER.step, min(last.read_tokens, length))

    def release(self, key: int) -> None:
        """Forget a request."""
        self._last_drafts.pop(key, None)

    def _last_draft(self, drafter: str, sequence: Sequence) -> _LastDraft:
        last_drafts = self._last_drafts.get(sequence.key)
        return last_drafts.get(drafter, _NEVER) if last_drafts else _NEVER
