"""`paceline chat`: talk with a model."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event
from time import perf_counter
from typing import Annotated

import typer

from paceline.cli.answering import Typed, loaded, streamed
from paceline.cli.grammars import JsonSchema, Lark, Regex, answer_params
from paceline.cli.options import (
    CacheTokens,
    Draft,
    FrequencyPenalty,
    KVCache,
    Lossy,
    MaxTokens,
    MinP,
    Model,
    Policy,
    PresencePenalty,
    RepetitionPenalty,
    Seed,
    Stop,
    Temperature,
    TopK,
    TopP,
    Verify,
    Weights,
)
from paceline.cli.terminal import err, fail, need_output, out

_LONGEST = 1 << 24
"""Most characters read as one line, since a device may have no end."""
_KEPT_SHARE = 0.6
"""Share of the context to which a conversation that is too long is cut. The rest must be prefilled again, so it is cut far enough
to last for some turns."""


def chat(
    model: Model = None,
    draft: Draft = "auto",
    verify: Verify = "match",
    lossy: Lossy = False,
    policy: Policy = None,
    weights: Weights = None,
    kv_cache: KVCache = None,
    cache_tokens: CacheTokens = 65536,
    system: Annotated[str | None, typer.Option("--system", help="System prompt.")] = None,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: RepetitionPenalty = 1.0,
    presence_penalty: PresencePenalty = 0.0,
    frequency_penalty: FrequencyPenalty = 0.0,
    seed: Seed = None,
    stop: Stop = None,
    json_schema: JsonSchema = None,
    regex: Regex = None,
    lark: Lark = None,
) -> None:
    """Chat with a model through its chat template. An empty line or end of input quits; Ctrl-C ends an answer."""
    need_output()
    params = answer_params(locals())
    from paceline.display import summary

    if sys.stdin is None:
        fail("cannot read what is said: standard input is closed")
    llm = loaded(
        model, draft, verify, lossy, policy, weights, kv_cache, cache_tokens, has_grammar=params.grammar is not None, talks=True
    )
    # before the first message is typed
    llm.check_exactness(params)
    llm.engine.check_grammar(params)
    system_messages = [] if system is None else [{"role": "system", "content": system}]
    messages = list(system_messages)
    is_typed = sys.stdin.isatty()
    if is_typed:
        # makes lines of any length editable; not available on every system
        with suppress(ImportError):
            import readline  # noqa: F401
    while True:
        try:
            said = (input("> ") if is_typed else sys.stdin.readline(_LONGEST)).strip()
        except EOFError:
            said = ""
        except UnicodeDecodeError:
            fail("the input is not UTF-8 text")
        if not said:
            return
        began = perf_counter()
        longest = llm.engine.longest
        room = min(max_tokens, longest // 2)
        kept = [*messages, {"role": "user", "content": said}]
        ids = llm.tokenizer.chat(kept)
        most = longest - room
        while len(kept) > len(system_messages) + 1 and len(ids) > most:
            # drop the oldest exchanges to make room for the newest message and its answer
            del kept[len(system_messages) : len(system_messages) + 2]
            ids, most = llm.tokenizer.chat(kept), min(most, int(_KEPT_SHARE * longest))
        if len(ids) >= longest:
            err.print(f"that is {len(ids)} tokens, of {longest} that fit with an answer: say it in fewer", highlight=False)
            continue
        with _interrupted(is_typed) as asked:
            last = streamed(llm.stream(ids, params), Typed().show, asked.is_set)
        completion = llm.completed(last.sequence, last.text)
        out.file.write("\n")
        line = summary(completion, llm.draft_name, perf_counter() - began)
        err.print(line, style="dim", highlight=False, soft_wrap=True)
        # forget a message that was interrupted before any answer
        if completion.text or not asked.is_set():
            messages = [*kept, {"role": "assistant", "content": completion.text}]


@contextmanager
def _interrupted(is_typed: bool) -> Iterator[Event]:
    """An event set by Ctrl-C, so that an answer ends after a step; a second Ctrl-C does not wait. If input is not typed, Ctrl-C
    ends the program at once."""
    asked = Event()

    def note(*_: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = signal.signal(signal.SIGINT, note) if is_typed else None
    try:
        yield asked
    finally:
        if is_typed:
            signal.signal(signal.SIGINT, before)
