"""Scheduler: which sequences go into the next step, and how many of their tokens. Budgets only, no tensors.

Sequences join and leave between steps (continuous batching); long prompts go in chunks beside those that decode; when the
cache is full the youngest sequence gives its place up and is computed again later, which changes nothing but the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from paceline.sequence import Sequence
from paceline.speculative import Work
from paceline.tree import Budget


@dataclass(frozen=True)
class Limits:
    """batch: sequences in flight. chunk: prompt tokens of one step, over all sequences. cache_tokens: what they may hold in the
    target's cache, the nodes of their drafts included; a drafter's own state is not counted."""

    batch: int = 8
    chunk: int = 512
    cache_tokens: int = 65536

    def __post_init__(self) -> None:
        if min(self.batch, self.chunk, self.cache_tokens) < 1:
            raise ValueError("batch, chunk and cache_tokens must be at least 1")


class Scheduler:
    """First come, first served; a preempted sequence goes back to the head of the queue.

    cached: tokens of a sequence in the target's cache. release: called for every sequence that is preempted.
    longest: tokens at which a sequence ends whatever else happens (the model's context, or the whole cache).
    """

    def __init__(self, limits: Limits, longest: int, cached: Callable[[int], int], release: Callable[[int], None]) -> None:
        self.limits, self.longest = limits, longest
        self._cached, self._release = cached, release
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it stands; a no-op for one that is gone."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def pick(self, wished: Budget) -> list[Work]:
        """The next step's work. wished: what a sequence would like to draft; less where room is short.

        Every picked sequence feeds at least one token, so that each step brings each of them forward.
        """
        self._preempt()
        self._admit()
        free = self.limits.cache_tokens - self._running_tokens()
        chunk = self.limits.chunk
        work = []
        # those that decode come before prompts: a replayed one feeds a few tokens again and draws on the same chunk
        for sequence in sorted(self.running, key=lambda one: one.generated_tokens == 0):
            start = self._cached(sequence.key)
            missing = len(sequence.tokens) - start
            # a sequence that lacks its root alone is never held up by the prompts of others
            count = 1 if missing == 1 else min(missing, chunk)
            if count == 0:
                continue
            if missing > 1:
                chunk -= count
            nodes = 0
            if count == missing:
                left = min(sequence.params.max_tokens - sequence.generated_tokens, self.longest - len(sequence.tokens))
                nodes = max(min(wished.nodes, free), 0)
                if sequence.nodes is not None:
                    nodes = min(nodes, sequence.nodes)
                free -= nodes
                work.append(Work(sequence, start, count, Budget(nodes, max(min(wished.depth, left - 1), 0))))
            else:
                work.append(Work(sequence, start, count, Budget(0, 0)))
        return work

    @property
    def held_tokens(self) -> int:
        """Tokens of all sequences in flight, waiting ones included."""
        return self._running_tokens() + sum(len(sequence.tokens) for sequence in self.waiting)

    def _running_tokens(self) -> int:
        return sum(len(sequence.tokens) for sequence in self.running)

    def _preempt(self) -> None:
        """Make room for one more token of every running sequence; the oldest is never preempted, so work always ends."""
        while len(self.running) > 1 and self._running_tokens() > self.limits.cache_tokens:
            sequence = self.running.pop()
            self._release(sequence.key)
            self.waiting.appendleft(sequence)
            self.preemptions += 1

    def _admit(self) -> None:
        """Let waiting sequences in, in order, while there is a place and room for their text and one token of each other."""
        while self.waiting and len(self.running) < self.limits.batch:
            needed = self._running_tokens() + len(self.waiting[0].tokens) + len(self.running)
            if self.running and needed > self.limits.cache_tokens:
                return
            self.running.append(self.waiting.popleft())
