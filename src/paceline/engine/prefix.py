"""Prefixes: what was computed for a prefix of one request is not computed again for the next.

A request in flight shares its prompt with later ones; one that ended is kept until its room is needed, the least recently used
going first. A sequence that is admitted copies the longest prefix that is held for its tenant, or takes over an ended text that
it continues. The values held are those it would have computed itself, so none of this changes the text.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence as Many

from paceline.engine.radix import RadixTree
from paceline.sequence import Sequence
from paceline.speculative import Speculative

_LOSS, _LOSS_SHARE = 16, 8
"""A kept text that a newer one continues may lose so many tokens at its end, and at most one per so many of the others."""


class Prefixes:
    """The state that target and drafters hold for every sequence, in flight or ended.

    shortest: tokens of the shortest prefix that is worth sharing. most_bytes: of the target's keys and values
    and of drafters' state, over all sequences, beyond which nothing is kept for ended ones.
    """

    def __init__(self, speculative: Speculative, shortest: int, most_bytes: int) -> None:
        self._speculative, self._shortest, self._most_bytes = speculative, shortest, most_bytes
        self._trees: dict[str, RadixTree] = {}
        self._running: dict[int, Sequence] = {}
        self._ended: dict[int, str] = {}
        """Key of an ended sequence -> its tenant; the least recently used first."""
        self._awaited: dict[int, tuple[int, int]] = {}
        """Key of a sequence that waits -> key of the one it waits for, and how many tokens that must hold first."""
        self.kept_tokens = 0
        """Tokens held for ended sequences."""

    def length(self, key: int) -> int:
        """Tokens that the target's cache holds of a sequence."""
        return self._speculative.cache.length(key)

    def awaits(self, sequence: Sequence) -> bool:
        """Whether a sequence in flight, which came before this one and is no less urgent, is reading a prefix of both.

        So identical prompts that arrive together are computed once; no sequence waits longer than that takes.
        """
        found = self._awaited.get(sequence.key) or self._promised(sequence)
        if found is not None and found[0] in self._running and self.length(found[0]) < found[1]:
            self._awaited[sequence.key] = found
            return True
        self._awaited.pop(sequence.key, None)
        return False

    def _promised(self, sequence: Sequence) -> tuple[int, int] | None:
        """Key of a sequence that will hold more of this text than any does now, and how much; None where not worth the wait."""
        found = self._alike(sequence)
        held = max((min(common, self.length(key)) for common, keys in found for key in keys), default=0)
        for common, keys in found:
            if common - held < self._shortest:
                return None
            for key in keys:
                other = self._running.get(key)
                if other is not None and key < sequence.key and other.priority <= sequence.priority:
                    return key, common
        return None

    def _alike(self, sequence: Sequence) -> list[tuple[int, Collection[int]]]:
        """Lengths of prefixes of this text and the keys that share them, longest first; the last token is always left to feed."""
        tree = self._trees.get(sequence.tenant)
        # for log-probabilities of a prompt its rows must be fed
        if tree is None or len(sequence.tokens) <= self._shortest or sequence.params.prompt_logprobs is not None:
            return []
        return tree.alike(sequence.tokens[:-1])

    def begin(self, sequence: Sequence, room: int) -> None:
        """Admit a sequence with the longest prefix that is held. room: tokens that ended sequences may go on to hold."""
        best, source = (self._shortest - 1, 0), None
        for common, keys in self._alike(sequence):
            if common <= best[0]:
                break
            for key in keys:
                held = self.length(key)
                # of equal ones the shortest: a cache that holds only snapshots has them close to the end
                rank = min(common, held), -held
                if rank[0] >= self._shortest and rank > best:
                    best, source = rank, key
        if source is not None:
            self._share(source, sequence, best[0], room)
        if not sequence.generated_tokens:
            sequence.cached_tokens = self.length(sequence.key)
        self._awaited.pop(sequence.key, None)
        self._running[sequence.key] = sequence
        self._show(sequence.key, sequence.tenant, sequence.tokens)

    def _share(self, source: int, sequence: Sequence, common: int, room: int) -> None:
        """Copy a prefix, or take over the whole sequence where hardly anything is lost or there is no room for both."""
        cache, drafter, key = self._speculative.cache, self._speculative.drafter, sequence.key
        ended, held = self._ended.get(source), self.length(source)
        taken = ended is not None and (_contained(held, common) or held > room)
        if ended is not None and not taken:
            # marked as the most recently used, so that it is not dropped to make room for its own copy
            self._ended[source] = self._ended.pop(source)
            self.make_room(room)
        (drafter.move if taken else drafter.fork)(source, key, common)
        self._speculative.policy.fork(source, key, common)
        if ended is not None and taken:
            # no longer counted first: after an interrupt from here on, its state may be gone
            del self._ended[source]
            self.kept_tokens -= held
            try:
                cache.move(source, key)
                cache.truncate(key, common)
            finally:
                self._free(source, ended)
        else:
            cache.fork(source, key, common)
        drafter.truncate(key, self.length(key))

    def end(self, sequence: Sequence) -> None:
        """Keep what an ended sequence holds, in place of ended ones whose text it continues."""
        held = self.length(sequence.key)
        if held < self._shortest:
            self.release(sequence)
            return
        # a sequence that was stopped while it read its prompt holds only a part
        read = sequence.tokens[:held]
        self._show(sequence.key, sequence.tenant, read)
        for common, keys in self._trees[sequence.tenant].alike(read):
            for key in keys:
                if key in self._ended and _contained(self.length(key), common):
                    self._drop(key)
        # it counts as running until it is kept, so that it is found after an interrupt
        self._ended[sequence.key] = sequence.tenant
        self.kept_tokens += held
        del self._running[sequence.key]
        self._speculative.drafter.settle(sequence.key)
        self._speculative.cache.shrink(sequence.key)
        self._fit()

    def _fit(self) -> None:
        """Drop ended sequences, if there are any, until no more bytes are held than there is room for."""
        cache, drafter = self._speculative.cache, self._speculative.drafter
        drafters_bytes = drafter.sequence_bytes
        while self._ended and cache.held_bytes + drafters_bytes > self._most_bytes:
            self._drop(next(iter(self._ended)))
            # drafters have many small states to add up, and usually what the target freed is enough
            if cache.held_bytes + drafters_bytes > self._most_bytes:
                drafters_bytes = drafter.sequence_bytes

    def runs(self, sequence: Sequence) -> bool:
        """Whether it was begun, and neither ended nor released."""
        return sequence.key in self._running

    def release(self, sequence: Sequence) -> None:
        """Drop what is held for a sequence that has not ended: it was preempted, or nobody waits for it any longer."""
        self._awaited.pop(sequence.key, None)
        try:
            self._free(sequence.key, sequence.tenant)
        except Exception:
            # a drafter raised; the cached tokens are gone, and no sequence must wait for them
            self._running.pop(sequence.key, None)
            raise
        self._running.pop(sequence.key, None)

    def make_room(self, tokens: int) -> None:
        """Hold no more than so many tokens for ended sequences."""
        while self._ended and self.kept_tokens > tokens:
            self._drop(next(iter(self._ended)))

    def _drop(self, key: int) -> None:
        self.kept_tokens -= self.length(key)
        self._free(key, self._ended.pop(key))

    def _show(self, key: int, tenant: str, tokens: Many[int]) -> None:
        self._trees.setdefault(tenant, RadixTree()).put(key, tokens)

    def _free(self, key: int, tenant: str) -> None:
        tree = self._trees.get(tenant)
        if tree is not None:
            tree.remove(key)
            if not tree:
                del self._trees[tenant]
        self._speculative.release(key)


def _contained(held: int, common: int) -> bool:
    """Whether hardly anything of a held text is lost if only the `common` tokens stay."""
    return held - common <= min(_LOSS, common // _LOSS_SHARE)
