"""Scheduler: which sequences go into the next step, and how many of their tokens. Budgets only, no tensors.

Sequences join and leave between steps (continuous batching); long prompts go in chunks beside those that decode; when the
cache is full a sequence gives its place up and is computed again later, which changes nothing but the time. The smaller
priority comes first, then the payer that was served least, then who came first; whoever has waited long, or was let in and has
long been fed nothing, has its turn whatever the others are.
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
"""Whoever has waited longer, or was fed nothing for longer, is overdue."""
_TURN = 4
"""One admission in so many goes to the sequence that is overdue the longest, if there is one."""
_SHARED = 4
"""One part in so many of a step's prompt tokens is for other prompts than the first, the shortest before longer ones: a question
does not wait until a book is read."""
_SPARED = 16
"""One part in so many of the cache is left free when another sequence is let in, for what all of them go on to say: one that is
preempted while it reads is read twice."""
_EASED_STEPS = 256
"""So long after a step that had no room a little more may be held again; longer where that was tried before and failed."""
_EASED = 8
"""One part in so many of the cache that was asked for is allowed again at a time."""


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
        self._queues: dict[tuple[bool, int, str], list[Sequence]] = {}
        """The same by all that decides who comes first but what payers were served; each in the order in which they came."""
        self.running: list[Sequence] = []
        self.preemptions = 0
        self._asked_tokens = limits.cache_tokens
        """What sequences may hold where the device has room for it; `limits` has what they may hold now."""
        self._eased_steps, self._eased = _EASED_STEPS, False
        """How long after a shortage more is allowed, and whether it was since the last one."""
        self._eases: int | None = None
        """The step that allows more; None where no shortage is remembered."""
        self._drafts = True
        """Whether any are granted; after a step that had no room for its own none are, until more is allowed again."""
        self._steps = self._admissions = 0
        self._came: dict[int, int] = {}
        """The step before which a sequence that waits would have come, had it waited in one go."""
        self._waited: dict[int, int] = {}
        """Steps that a sequence in flight had waited when it was let in."""
        self._reached: dict[int, int] = {}
        """Tokens of a sequence that its payer was charged for, what was found in the cache included."""
        self._fed: dict[int, int] = {}
        """The last step that fed a sequence in flight, of those that the latest step passed over."""
        self._overdue: set[int] = set()
        """Those that were let in late, or were not fed for long: they stay ahead of every priority, so that they end."""

    def add(self, sequence: Sequence) -> None:
        self._queue(sequence)
        self._came[sequence.key] = self._steps
        self._shares.enter(sequence.payer)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it stands; a no-op for one that is gone."""
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
        """The next step's work. wished: what a sequence would like to draft; less where room is short.

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
        # with room for all wishes, and no prompt to read, it makes no difference who comes first
        if spare < 0 or max(missing, default=1) > 1:
            # those that decode come before prompts: a replayed one feeds a few tokens again and draws on the same chunk
            order = sorted(range(len(running)), key=lambda at: (running[at].generated_tokens == 0, self._rank(running[at])))
            running, missing = [running[at] for at in order], [missing[at] for at in order]
        work = []
        for sequence, lacks, count in zip(running, missing, self._counts(running, missing), strict=True):
            if count == 0:
                self._pass_over(sequence)
                continue
            if self._fed:
                self._fed.pop(sequence.key, None)
            start, nodes = len(sequence.tokens) - lacks, 0
            if count == lacks:
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

    def _counts(self, running: Many[Sequence], missing: Many[int]) -> list[int]:
        """How many tokens each feeds. running: whoever comes first before the others. missing: how many of its own each lacks."""
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

    def _pass_over(self, sequence: Sequence) -> None:
        """Feed one in flight nothing in this step; once that has gone on for long it is overdue."""
        if self._steps - self._fed.setdefault(sequence.key, self._steps - 1) > _PATIENCE_STEPS:
            self._overdue.add(sequence.key)

    def _urgency(self, sequence: Sequence) -> tuple[bool | int, ...]:
        """What goes before any share: text that is computed again, who is overdue, and the priority."""
        return sequence.generated_tokens == 0, *self._rank(sequence)[:2]

    def _charge(self, sequence: Sequence, start: int, count: int) -> None:
        """Count what is fed, and what was accepted since; neither what was found in the cache nor what is computed again."""
        reached = self._reached.get(sequence.key, start)
        self._reached[sequence.key] = max(reached, start + count)
        self._shares.charge(sequence.payer, self._reached[sequence.key] - reached)

    def _rank(self, sequence: Sequence) -> tuple[bool, int, int, int]:
        """Who comes first: the smaller."""
        key = sequence.key
        return key not in self._overdue, sequence.priority, self._shares[sequence.payer], key

    def bound(self, slots: int | None = None, *, coming: bool = False) -> bool:
        """A step needed more room than there is: from now on fewer tokens are held. Whether that makes room.

        slots: of the whole cache; None where it is not the cache that is full, for as many as are held now. coming: it was
        needed to let somebody in, who can wait for those in flight.
        """
        if len(self.running) + coming < 2 and not self._prefixes.kept_tokens:
            return False
        lengths = [len(sequence.tokens) for sequence in self.running]
        if slots is None:
            slots = sum(lengths) + self._prefixes.kept_tokens
        # pages are seldom full; what the longest holds is less than what all do, and it goes on whatever the limit is
        fewer = max(min(self.limits.cache_tokens, slots) * 7 // 8, *lengths, 1)
        self.limits = replace(self.limits, cache_tokens=fewer)
        # at once: whoever could not be let in is the next to be, and would find as little room
        self._prefixes.make_room(max(fewer - sum(lengths), 0))
        self._await_ease()
        return True

    def draft_nothing(self) -> None:
        """A step of one request needed more room than there is, for what it drafted: for a while nobody drafts."""
        self._drafts = False
        self._await_ease()

    def _await_ease(self) -> None:
        """There was too little room: after some steps more is allowed."""
        if self._eased:
            # a device that is too full for what was asked is tried ever more rarely
            self._eased_steps, self._eased = 2 * self._eased_steps, False
        self._eases = self._steps + self._eased_steps

    def _ease(self) -> None:
        """Allow a little more again: what took the room may have been another program, or a single large step."""
        tokens, asked = self.limits.cache_tokens, self._asked_tokens
        if tokens >= asked and self._drafts:
            # all that was asked for has done well for as long: another shortage is the first again
            self._eased_steps, self._eased, self._eases = _EASED_STEPS, False, None
            return
        self.limits = replace(self.limits, cache_tokens=min(tokens - -asked // _EASED, asked))
        self._drafts = True
        self._eased, self._eases = True, self._steps + self._eased_steps

    def _preempt(self) -> int:
        """Make room for one more token of every running sequence; the room that they leave.

        Of the least urgent the youngest goes; the oldest of the most urgent never does, so work always ends.
        """
        free = self.limits.cache_tokens - sum([len(sequence.tokens) for sequence in self.running])
        while len(self.running) > 1 and free < 0:
            sequence = max(self.running, key=lambda one: (one.key not in self._overdue, one.priority, one.key))
            self._wait_again(sequence)
            self._fed.pop(sequence.key, None)
            # the steps in which it was in flight are no waiting; what it waited before is, or it might go in and out for ever
            self._came[sequence.key] = self._steps - self._waited[sequence.key]
            self.preemptions += 1
            free += len(sequence.tokens)
            # last: what a drafter of one's own raises then loses nobody's place
            self._prefixes.release(sequence)
        return free

    def _admit(self, wished: Budget, free: int) -> int:
        """Let waiting sequences in while there is a place, and room for their text and what all will say next; the room left.

        Whoever comes first is not passed by smaller ones, but for the time in which it has room and awaits another's prompt.
        Where nobody is in flight it is let in at once.
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
                # it waits on, and what was copied of another's text is gone
                self._prefixes.release(sequence)
                self._wait_again(sequence)
                raise
            free = left
            self._admissions += 1
            if self._waited_long(sequence):
                self._overdue.add(sequence.key)
        return free

    def _next(self, free: int) -> Sequence | None:
        """Who is let in next where there is room for so many tokens; None where nobody is."""
        spared = max(len(self.running), self.limits.cache_tokens // _SPARED)
        for sequence in self._in_turn():
            # before its text is looked up: it may wait for room for many steps
            if self.running and free - len(sequence.tokens) < spared:
                return None
            if not self._prefixes.awaits(sequence):
                return sequence
        return None

    def _wait_again(self, sequence: Sequence) -> None:
        """Take it out of those in flight, if it is among them, and put it among those that wait, if it is not."""
        if sequence in self.running:
            self.running.remove(sequence)
        self._queue(sequence)

    def _kind(self, sequence: Sequence) -> tuple[bool, int, str]:
        """Where it queues; the same for as long as it waits."""
        return sequence.key not in self._overdue, sequence.priority, sequence.payer

    def _queue(self, sequence: Sequence) -> None:
        """Put it among those that wait; a no-op where it is."""
        for queue in (self.waiting, self._queues.setdefault(self._kind(sequence), [])):
            at = _place(queue, sequence)
            if queue[at : at + 1] != [sequence]:
                queue.insert(at, sequence)

    def _unqueue(self, sequence: Sequence) -> None:
        """Take it out of those that wait; a no-op where it is not."""
        kind = self._kind(sequence)
        for queue in (self.waiting, self._queues.get(kind, [])):
            at = _place(queue, sequence)
            if queue[at : at + 1] == [sequence]:
                del queue[at]
        if not self._queues.get(kind, True):
            del self._queues[kind]

    def _in_turn(self) -> Iterator[Sequence]:
        """Those that wait, in the order in which they may come in."""
        if self.waiting and self._admissions % _TURN == _TURN - 1:
            first = self._longest_waiting()
            if self._waited_long(first):
                yield first
        yield from merge(*self._queues.values(), key=self._rank)

    def _longest_waiting(self) -> Sequence:
        """Of those that wait the one that has waited longest."""
        ahead = []
        for sequence in self.waiting:
            ahead.append(sequence)
            # whoever came later than one that was never in flight has not waited longer
            if sequence.key not in self._waited:
                break
        return min(ahead, key=lambda one: self._came[one.key])

    def _waited_long(self, sequence: Sequence) -> bool:
        """Whether one that waits is overdue; only waiting counts, all of it together where it was preempted."""
        return self._steps - self._came[sequence.key] > _PATIENCE_STEPS


def _place(queue: Many[Sequence], sequence: Sequence) -> int:
    """Where a sequence stands, or would stand, among others in the order in which they came."""
    return bisect_left(queue, sequence.key, key=lambda one: one.key)
