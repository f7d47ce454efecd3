"""LLM: the library's front door. Load a model once, generate or stream with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence as Many
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from operator import index
from os import PathLike, fspath, getpid
from threading import Lock, RLock
from typing import Any

import torch

from paceline.compose import build_drafters, build_verifier_and_policy, check_words, exactness, spelled_out
from paceline.drafters.base import Surroundings
from paceline.engine.engine import Engine, Progress, RequestError
from paceline.engine.measure import measure
from paceline.engine.scheduler import Limits
from paceline.errors import PacelineError
from paceline.interrupts import Deferred
from paceline.logprobs import TokenLogprobs
from paceline.models.base import LanguageModel, check_formats
from paceline.models.embedded import DEFAULT
from paceline.models.free_memory import return_free_memory
from paceline.models.load import load_model, resolve
from paceline.models.tokenizer import Tokenizer
from paceline.params import SamplingParams
from paceline.sequence import Sequence, Speculation
from paceline.speculative import Outcome, Speculative
from paceline.verifiers.base import Exactness

Prompt = str | Many[int]
_NO_IDS = bytes | bytearray | Mapping
"""Types whose elements are or may be integers, but no token ids."""


@dataclass(frozen=True)
class Completion:
    """One finished answer.

    text, token_ids: the answer only, without the prompt.
    finish_reason: "stop", "length" or "abort".
    prompt_tokens: number of tokens in the prompt.
    seed: the request's seed, given or drawn.
    sources: for each token, the drafter that proposed it; "" where the target chose it without one.
    speculation: statistics of drafting and verifying.
    keeps: the guarantee relative to plain decoding: "text" (the same tokens), "law" (the same distribution) or "nothing".
    logprobs, prompt_logprobs: one entry for each token, empty if not asked for; the first token of a prompt has None.
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    prompt_tokens: int
    seed: int
    sources: list[str]
    speculation: Speculation
    keeps: str
    logprobs: list[TokenLogprobs]
    prompt_logprobs: list[TokenLogprobs | None]


class _Inbox:
    """Unread progress of one request; only the latest if the request is not streamed.

    Texts only grow, so only the latest is stored, and trees are stored without proposals: a stream that is never read takes
    memory in proportion to its answer.
    """

    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self._steps: deque[tuple[Outcome, int, PacelineError | None]] = deque(maxlen=None if sequence.streamed else 1)
        self._text = ""

    def __len__(self) -> int:
        return len(self._steps)

    def put(self, progress: Progress) -> None:
        self._text, outcome = progress.text, progress.outcome
        if outcome.tree is not None and outcome.tree.proposals:
            outcome = replace(outcome, tree=outcome.tree.shown())
        self._steps.append((outcome, len(progress.text), progress.error))

    def take(self) -> Progress:
        """Remove and return the oldest."""
        outcome, chars, error = self._steps.popleft()
        return Progress(outcome, self._text[:chars], error)


class LLM:
    """Load a target model and its drafter; generate or stream text.

    model: a directory, a Hub id or an embedded name; None is the embedded default.
    draft: the spec string of the drafter.
    verify: the spec string of the verifier, which decides which drafted tokens are accepted.
    lossy: allow verifiers that keep neither the text nor its distribution.
    policy: the spec string of the policy, which decides how much is drafted; defaults to `adaptive` for `auto`, otherwise
    `fixed`.
    weights: the target's weight format, one of `WEIGHTS`; None is the checkpoint's precision, or float32 in the transformers
    backend on a CPU.
    kv_cache: a narrow format for the target's keys and values, one of `KV_CACHES`, on a GPU only; None keeps them unquantised.
    extra_drafters: specs of further drafters, active only for requests that give them input, such as a `reference`.
    offer: specs of drafters that requests may name.
    batch: maximum number of sequences in flight.
    prefill_chunk: prompt tokens per step, over all sequences; None is the target's own choice.
    cache_tokens: tokens that all sequences together may hold in the target's cache.
    shortest_prefix: tokens of the shortest prefix that requests share.

    Raises ModelError, SpecError or UnknownMethod, CompileError where kernels cannot be compiled, and ValueError where a size is
    below 1 or no integer, or a list of drafters is none.

    Thread-safe: steps are serialised, and each waiting caller may run the step that serves everyone's requests. A single stream,
    `engine` and `target` are for one thread at a time.
    """

    def __init__(
        self,
        model: str | PathLike[str] | None = None,
        draft: str = "auto",
        *,
        verify: str = "match",
        lossy: bool = False,
        policy: str | None = None,
        weights: str | None = None,
        kv_cache: str | None = None,
        extra_drafters: Many[str] = (),
        offer: Many[str] = (),
        batch: int = 8,
        prefill_chunk: int | None = None,
        cache_tokens: int = 65536,
        shortest_prefix: int = Limits.shortest_prefix,
    ) -> None:
        sizes = {"batch": batch, "cache_tokens": cache_tokens, "shortest_prefix": shortest_prefix, "prefill_chunk": prefill_chunk}
        for name, size in sizes.items():
            if (name, size) != ("prefill_chunk", None) and (not isinstance(size, int) or size < 1):
                raise ValueError(f"{name} is a whole number from 1, not {size!r}")
        for name, named in (("extra_drafters", extra_drafters), ("offer", offer)):
            if isinstance(named, str) or not isinstance(named, Many):
                raise ValueError(f"{name} is a list of drafters, not {named!r}")
        # mistakes in specs are reported before anything is fetched or read
        check_formats(weights, kv_cache)
        check_words(draft, verify, policy, (*extra_drafters, *offer))
        self.path = str(resolve(fspath(model) if model is not None else DEFAULT))
        spelled_out(draft, self.path)
        self.target: LanguageModel = load_model(self.path, weights=weights, kv_cache=kv_cache)
        self.tokenizer = Tokenizer(self.path)
        self.lossy = lossy
        chunk = self.target.prefill_chunk if prefill_chunk is None else prefill_chunk
        self._limits = Limits(batch, chunk, cache_tokens, shortest_prefix)
        self._verify, self._policy = verify, policy
        self._extra_drafters, self._offer = tuple(extra_drafters), tuple(offer)
        self._load = lru_cache(maxsize=4)(_checkpoint)
        self._next, self._lock = Lock(), RLock()
        self._process = getpid()
        self._taken, self._left = False, list[Sequence]()
        """Whether a thread is using the engine; and requests that were closed meanwhile."""
        self.engine = self._engine(draft)
        self._inboxes: dict[Sequence, _Inbox] = {}

    def use(self, draft: str, policy: str | None = None, *, verify: str | None = None) -> None:
        """Change the drafter, and the policy and the verifier, which are those of the constructor if not given. The target stays
        loaded; requests in flight end with "abort"."""
        with self._alone():
            # this may be interrupted: it may fetch a model, and changes nothing
            engine = self._engine(draft, policy, verify)
            with Deferred():
                self._tell(self.engine.abort_all())
                self.engine, self._inboxes = engine, {}

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """`_alone`, while interrupts wait."""
        with Deferred(), self._alone():
            yield

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Use the engine exclusively. A waiting thread comes next: else one that steps on and on would never let another in.

        Raises RequestError in a process that was forked while another thread did.
        """
        if self._process != getpid():
            self._adopt()
        with self._next:
            self._lock.acquire()
        self._taken = True
        try:
            yield
        finally:
            try:
                while self._left:
                    self.engine.abort(self._left.pop())
            finally:
                self._taken = False
                self._lock.release()

    def _adopt(self) -> None:
        """Take over in a forked process, which has none of the threads that were there."""
        if self._taken:
            raise RequestError("this process was forked while another thread was using its LLM: make one here")
        self._next, self._lock, self._process = Lock(), RLock(), getpid()
        # torch would wait for its threads, which are not there either
        torch.set_num_threads(1)
        for sequence in [one for one in self._inboxes if not one.streamed]:
            # whoever waits for it does so in another thread, as this one was not in a turn
            del self._inboxes[sequence]
            self.engine.abort(sequence)

    def _engine(self, draft: str, policy: str | None = None, verify: str | None = None) -> Engine:
        chosen = self._policy if policy is None else policy
        verifier, decides = build_verifier_and_policy(draft, self._verify if verify is None else verify, chosen)
        wants = verifier.prefers, verifier.amateur, decides.deepest
        surroundings = Surroundings(self.target, self.tokenizer, self._load, *wants)
        spec = spelled_out(draft, self.path)
        drafter, on_request = build_drafters(spec, self._extra_drafters, self._offer, surroundings)
        speculative = Speculative(self.target, drafter, verifier, decides, on_request)
        engine = Engine(speculative, self.tokenizer, self._limits)
        if decides.measures:
            measure(engine.speculative, engine.longest, spec)
        # memory that reading checkpoints, loading kernels and measuring left behind
        return_free_memory()
        return engine

    @property
    def draft_name(self) -> str:
        """The name of the drafter that is in use."""
        return self.engine.speculative.drafter.name

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt: text is tokenised with special tokens added once, ids are taken as they are.

        Raises RequestError for what is neither, ModelError for text that is not valid Unicode.
        """
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else _ids(prompt, "prompt")

    def _reference(self, reference: Prompt | None, prompt: Prompt) -> list[int]:
        """Token ids of a reference as they would be in an answer to the prompt: with a space before the first word, where the
        tokenizer joins spaces to words and the prompt does not end with one."""
        if not isinstance(reference, str):
            return [] if reference is None else _ids(reference, "reference")
        if isinstance(prompt, str) and self._joins_spaces and not prompt[-1:].isspace() and not reference[:1].isspace():
            reference = " " + reference
        return self.tokenizer.encode(reference, add_special=False)

    @cached_property
    def _joins_spaces(self) -> bool:
        """Whether the space before a word is part of the word's token, neither a separate token nor always added."""
        alone, spaced = (self.tokenizer.encode(text, add_special=False) for text in ("a", " a"))
        return spaced[1:] != alone

    def check_exactness(self, params: SamplingParams) -> Exactness | None:
        """What an answer under these parameters keeps of plain decoding: TEXT, LAW (its distribution) or None. Raises
        RequestError for None unless `lossy` was given."""
        speculative = self.engine.speculative
        kept = exactness(speculative.drafter, speculative.verifier, params)
        if kept is None and not self.lossy:
            raise RequestError(
                f"'{speculative.verifier.name}' keeps neither the text nor its distribution for drafts by"
                f" '{speculative.drafter.name}'; choose another verifier, or allow it by --lossy, in Python by lossy=True"
            )
        return kept

    def keeps(self, params: SamplingParams) -> str:
        """The same as a string, as in `Completion.keeps`: "text", "law" or "nothing"."""
        kept = self.check_exactness(params)
        return kept.value if kept else "nothing"

    def completed(self, sequence: Sequence, text: str) -> Completion:
        """The `Completion` of a finished sequence. text: that of its last `Progress`."""
        return Completion(
            text,
            list(sequence.generated),
            sequence.finish_reason or "abort",
            len(sequence.prompt),
            sequence.seed,
            list(sequence.sources),
            sequence.speculation,
            sequence.keeps,
            list(sequence.logprobs),
            list(sequence.prompt_logprobs),
        )

    def generate(
        self,
        prompts: Prompt | Many[Prompt],
        params: SamplingParams | Many[SamplingParams] | None = None,
        *,
        reference: Prompt | Many[Prompt] | None = None,
    ) -> list[Completion]:
        """Complete prompts, batched; answers come in the order of the prompts.

        params: one `SamplingParams` for all, or one each; greedy by default.
        reference: text or token ids that the answers are expected to resemble, one for all or one each. The drafter `reference`
        drafts from it, where `draft` or `extra_drafters` names it; it affects only the time. Raises RequestError,
        ModelError for text that is not valid Unicode, LogitsError where logits are not numbers, OutOfMemory or
        OutOfPages where memory does not suffice for a request alone, and OwnFileError where a user's own method failed; then
        none of these prompts goes on.
        """
        asked = _listed(prompts, "prompt")
        if isinstance(params, Many) and not isinstance(params, str) and len(params) > 0:
            chosen = [_checked(one) for one in params]
        else:
            chosen = [_checked(params or None)] * len(asked)
        if len(chosen) != len(asked):
            raise RequestError(f"{len(asked)} prompts came with {len(chosen)} sets of parameters")
        references = [None] if reference is None else _listed(reference, "reference") or [None]
        if len(references) == 1:
            references *= len(asked)
        if len(references) != len(asked):
            raise RequestError(f"{len(asked)} prompts came with {len(references)} references")
        opened = list[_Inbox]()
        try:
            with self._turn():
                for one in chosen:
                    self.check_exactness(one)
                for prompt, one, like in zip(asked, chosen, references, strict=True):
                    opened.append(self._begun(prompt, one, like, streamed=False))
            return [self.completed(inbox.sequence, self._text_at_end(inbox)) for inbox in opened]
        finally:
            self._close(opened)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        reference: Prompt | None = None,
    ) -> Iterator[Progress]:
        """Stream one prompt: yields a `Progress` after each step. Leaving the loop early ends the request.

        `Progress.text` is cumulative, and the trees of outcomes have no `proposals`. params, reference and errors are as for
        `generate`; the request begins, and errors are raised, when the first `Progress` is asked for.
        """
        params, opened = _checked(params), list[_Inbox]()
        try:
            with self._turn():
                self.check_exactness(params)
                opened.append(self._begun(prompt, params, reference, streamed=True))
            yield from self._received(opened[0])
        finally:
            self._close(opened)

    def _begun(self, prompt: Prompt, params: SamplingParams, reference: Prompt | None, *, streamed: bool) -> _Inbox:
        """Admit a request and make an inbox for its progress."""
        like = self._reference(reference, prompt)
        sequence = self.engine.add(self.encode(prompt), params, reference=like, streamed=streamed)
        sequence.keeps = self.keeps(params)
        # keyed by the sequence itself: every engine counts its keys from 0
        inbox = self._inboxes[sequence] = _Inbox(sequence)
        return inbox

    def _close(self, inboxes: Iterable[_Inbox]) -> None:
        if self._process != getpid():
            if self._taken:
                return
            self._adopt()
        # without `_turn`: the garbage collector may close a stream while this thread is already in the middle of a step
        with Deferred(), self._lock, ExitStack() as aborts:
            for inbox in inboxes:
                self._inboxes.pop(inbox.sequence, None)
                if self._taken:
                    self._left.append(inbox.sequence)
                else:
                    # all of them, even if a drafter of a user's own fails as one is released
                    aborts.callback(self.engine.abort, inbox.sequence)

    def _received(self, inbox: _Inbox) -> Iterator[Progress]:
        """The progress of one request, until it ends or another engine is used. A waiting thread runs the engine for all, and
        puts the progress of others into their inboxes. Raises the error of its progress."""
        while True:
            with self._turn():
                # while this thread waited for its turn, another's step may have put something in
                if not inbox:
                    if not self.engine.serves(inbox.sequence):
                        return
                    self._tell(self.engine.step())
                progress = inbox.take() if inbox else None
            if progress is None:
                continue
            if progress.error is not None:
                raise progress.error
            yield progress

    def _tell(self, told: Iterable[Progress]) -> None:
        for progress in told:
            if (inbox := self._inboxes.get(progress.sequence)) is not None:
                inbox.put(progress)

    def _text_at_end(self, inbox: _Inbox) -> str:
        text = ""
        for progress in self._received(inbox):
            text = progress.text
        return text


def _checkpoint(name: str, weights: str | None = None) -> tuple[LanguageModel, Tokenizer]:
    folder = str(resolve(name))
    return load_model(folder, weights=weights), Tokenizer(folder)


def _checked(params: Any) -> SamplingParams:
    """One set of parameters; None is the defaults. Raises RequestError for anything else."""
    if params is None:
        return SamplingParams()
    if not isinstance(params, SamplingParams):
        raise RequestError(f"params are a SamplingParams, or a list of one for each prompt, not {type(params).__name__}")
    return params


def _listed(prompts: Any, name: str) -> list[Prompt]:
    """A single prompt, text or token ids, counts as a list of one. Raises RequestError for what holds no prompts."""
    if isinstance(prompts, str | _NO_IDS):
        return [prompts]  # pyright: ignore[reportReturnType]
    try:
        listed = list(prompts)
    except TypeError:
        raise _unfit(prompts, name) from None
    try:
        # a row of a tensor converts to an integer too, if it has one element
        iter(listed[0])
    except IndexError:
        return listed
    except TypeError:
        return [listed] if hasattr(listed[0], "__index__") else listed
    return listed


def _ids(prompt: Any, name: str) -> list[int]:
    """Token ids as Python integers. Raises RequestError for anything else; bytes are a text that was not decoded."""
    try:
        if not isinstance(prompt, _NO_IDS):
            return [index(token) for token in prompt]
    except TypeError:
        pass
    raise _unfit(prompt, name)


def _unfit(prompt: Any, name: str) -> RequestError:
    return RequestError(f"a {name} is a text or a list of token ids, not {type(prompt).__name__}")
