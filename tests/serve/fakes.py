"""A service without an engine: a token is a byte, answers are scripted, and every call is recorded.

From a test: `from serve.fakes import FakeService`.
"""

from __future__ import annotations

import asyncio
import codecs
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence as Many
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.logprobs import TokenLogprobs
from paceline.params import Grammar
from paceline.serve.asking import Ask, Delta, Drafted, Ending, Service, StepTrace
from paceline.serve.errors import APIError, invalid
from paceline.serve.meter import Choice

BOS, EOS = 256, 257
VOCAB = 258


def token_logprobs(token: int, count: int) -> TokenLogprobs:
    """Binary fractions, so that sums and JSON are exact; the token itself is the likeliest."""
    own = -(1 + token % 8) / 16
    return TokenLogprobs(token, own, 1, tuple(((token + at) % VOCAB, own - at) for at in range(count)))


@dataclass
class FakeService(Service):
    """answer: the text of every choice, or a function from Ask to it. step: tokens per delta. sources: drafters of the 2nd, 3rd,
    ... token of a step. script: if given, the deltas of every choice, instead of the above. full: raised by `check_room`.
    refuses: raised by `submit`. breaks: (number of deltas of all choices, the error raised after them). hold: awaited before
    every delta but the first.

    An answer ends with the EOS token, at a stop string or after max_tokens, as a real one would.
    """

    answer: str | Callable[[Ask], str] = "hello world"
    step: int = 3
    sources: tuple[str, ...] = ("ngram",)
    script: Callable[[Ask], Many[Delta]] | None = None
    full: APIError | None = None
    refuses: APIError | None = None
    breaks: tuple[int, Exception] | None = None
    hold: Callable[[], Any] | None = None
    refused_grammar: str | None = None
    cached_tokens: int = 0

    model: str = "fake-model"
    created: int = 1_700_000_000
    context_length: int = 512
    vocab_size: int = VOCAB
    defaults: Mapping[str, Any] = field(default_factory=dict)
    has_chat_template: bool = True
    drafters: tuple[str, ...] = ("model", "ngram", "reference")
    default_drafters: tuple[str, ...] = ("ngram", "model")
    drafter_notes: Mapping[str, tuple[str, str]] = field(
        default_factory=lambda: {
            "model": ("A smaller model drafts.", "Leviathan et al. 2023"),
            "ngram": ("What followed before follows again.", "Saxena 2023"),
            "reference": ("The answer looks like this text.", "Yang et al. 2023"),
        }
    )
    target: str = "fake-target"
    policy: str = "adaptive"
    verifier: str = "match"
    special_tokens: Mapping[str, str] = field(default_factory=lambda: {"bos_token": "<s>", "eos_token": "</s>"})
    chat_template: str | None = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "

    asked: list[list[Ask]] = field(default_factory=list)
    """Every submission."""
    chats: list[tuple[list[dict[str, Any]], list[dict[str, Any]], bool]] = field(default_factory=list)
    """Messages, tools and answer_begun of every `chat`."""
    encoded: list[str] = field(default_factory=list)
    grammars: list[Grammar] = field(default_factory=list)
    rooms: list[int] = field(default_factory=list)
    """Numbers of choices passed to `check_room`."""
    yielded: int = 0
    left_early: int = 0
    """Submissions closed before every choice had ended."""
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a submission was closed, ended or not."""

    async def encode(self, text: str, add_special: bool = True) -> list[int]:
        self.encoded.append(text)
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise invalid("the text is not valid Unicode") from error
        return [BOS] * add_special + list(data)

    async def chat(
        self,
        messages: Many[Mapping[str, Any]],
        tools: Many[Mapping[str, Any]] = (),
        *,
        answer_begun: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        if not self.has_chat_template:
            raise invalid("the model has no chat template", "messages")
        self.chats.append(([dict(one) for one in messages], [dict(tool) for tool in tools], answer_begun))
        lines = [json.dumps(variables)] if variables else []
        lines += [json.dumps(tool) for tool in tools] + [f"{one['role']}: {one.get('content') or ''}" for one in messages]
        return await self.encode("\n".join(lines if answer_begun else [*lines, "assistant: "]))

    def decode(self, ids: Many[int], skip_special_tokens: bool = True) -> str:
        return b"".join(b"" if token >= BOS and skip_special_tokens else self.piece(token) for token in ids).decode(
            errors="replace"
        )

    def piece(self, token: int) -> bytes:
        return {BOS: b"<s>", EOS: b"</s>"}.get(token) or bytes([token])

    async def check_grammar(self, grammar: Grammar) -> None:
        self.grammars.append(grammar)
        if self.refused_grammar is not None:
            raise invalid(self.refused_grammar)

    def check_room(self, choices: int) -> None:
        self.rooms.append(choices)
        if self.full:
            raise self.full

    async def submit(self, asks: Many[Ask]) -> AsyncGenerator[tuple[int, Delta], None]:
        self.asked.append(list(asks))
        ended: set[int] = set()
        try:
            if self.refuses:
                raise self.refuses
            scripts = [list(self.script(ask) if self.script else self.deltas(ask)) for ask in asks]
            for at in range(max(map(len, scripts), default=0)):
                for choice, script in enumerate(scripts):
                    if at >= len(script):
                        continue
                    if self.breaks and self.yielded >= self.breaks[0]:
                        raise self.breaks[1]
                    if self.hold and self.yielded:
                        await self.hold()
                    self.yielded += 1
                    ended |= {choice} if script[at].ending else set()
                    yield choice, script[at]
        finally:
            self.left_early += len(ended) < len(asks)
            self.closed.set()

    async def counted(self, asks: Many[Ask], choices: Many[Choice]) -> AsyncGenerator[tuple[int, Delta], None]:
        """As `submit`, and passes each delta to the meter's choices."""
        async with aclosing(self.submit(asks)) as deltas:
            async for choice, delta in deltas:
                choices[choice].brought(delta)
                yield choice, delta

    def deltas(self, ask: Ask) -> list[Delta]:
        params = ask.params
        text = self.answer if isinstance(self.answer, str) else self.answer(ask)
        tokens, reason, stop = [*text.encode(), EOS], "stop", None
        shown = text
        for one in params.stop:
            if one in shown:
                shown, stop = shown[: shown.index(one) + len(one) * params.include_stop_str_in_output], one
                tokens = list(text[: text.index(one) + len(one)].encode())
        if len(tokens) > params.max_tokens:
            tokens, reason, stop = tokens[: params.max_tokens], "length", None
        if reason == "length":
            shown = bytes(token for token in tokens if token < BOS).decode(errors="replace")
        deltas, decoder = [], codecs.getincrementaldecoder("utf-8")(errors="replace")
        left = shown
        for low in range(0, len(tokens), self.step):
            ids = tuple(tokens[low : low + self.step])
            last = low + self.step >= len(tokens)
            fresh = decoder.decode(bytes(token for token in ids if token < BOS), final=last)
            fresh, left = (left, "") if last else (left[: len(fresh)], left[len(fresh) :])
            deltas.append(self._delta(ask, ids, fresh))
        if params.prompt_logprobs is not None:
            told = [None, *(token_logprobs(token, params.prompt_logprobs) for token in ask.prompt[1:])]
            deltas.insert(0, Delta(prompt_logprobs=tuple(told)))
        deltas[-1] = replace(deltas[-1], ending=self.ending(ask, len(tokens), len(deltas), reason, stop))
        return deltas

    def _delta(self, ask: Ask, ids: tuple[int, ...], text: str) -> Delta:
        sources = ("", *(self.sources[at % len(self.sources)] for at in range(len(ids) - 1)))[::-1]
        count = ask.params.logprobs
        steps = ()
        if ask.trace:
            rejected = Drafted((120, 121), (-len(ids), 0), (self.sources[0],) * 2)
            steps = (StepTrace(len(ids), len(ids) + 1, len(ids) - 1, rejected, 0.001, 0.002, 0.0005, len(ids) + 2),)
        return Delta(
            text=text,
            tokens=ids,
            sources=sources,
            logprobs=None if count is None else tuple(token_logprobs(token, count) for token in ids),
            steps=steps,
        )

    def ending(self, ask: Ask, tokens: int, steps: int, reason: str, stop: str | int | None) -> Ending:
        accepted = tokens - steps if ask.drafters != () else 0
        assert ask.params.seed is not None, "routes give every choice a seed"
        return Ending(
            reason,
            ask.params.seed,
            stop,
            cached_tokens=self.cached_tokens,
            accepted_reference_tokens=min(accepted, len(ask.reference)),
            rejected_reference_tokens=max(len(ask.reference) - accepted, 0),
            speculation={
                "mean_acceptance_length": 1 + accepted / steps,
                "draft_acceptance_rate": 0.5,
                "acceptance_histogram": [0, 0, steps],
                "num_spec_steps": steps,
                "num_accepted_draft_tokens": accepted,
                "num_draft_tokens": 2 * accepted,
                "num_spec_tokens": 2,
                "tau": tokens / steps,
                "acceptance_by_depth": [0.75, 0.5],
                "drafted_by_depth": [4, 2],
                "drafter": "+".join(self.default_drafters if ask.drafters is None else ask.drafters) or "none",
                "verifier": self.verifier,
                "policy": self.policy,
                "lossless": True,
                "keeps": "text",
                "target": self.target,
            },
        )
