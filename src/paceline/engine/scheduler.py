"""Scheduler: which sequences go into the next step, and how many of their tokens. Budgets only, no tensors.

Sequences join and leave between steps (continuous batching); long prompts go in chunks beside those that decode; when the
cache is full a sequence gives its place up and is computed again later, which changes nothing but the time. The smaller
priority comes first, then the tenant that was served least, then who came first; whoever has waited long has its turn whatever
the others are.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence as Many
from dataclasses import dataclass, replace

from paceline.budget import Budget
from paceline.engine.prefix import Prefixes
from paceline.engine.shares import Shares
from paceline.sequence import Sequence
from paceline.speculative import Work

_PATIENCE_STEPS = 256
"""Whoever has waited longer is overdue."""
_TURN = 4
"""One admission in so many goes to the sequence that is overdue the longest, if there is one."""
_SHARED = 4
"""One part in so many of a step's prompt tokens is for other prompts than the first, the shortest before longer ones: a question
does not wait until a book is read."""


@dataclass(frozen=True)
class Limits:
    """batch: sequences in flight. chunk: prompt tokens of one step, over all sequences. cache_tokens: what sequences may hold in
    the target's cache, ended ones and the nodes of drafts included; a drafter's own state is not counted. shortest_prefix:
    tokens of the shortest beginning that requests share; a shorter text is not kept when it ends."""

    batch: int = 8
    chunk: int = 512
    cache_tokens: int = 65536
    shortest_prefix: int = 64

    def __post_init__(self) -> None:
        if min(self.batch, self.chunk, self.cache_tokens, self.shortest_prefix) < 1:
            raise ValueError("batch, chunk, cache_tokens and shortest_prefix must be at least 1")


class Scheduler:
    """prefixes: what sequences hold. longest: tokens at which a sequence ends whatever else happens (the model's context, or the
    whole cache). Keys of sequences grow in the order in which they come.
    """

    def __init__(self, limits: Limits, longest: int, prefixes: Prefixes) -> None:
        self.limits, self.longest = limits, longest
        self._prefixes, self._shares = prefixes, Shares()
        self.waiting: list[Sequence] = []
        """In the order in which they came."""
        self.running: list[Sequence] = []
        self.preemptions = 0
        self._steps = self._admissions = 0
        self._came: dict[int, int] = {}
        """The step before which a sequence that waits would have come, had it waited in one go."""
        self._waited: dict[int, int] = {}
        """Steps that a sequence in flight had waited when it was let in."""
        self._reached: dict[int, int] = {}
        """Tokens of a sequence that its tenant was charged for, what was found in the cache included."""
        self._overdue: set[int] = set()
        """Admitted because they were: they stay ahead of every priority, so that they end."""

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)
        self._came[sequence.key] = self._steps
        self._shares.enter(sequence.tenant)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it stands; a no-op for one that is gone."""
        for among in (self.running, self.waiting):
            if sequence in among:
                among.remove(sequence)
        if self._came.pop(sequence.key, None) is None:
            return
        self._shares.leave(sequence.tenant)
        self._reached.pop(sequence.key, None)
        self._waited.pop(sequence.key, None)
        self._overdue.discard(sequence.key)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def pick(self, wished: Budget) -> list[Work]:
        """The next step's work. wished: what a sequence would like to draft; less where room is short.

        Every sequence in flight feeds at least one token, prompts while the chunk lasts.
        """
        self._steps += 1
        self._preempt()
        self._admit(wished)
        free = self._free
        self._prefixes.make_room(max(free - wished.nodes * len(self.running), 0))
        work = []
        # those that decode come before prompts: a replayed one feeds a few tokens again and draws on the same chunk
        running = self.running
        if len(running) > 1:
            running = sorted(running, key=lambda one: (one.generated_tokens == 0, self._rank(one)))
        starts = [self._prefixes.length(sequence.key) for sequence in running]
        for sequence, start, count in zip(running, starts, self._counts(running, starts), strict=True):
            if count == 0:
                continue
            nodes = 0
            if start + count == len(sequence.tokens):
                left = min(sequence.params.max_tokens - sequence.generated_tokens, self.longest - len(sequence.tokens))
                nodes = max(min(wished.nodes, free), 0)
                if sequence.nodes is not None:
                    nodes = min(nodes, sequence.nodes)
                free -= nodes
                work.append(Work(sequence, start, count, Budget(nodes, max(min(wished.depth, left - 1), 0))))
            else:
                work.append(Work(sequence, start, count, Budget(0, 0)))
            self._charge(sequence, start, count)
        return work

    def _counts(self, running: Many[Sequence], starts: Many[int]) -> list[int]:
        """How many tokens each feeds. running: whoever comes first before the others. starts: how many of its own each holds."""
        missing = [len(one.tokens) - start for one, start in zip(running, starts, strict=True)]
        # a sequence that lacks its root alone is never held up by the prompts of others
        counts = [1 if lacks == 1 else 0 for lacks in missing]
        prompts = [at for at, lacks in enumerate(missing) if lacks > 1]
        chunk = self.limits.chunk
        if len(prompts) > 1:
            urgency = self._urgency(running[prompts[0]])
            equal = [at for at in prompts[1:] if self._urgency(running[at]) == urgency]
            shared = chunk // _SHARED
            for at in sorted(equal, key=lambda at: missing[at]):
                counts[at] = min(missing[at], shared)
                shared -= counts[at]
                chunk -= counts[at]
        for at in prompts:
            more = min(missing[at] - counts[at], chunk)
            counts[at] += more
            chunk -= more
        return counts

    def _urgency(self, sequence: Sequence) -> tuple[bool | int, ...]:
        """What goes before any share: text that is computed again, who is overdue, and the priority."""
        return sequence.generated_tokens == 0, *self._rank(sequence)[:2]

    def _charge(self, sequence: Sequence, start: int, count: int) -> None:
        """Count what is fed, and what was accepted since; neither what was found in the cache nor what is computed again."""
        reached = self._reached.get(sequence.key, start)
        self._reached[sequence.key] = max(reached, start + count)
        self._shares.charge(sequence.tenant, self._reached[sequence.key] - reached)

    def _rank(self, sequence: Sequence) -> tuple[bool, int, int, int]:
        """Who comes first: the smaller."""
        key = sequence.key
        return key not in self._overdue, sequence.priority, self._shares[sequence.tenant], key

    def bound(self, slots: int) -> bool:
        """A step needed more room than the cache has, which is of so many slots: from now on fewer tokens are held. Whether that
        makes room."""
        if len(self.running) < 2 and not self._prefixes.kept_tokens:
            return False
        # pages are seldom full
        self.limits = replace(self.limits, cache_tokens=max(min(self.limits.cache_tokens, slots) * 7 // 8, 1))
        return True

    @property
    def _free(self) -> int:
        """Room that sequences in flight leave."""
        return self.limits.cache_tokens - sum([len(sequence.tokens) for sequence in self.running])

    def _preempt(self) -> None:
        """Make room for one more token of every running sequence.

        Of the least urgent the youngest goes; the oldest of the most urgent never does, so work always ends.
        """
        while len(self.running) > 1 and self._free < 0:
            sequence = max(self.running, key=lambda one: (one.key not in self._overdue, one.priority, one.key))
            self.running.remove(sequence)
            self._prefixes.release(sequence)
            insort(self.waiting, sequence, key=lambda one: one.key)
            # the steps in which it was in flight are no waiting; what it waited before is, or it might go in and out for ever
            self._came[sequence.key] = self._steps - self._waited[sequence.key]
            self.preemptions += 1

    def _admit(self, wished: Budget) -> None:
        """Let waiting sequences in while there is a place, and room for their text and one token of each other.

        Whoever comes first is not passed by smaller ones, but for the time in which it awaits another's prompt.
        """
        while self.waiting and len(self.running) < self.limits.batch:
            sequence = next((one for one in self._in_turn() if not self._prefixes.awaits(one)), None)
            if sequence is None:
                return
            free = self._free - len(sequence.tokens)
            if self.running and free < len(self.running):
                return
            if self._waited_long(sequence):
                self._overdue.add(sequence.key)
            self._waited[sequence.key] = self._steps - self._came[sequence.key]
            self._admissions += 1
            try:
                self._prefixes.begin(sequence, max(free - wished.nodes * (len(self.running) + 1), 0))
                self.running.append(sequence)
                self.waiting.remove(sequence)
            except BaseException:
                # it waits on, and what was copied of another's text is gone
                self._prefixes.release(sequence)
                self._wait_again(sequence)
                raise

    def _wait_again(self, sequence: Sequence) -> None:
        """Take it out of those in flight, if it is among them, and put it among those that wait, if it is not."""
        if sequence in self.running:
            self.running.remove(sequence)
        if sequence not in self.waiting:
            insort(self.waiting, sequence, key=lambda one: one.key)

    def _in_turn(self) -> Iterator[Sequence]:
        """Those that wait, in the order in which they may come in."""
        if self.waiting and self._admissions % _TURN == _TURN - 1:
            first = min(self.waiting, key=lambda one: self._came[one.key])
            if self._waited_long(first):
                yield first
        yield from sorted(self.waiting, key=self._rank)

    def _waited_long(self, sequence: Sequence) -> bool:
        """Whether one that waits is overdue; only waiting counts, all of it together where it was preempted."""
        return self._steps - self._came[sequence.key] > _PATIENCE_STEPS
