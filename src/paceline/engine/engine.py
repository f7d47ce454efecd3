"""Engine: requests in, steps, results out. Many sequences over time, one step at a time."""

from __future__ import annotations

import secrets
from collections.abc import Sequence as Many
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from paceline.cache.pages import OutOfPages
from paceline.constraint import Constraint, GrammarError
from paceline.drafting import Work
from paceline.engine.prefix import Prefixes
from paceline.engine.scheduler import Limits, Scheduler
from paceline.engine.stops import StopChecker
from paceline.errors import PacelineError
from paceline.frozen import frozen
from paceline.learning.costs import Timings
from paceline.machine import free_bytes
from paceline.models.base import LanguageModel
from paceline.models.tokenizer import Tokenizer
from paceline.params import SamplingParams
from paceline.sampling import LogitsError
from paceline.sequence import Sequence
from paceline.shortage import memory_ended
from paceline.speculative import Outcome, Speculative
from paceline.step import Verdict
from paceline.tree import DraftTree

if TYPE_CHECKING:
    from paceline.models.grammar import Grammars


class RequestError(PacelineError):
    """A request that cannot be served, because of its prompt or its parameters; the message is one sentence for the user."""


class OutOfMemory(PacelineError):
    """The GPU, or this machine, has too little memory for a step of one request alone, without a draft."""

    def __init__(self) -> None:
        super().__init__("the device has too little memory to go on with this request")


@frozen
class Progress:
    """The result of one step for one sequence: its text so far, and the draft and verdict behind it."""

    outcome: Outcome
    text: str
    """The answer so far; cumulative and final. Empty before the end of a sequence that is not streamed, unless it has stop
    strings."""
    error: PacelineError | None = None
    """Why the engine aborted the sequence, if it did; its finish reason is then "abort"."""

    @property
    def sequence(self) -> Sequence:
        return self.outcome.sequence

    @property
    def finished(self) -> bool:
        """Whether this is the last `Progress` of its sequence."""
        return self.outcome.verdict.finish is not None


_KEPT_BYTES = 128 << 20


def _kept_bytes(target: LanguageModel) -> int:
    """Bytes beyond which nothing is kept for ended sequences: as many as the model's weights, at least `_KEPT_BYTES`, but at most
    a quarter of what is free at the start."""
    free = torch.cuda.mem_get_info()[0] if target.returns_early else free_bytes()
    return min(free // 4, max(target.weights_bytes, _KEPT_BYTES))


class Engine:
    """One target with its drafter, and the requests in flight."""

    def __init__(self, speculative: Speculative, tokenizer: Tokenizer, limits: Limits) -> None:
        self.speculative, self.tokenizer, self.limits = speculative, tokenizer, limits
        self.longest = min(speculative.target.context_length, limits.cache_tokens)
        self.stops = StopChecker(tokenizer, self.longest)
        self.prefixes = Prefixes(speculative, limits.shortest_prefix, _kept_bytes(speculative.target))
        self.scheduler = Scheduler(limits, self.longest, self.prefixes)
        self._keys = 0
        self._owed: dict[Sequence, Progress] = {}
        """Final progress of sequences whose end a failed step committed but did not report."""

    def add(
        self,
        prompt: Many[int],
        params: SamplingParams,
        *,
        reference: Many[int] = (),
        tenant: str = "",
        payer: str | None = None,
        priority: int = 0,
        drafters: frozenset[str] | None = None,
        nodes: int | None = None,
        streamed: bool = True,
        constraint: Constraint | None = None,
    ) -> Sequence:
        """Admit a request. prompt: token ids. Raises RequestError where it is empty, too long, or names unknown tokens,
        and where its grammar cannot be used.

        reference: token ids that the answer is expected to resemble; they affect only the time. payer: the
        tenant where None. tenant, priority, drafters, nodes, streamed: see `Sequence`. constraint: made earlier by `constraint`
        from these parameters; where None it is made now, which may take seconds.
        """
        size = self.speculative.target.vocab_size
        if not prompt:
            raise RequestError("the prompt is empty")
        if any(not 0 <= token < size for token in prompt):
            raise RequestError(f"the prompt holds a token id outside the vocabulary of {size}")
        if reference and not (min(reference) >= 0 and max(reference) < size):
            raise RequestError(f"the reference holds a token id outside the vocabulary of {size}")
        for field in ("logit_bias", "stop_token_ids"):
            if any(token >= size for token in getattr(params, field)):
                raise RequestError(f"{field} holds a token id outside the vocabulary of {size}")
        if len(prompt) >= self.longest:
            bound = "the model's context" if self.longest == self.speculative.target.context_length else "cache_tokens"
            raise RequestError(f"the prompt has {len(prompt)} tokens, but only {self.longest - 1} fit by {bound}")
        stop_ids = self.stop_ids(params)
        if params.min_tokens and len(stop_ids) >= size:
            raise RequestError("min_tokens bans every token: all of the vocabulary would stop the text")
        seed = params.seed if params.seed is not None else secrets.randbits(53)
        sequence = Sequence(
            self._keys,
            tuple(prompt),
            params,
            seed,
            stop_ids,
            tuple(reference),
            tenant,
            tenant if payer is None else payer,
            priority,
            drafters,
            nodes,
            streamed,
            read_texts=self.speculative.drafter.read_texts,
        )
        try:
            sequence.constraint = constraint or self.constraint(params)
        except GrammarError as error:
            raise RequestError(str(error)) from error
        self._keys += 1
        self.stops.begin(sequence)
        self.scheduler.add(sequence)
        return sequence

    @cached_property
    def grammars(self) -> Grammars:
        """The compiler of grammars; for a large vocabulary it takes a second to make."""
        # few requests have a grammar, and llguidance takes a while to import
        from paceline.models.grammar import Grammars

        target = self.speculative.target
        return Grammars(self.tokenizer, target.vocab_size, target.eos_token_ids)

    def constraint(self, params: SamplingParams) -> Constraint | None:
        """The constraint with which to admit a request under these parameters; None without a grammar. May be called in another
        thread, where it delays no step. Raises GrammarError as `Grammars.check` does."""
        return None if params.grammar is None else self.grammars.constraint(params.grammar, self.stop_ids(params))

    def check_grammar(self, params: SamplingParams) -> None:
        """Raises RequestError where the grammar of these parameters cannot be used."""
        try:
            self.constraint(params)
        except GrammarError as error:
            raise RequestError(str(error)) from error

    def stop_ids(self, params: SamplingParams) -> frozenset[int]:
        """Token ids that end a request: the model's EOS unless ignored, and the request's own."""
        return params.stop_token_ids if params.ignore_eos else self.speculative.target.eos_token_ids | params.stop_token_ids

    def step(self) -> list[Progress]:
        """Run one step for the picked sequences; an empty list where nothing is left to do.

        A sequence whose logits are not numbers, or that is too much for the memory even alone and without drafts, ends alone, and
        its progress holds the error; the others are as before the step. After any other exception the engine is fit for the next
        step, which first reports the sequences that have ended.
        """
        if self._owed:
            owed, self._owed = [*self._owed.values()], {}
            return owed
        work: list[Work] = []
        try:
            work = self.scheduler.pick(self.speculative.drafter.budget)
            if not work:
                return []
            progress = [self._progress(outcome) for outcome in self.speculative.step(work, self.stops)]
            for one in progress:
                if one.finished:
                    self._owed[one.sequence] = one
                    self._leave(one.sequence)
                    self.prefixes.end(one.sequence)
            self._owed = {}
        except LogitsError as error:
            self._recover(work)
            failed = next((item.sequence for item in work if item.sequence is error.sequence), None)
            if failed is None or failed.finish_reason is not None:
                raise
            return [self._given_up(failed, error)]
        except OutOfPages as error:
            # the device has less memory than the cache may hold
            self._recover(work)
            return [] if self._takes_less(work, error.slots) else self._without_room(work, error)
        except BaseException as error:
            self._recover(work)
            if not memory_ended(error):
                raise
            takes_less = self._takes_less(work)
            if not (work or takes_less):
                # nothing is held that could make room for the sequence to be admitted
                raise
        else:
            return progress
        # only now, as the error is gone, is the forward's memory free
        torch.cuda.empty_cache()
        return [] if takes_less else self._without_room(work, OutOfMemory())

    def _takes_less(self, work: Many[Work], slots: int | None = None) -> bool:
        """Whether the next step needs less room than this one, which had too little. slots: as in `Scheduler.bound`."""
        if self.scheduler.bound(slots, coming=not work):
            return True
        drafted = any(item.room.some for item in work)
        if drafted:
            self.scheduler.draft_nothing()
        return drafted

    def _without_room(self, work: Many[Work], error: PacelineError) -> list[Progress]:
        """End the sequence that is too much for the memory on its own; none where the step had already ended all of them."""
        left = [item.sequence for item in work if item.sequence.finish_reason is None]
        return [self._given_up(left[0], error)] if left else []

    def _progress(self, outcome: Outcome, error: PacelineError | None = None) -> Progress:
        stream = self.stops.stream(outcome.sequence)
        return Progress(outcome, stream.text if outcome.verdict.finish and error is None else stream.safe, error)

    def _recover(self, work: Many[Work]) -> None:
        """Undo what a step left half done: what it committed stands; other sequences are as if it had not run."""
        cache = self.speculative.cache
        for sequence in (item.sequence for item in work):
            if sequence.finish_reason is None:
                # texts and cache may have run ahead of tokens that were never committed
                self.stops.begin(sequence)
                del sequence.logprobs[sequence.generated_tokens :]
                sequence.stop = None
                # a prompt whose log-probabilities are wanted is fed again from the first token that lacks one
                known = len(sequence.prompt_logprobs) if sequence.tells_prompt else len(sequence.tokens)
                if cache.length(sequence.key) >= known:
                    cache.truncate(sequence.key, known - 1)
            elif sequence in self.scheduler.running or self.prefixes.runs(sequence):
                if sequence not in self._owed:
                    self._owed[sequence] = self._progress(_nothing_more(sequence, sequence.finish_reason))
                self._leave(sequence)
                self.prefixes.release(sequence)

    def _given_up(self, sequence: Sequence, error: PacelineError) -> Progress:
        """End a sequence that cannot go on; what was computed for it must not be used any more."""
        progress = self._progress(_nothing_more(sequence, "abort"), error)
        sequence.finish_reason = "abort"
        self._leave(sequence)
        self.prefixes.release(sequence)
        return progress

    def abort(self, sequence: Sequence) -> None:
        """End a request now; its text so far stands, and what was computed for it is kept as a prefix for others. A no-op for one
        that ended."""
        self._owed.pop(sequence, None)
        if sequence.finish_reason is None:
            sequence.finish_reason = "abort"
            self._leave(sequence)
            if self.prefixes.runs(sequence):
                self.prefixes.end(sequence)
            else:
                self.prefixes.release(sequence)

    def abort_all(self) -> list[Progress]:
        """End every request now; returns the last progress of each."""
        last = [*self._owed.values()]
        for sequence in [*self.scheduler.running, *self.scheduler.waiting]:
            last.append(Progress(_nothing_more(sequence, "abort"), self.stops.cut_short(sequence)))
            self.abort(sequence)
        return last

    def forget(self) -> None:
        """Drop all that is kept of ended requests: the next one is served as the first was."""
        self.prefixes.make_room(0)
        self.speculative.drafter.forget()

    def _leave(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        self.stops.end(sequence)

    @property
    def has_work(self) -> bool:
        return bool(self._owed) or self.scheduler.has_work

    def serves(self, sequence: Sequence) -> bool:
        """Whether a later step will report on a sequence."""
        return sequence in self._owed or (sequence.finish_reason is None and self.scheduler.has_work)


def _nothing_more(sequence: Sequence, finish: str) -> Outcome:
    """An outcome that ends a sequence without a step."""
    return Outcome(sequence, DraftTree.root(sequence.root), Verdict(finish=finish), Timings(0.0, 0.0, 0.0, 0.0), 0)
