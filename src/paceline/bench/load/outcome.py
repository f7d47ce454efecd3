"""Outcome: the result of one request, as its sender saw it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

REFUSALS = (429, 503)
"""Statuses of a server that is full."""


@dataclass(frozen=True)
class Outcome:
    """One request. All times count from the moment it was due.

    error: None for a whole answer; else the HTTP status, or one of "timeout", "connection", "cut off", "error in the stream",
    "not a stream", "unsendable". message: about the error, the server's if it sent one. refusals: responses of 429 or 503,
    including the last one. due_s: since the run began. lag_s: how late it was sent. first_s, last_s: first and last chunk with
    text; None without any. ended_s: end of the stream. gaps_s: times between chunks with text. prompt_tokens, tokens: from the
    server's usage; None if it did not report them. speculation: the server's metrics.speculative_decoding.
    """

    index: int
    due_s: float
    error: str | None = None
    message: str = ""
    refusals: int = 0
    lag_s: float = 0.0
    first_s: float | None = None
    last_s: float | None = None
    ended_s: float = 0.0
    gaps_s: tuple[float, ...] = ()
    chunks: int = 0
    text: str = ""
    prompt_tokens: int | None = None
    tokens: int | None = None
    speculation: Mapping[str, Any] = field(default_factory=dict)

    @property
    def answered(self) -> bool:
        """Whether a whole answer came."""
        return self.error is None

    @property
    def refused(self) -> bool:
        """Whether the server was full."""
        return self.error is not None and self.error in map(str, REFUSALS)

    @property
    def counted_tokens(self) -> int:
        """Tokens of the answer; the number of its chunks if tokens were not counted."""
        return self.chunks if self.tokens is None else self.tokens

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None without a second token."""
        if self.first_s is None or self.last_s is None or self.counted_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.counted_tokens - 1)

    @property
    def itl_s(self) -> tuple[float, ...]:
        """Latencies between tokens: a chunk of k tokens has its gap once, and k - 1 zeros."""
        return self.gaps_s + (0.0,) * max(0, self.counted_tokens - max(1, self.chunks)) if self.chunks else ()
