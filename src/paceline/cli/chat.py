"""`paceline chat`: talk with a model."""

from __future__ import annotations

import sys
from time import perf_counter

from paceline.cli.answering import Typed, loaded, streamed
from paceline.cli.options import (
    Draft,
    KVCache,
    Lossy,
    MaxTokens,
    Model,
    Policy,
    Seed,
    Temperature,
    TopP,
    Verify,
    Weights,
    sampling_params,
)
from paceline.cli.terminal import err, fail, out

_LONGEST = 1 << 24
"""Characters of a line that are read at once: what has no end, such as a device, is not read on and on."""
_KEPT_SHARE = 0.6
"""Of the context, what a conversation that has become too long is cut down to: what is left of it is read anew, and goes on for
some turns before it is cut again."""


def chat(
    model: Model = None,
    draft: Draft = "auto",
    verify: Verify = "match",
    lossy: Lossy = False,
    policy: Policy = None,
    weights: Weights = None,
    kv_cache: KVCache = None,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = None,
) -> None:
    """Talk with a model through its own chat template; an empty line or end of input ends it."""
    from paceline.display import summary

    if sys.stdin is None:
        fail("cannot read what is said: standard input is closed")
    params = sampling_params(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed)
    llm = loaded(model, draft, verify, lossy, policy, weights, kv_cache, talks=True)
    messages: list[dict[str, str]] = []
    while True:
        try:
            said = (out.input("[bold]> [/bold]") if sys.stdin.isatty() else sys.stdin.readline(_LONGEST)).strip()
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
        while len(kept) > 1 and len(ids) > most:
            # the oldest exchanges make room for the newest and its answer
            del kept[:2]
            ids, most = llm.tokenizer.chat(kept), min(most, int(_KEPT_SHARE * longest))
        if len(ids) >= longest:
            err.print(f"that is {len(ids)} tokens, of {longest} that fit with an answer: say it in fewer", highlight=False)
            continue
        messages = kept
        last = streamed(llm.stream(ids, params), Typed().show)
        completion = llm.completed(last.sequence, last.text)
        messages.append({"role": "assistant", "content": completion.text})
        out.file.write("\n")
        line = summary(completion, llm.draft_name, perf_counter() - began)
        err.print(line, style="dim", highlight=False, soft_wrap=True)
