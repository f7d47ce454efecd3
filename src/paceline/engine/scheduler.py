"""Scheduler: which sequences go into the next step, and how many of their tokens. Budgets only, no tensors.

Sequences join and leave between steps (continuous batching); long prompts go in chunks beside those that decode; when the
cache is full a sequence is preempted and computed again later, which affects only the time. The smaller priority comes first,
then the payer that was served least, then the earliest arrival; a sequence that has waited long, or was admitted and not fed for
long, gets its turn regardless of these.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence as Many
from dataclasses import dataclass, replace
from heapq import merge

from paceline.budget import NOTHING, Budget
from paceline.drafting import Work
from paceline.engine.prefix import Prefixes
from paceline.engine.shares import Shares
from paceline.sequence import Sequence

_PATIENCE_STEPS = 256
"""A sequence that has waited longer, or was not fed for longer, is overdue."""
_TURN = 4
"""One admission in so many goes to the sequence that is overdue the longest, if there is one."""
_SHARED = 4
"""One part in so many of a step's prompt tokens is for other prompts than the first, the shortest before longer ones: a short
prompt does not wait until a very long one is read."""
_SPARED = 16
"""One part in so many of the cache is left free when another sequence is admitted, for what all of them will generate: one that
is preempted while it reads its prompt is read twice."""
_EASED_STEPS = 256
"""Steps after a shortage until a little more may be held again; more where that was tried before and failed."""
_EASED = 8
"""One part in so many of the configured cache tokens is allowed again at a time."""


@dataclass(frozen=True)
class Limits:
    """batch: sequences in flight. chunk: prompt tokens of one step, over all sequences. cache_tokens: what sequences may hold in
    the target's cache, ended ones and the nodes of drafts included; a drafter's own state is not counted. shortest_prefix:
    tokens of the shortest prefix that requests share; a shorter text is not kept when it ends."""

    batch: int = 8
    chunk: int = 512
    cache_tokens: int = 65536
    shortest_prefix: int = 64


class Scheduler:
    """prefixes: what is held for sequences. longest: tokens at which a sequence ends in any case (the model's context, or the
    whole cache). Keys of sequences increase in the order of arrival.
    """

    def __init__(self, limits: Limits, longest: int, prefixes: Prefixes) -> None:
        self.limits, self.longest = limits, longest
        self._prefixes, self._shares = prefixes, Shares()
        self.waiting: list[Sequence] = []
        """In the order of arrival."""
        self._queues: dict[tuple[bool, int, str], list[Sequence]] = {}
        """The same by all that decides their order (`_kind`), except what payers were served; each in the order of arrival."""
        self.running: list[Sequence] = []
        self.preemptions = 0
        self._asked_tokens = limits.cache_tokens
        """Tokens that sequences may hold where the device has room; `limits` has how many they may hold now."""
        self._eased_steps, self._eased = _EASED_STEPS, False
        """Steps after a shortage until more is allowed, and whether more was allowed since the last one."""
        self._eases: int | None = None
        """The step that allows more; None where no shortage is remembered."""
        self._drafts = True
        """Whether drafts are granted; not after a step that had no room for its drafts, until more is allowed again."""
        self._steps = self._admissions = 0
        self._came: dict[int, int] = {}
        """The step before which a sequence that waits would have arrived, had it waited without interruption."""
        self._waited: dict[int, int] = {}
        """Steps that a sequence in flight had waited when it was admitted."""
        self._reached: dict[int, int] = {}
        """Tokens of a sequence that count as charged to its payer, what was found in the cache included."""
        self._fed: dict[int, int] = {}
        """The last step that fed a sequence in flight, for those that the latest step did not feed."""
        self._overdue: set[int] = set()
        """Sequences that were admitted late, or not fed for long: they stay ahead of every priority, so that they end."""

    def add(self, sequence: Sequence) -> None:
        self._queue(sequence)
        self._came[sequence.key] = self._steps
        self._shares.enter(sequence.payer)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that waits or is in flight; a no-op for one that is gone."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self._unqueue(sequence)
        if self._came.pop(sequence.key, None) is None:
            return
        self._shares.leave(sequence.payer)
        self._reached.pop(sequence.key, None)
        self._fed.pop(sequence.key, None)
        self._waited.pop(sequence.key, None)
        self._overdue.discard(sequence.key)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def pick(self, wished: Budget) -> list[Work]:
        """The next step's work. wished: the budget that drafters ask for, per sequence; less is granted where room is short.

        Every sequence in flight feeds at least one token, prompts while the chunk lasts.
        """
        self._steps += 1
        if self._steps == self._eases:
            self._ease()
        if not self._drafts:
            wished = NOTHING
        free = self._admit(wished, self._preempt())
        running = self.running
        spare = free - wished.nodes * len(running)
        self._prefixes.make_room(max(spare, 0))
        missing = [len(one.tokens) - self._prefixes.length(one.key) for one in running]
        # with room for all drafts, and no prompt to read, the order makes no difference
        if spare < 0 or max(missing, default=1) > 1:
            # sequences that decode come before prompts: with replay they feed a few tokens again, from the same chunk
            order = sorted(range(len(running)), key=lambda at: (running[at].generated_tokens == 0, self._rank(running[at])))
            running, missing = [running[at] for at in order], [missing[at] for at in order]
        work = []
        for sequence, lacks, count in zip(running, missing, self._counts(running, missing), strict=True):
            if count == 0:
                self._pass_over(sequence)
                continue
            if self._fed:
                self._fed.pop(sequence.key, None)
            start, room = len(sequence.tokens) - lacks, NOTHING
            if count == lacks:
                left = min(sequence.params.max_tokens - sequence.generated_tokens, self.longest - len(sequence.tokens))
                nodes = max(min(wished.nodes, free), 0)
                if sequence.nodes is not None:
                    nodes = min(nodes, sequence.nodes)
                free -= nodes
                room = Budget(nodes, max(min(wished.depth, left - 1), 0))
            work.append(Work(sequence, start, count, room))
            self._charge(sequence, start, count)
        return work

    def _counts(self, running: Many[Sequence], missing: Many[int]) -> list[int]:
        """How many tokens each sequence feeds. running: in order of precedence. missing: tokens that each lacks in the cache."""
        # a sequence that lacks its root alone is never delayed by the prompts of others
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

    def _pass_over(self, sequence: Sequence) -> None:
        """Note that a sequence in flight is not fed in this step; after many such steps in a row it is overdue."""
        if self._steps - self._fed.setdefault(sequence.key, self._steps - 1) > _PATIENCE_STEPS:
            self._overdue.add(sequence.key)

    def _urgency(self, sequence: Sequence) -> tuple[bool | int, ...]:
        """What takes precedence over shares: whether generated text is computed again, whether it is overdue, and priority."""
        return sequence.generated_tokens == 0, *self._rank(sequence)[:2]

    def _charge(self, sequence: Sequence, start: int, count: int) -> None:
        """Charge for what is fed and was accepted since; neither for what was found in the cache nor what is computed again."""
        reached = self._reached.get(sequence.key, start)
        self._reached[sequence.key] = max(reached, start + count)
        self._shares.charge(sequence.payer, self._reached[sequence.key] - reached)

    def _rank(self, sequence: Sequence) -> tuple[bool, int, int, int]:
        """The sort key of precedence: the smaller comes first."""
        key = sequence.key
        return key not in self._overdue, sequence.priority, self._shares[sequence.payer], key

    def bound(self, slots: int | None = None, *, coming: bool = False) -> bool:
        """After a step that needed more room than there is, hold fewer tokens from now on. Returns whether that makes room.

        slots: of the whole cache; None, where it is not the cache that is full, for as many as are held now. coming: the room was
        needed to admit a sequence, which can wait for those in flight.
        """
        if len(self.running) + coming < 2 and not self._prefixes.kept_tokens:
            return False
        lengths = [len(sequence.tokens) for sequence in self.running]
        if slots is None:
            slots = sum(lengths) + self._prefixes.kept_tokens
        # pages are seldom full; the longest sequence holds less than all do, and goes on whatever the limit is
        fewer = max(min(self.limits.cache_tokens, slots) * 7 // 8, *lengths, 1)
        self.limits = replace(self.limits, cache_tokens=fewer)
        # at once: the sequence that could not be admitted is the next to be, and would find as little room
        self._prefixes.make_room(max(fewer - sum(lengths), 0))
        self._await_ease()
        return True

    def draft_nothing(self) -> None:
        """After a step of one request alone that had no room for its draft, grant no drafts for a while."""
        self._drafts = False
        self._await_ease()

    def _await_ease(self) -> None:
        """After a shortage, choose the step that allows more again."""
        if self._eased:
            # where allowing more has led to another shortage, it is tried ever more rarely
            self._eased_steps, self._eased = 2 * self._eased_steps, False
        self._eases = self._steps + self._eased_steps

    def _ease(self) -> None:
        """Allow a little more again: what took the room may have been another program, or a single large step."""
        tokens, asked = self.limits.cache_tokens, self._asked_tokens
        if tokens >= asked and self._drafts:
            # the configured limit was allowed for as long without a shortage: another one counts as the first
            self._eased_steps, self._eased, self._eases = _EASED_STEPS, False, None
            return
        self.limits = replace(self.limits, cache_tokens=min(tokens - -asked // _EASED, asked))
        self._drafts = True
        self._eased, self._eases = True, self._steps + self._eased_steps

    def _preempt(self) -> int:
        """Make room for one more token of every running sequence; returns the room that they leave.

        The youngest of the least urgent is preempted; the oldest of the most urgent never is, so work always ends.
        """
        free = self.limits.cache_tokens - sum([len(sequence.tokens) for sequence in self.running])
        while len(self.running) > 1 and free < 0:
            sequence = max(self.running, key=lambda one: (one.key not in self._overdue, one.priority, one.key))
            self._wait_again(sequence)
            self._fed.pop(sequence.key, None)
            # steps in flight do not count as waiting; earlier waiting does, or it might be preempted again without end
            self._came[sequence.key] = self._steps - self._waited[sequence.key]
            self.preemptions += 1
            free += len(sequence.tokens)
            # last: if a user's own drafter raises here, no sequence loses its place
            self._prefixes.release(sequence)
        return free

    def _admit(self, wished: Budget, free: int) -> int:
        """Admit waiting sequences while the batch has a place, and there is room for their text and what all will generate next;
        returns the room left.

        The first one is not overtaken by smaller ones, except while it has room and awaits another's prompt. Where none is in
        flight it is admitted at once.
        """
        while self.waiting and len(self.running) < self.limits.batch:
            sequence = self._next(free)
            if sequence is None:
                break
            left = free - len(sequence.tokens)
            self._waited[sequence.key] = self._steps - self._came[sequence.key]
            try:
                self._prefixes.begin(sequence, max(left - wished.nodes * (len(self.running) + 1), 0))
                self.running.append(sequence)
                self._unqueue(sequence)
            except BaseException:
                # it goes on waiting, without what was copied of another's text
                self._prefixes.release(sequence)
                self._wait_again(sequence)
                raise
            free = left
            self._admissions += 1
            if self._waited_long(sequence):
                self._overdue.add(sequence.key)
        return free

    def _next(self, free: int) -> Sequence | None:
        """The sequence to admit next where there is room for `free` tokens; None for none."""
        spared = max(len(self.running), self.limits.cache_tokens // _SPARED)
        for sequence in self._in_turn():
            # checked before its text is looked up: it may wait for room for many steps
            if self.running and free - len(sequence.tokens) < spared:
                return None
            if not self._prefixes.awaits(sequence):
                return sequence
        return None

    def _wait_again(self, sequence: Sequence) -> None:
        """Remove a sequence from those in flight, if it is there, and add it to those that wait, if it is not there."""
        if sequence in self.running:
            self.running.remove(sequence)
        self._queue(sequence)

    def _kind(self, sequence: Sequence) -> tuple[bool, int, str]:
        """The key of its queue; constant while it waits."""
        return sequence.key not in self._overdue, sequence.priority, sequence.payer

    def _queue(self, sequence: Sequence) -> None:
        """Add a sequence to those that wait; a no-op where it is there."""
        for queue in (self.waiting, self._queues.setdefault(self._kind(sequence), [])):
            at = _place(queue, sequence)
            if queue[at : at + 1] != [sequence]:
                queue.insert(at, sequence)

    def _unqueue(self, sequence: Sequence) -> None:
        """Remove a sequence from those that wait; a no-op where it is not there."""
        kind = self._kind(sequence)
        for queue in (self.waiting, self._queues.get(kind, [])):
            at = _place(queue, sequence)
            if queue[at : at + 1] == [sequence]:
                del queue[at]
        if not self._queues.get(kind, True):
            del self._queues[kind]

    def _in_turn(self) -> Iterator[Sequence]:
        """The sequences that wait, in the order in which they may be admitted."""
        if self.waiting and self._admissions % _TURN == _TURN - 1:
            first = self._longest_waiting()
            if self._waited_long(first):
                yield first
        yield from merge(*self._queues.values(), key=self._rank)

    def _longest_waiting(self) -> Sequence:
        """The waiting sequence that has waited longest."""
        ahead = []
        for sequence in self.waiting:
            ahead.append(sequence)
            # a sequence that arrived after one that was never in flight has not waited longer
            if sequence.key not in self._waited:
                break
        return min(ahead, key=lambda one: self._came[one.key])

    def _waited_long(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence is overdue; only waiting counts, summed up where it was preempted."""
        return self._steps - self._came[sequence.key] > _PATIENCE_STEPS


def _place(queue: Many[Sequence], sequence: Sequence) -> int:
    """The index at which a sequence is, or would be, in a queue in the order of arrival."""
    return bisect_left(queue, sequence.key, key=lambda one: one.key)
