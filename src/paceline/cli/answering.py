"""Loads a model for a command, and shows its answers as they are generated."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from typing import TYPE_CHECKING

from paceline.cli.terminal import err, out
from paceline.errors import PacelineError
from paceline.interrupts import raise_again

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from paceline.engine.engine import Progress
    from paceline.engine.llm import LLM


def loaded(
    model: str | None,
    draft: str,
    verify: str,
    lossy: bool,
    policy: str | None,
    weights: str | None,
    kv_cache: str | None,
    cache_tokens: int = 65536,
    *,
    has_grammar: bool = False,
    quiet: bool = False,
    talks: bool = False,
) -> LLM:
    """Load a target with its drafter, with a spinner on a terminal. has_grammar: answers follow a grammar, so what it forces is
    drafted too, unless nothing is. talks: the model must have a chat template."""
    from paceline.compose import IfItFits
    from paceline.engine.llm import LLM

    extra = [IfItFits("grammar")] if has_grammar and draft != "none" else []
    with nullcontext() if quiet or not err.is_terminal else err.status("loading the model"):
        llm = LLM(
            model,
            draft,
            verify=verify,
            lossy=lossy,
            policy=policy,
            weights=weights,
            kv_cache=kv_cache,
            extra_drafters=extra,
            cache_tokens=cache_tokens,
        )
        if talks:
            # imports the template engine, which takes a while, before anyone waits for an answer
            llm.tokenizer.check_chat_template()
    raise_again()
    # objects of torch and transformers live until the end: exempt them from garbage collection
    gc.freeze()
    return llm


class Typed:
    """Writes an answer's text as it is generated."""

    def __init__(self) -> None:
        self._shown = 0

    def show(self, progress: Progress) -> None:
        out.file.write(progress.text[self._shown :])
        out.file.flush()
        self._shown = len(progress.text)


def streamed(
    steps: Iterator[Progress], show: Callable[[Progress], None] | None, enough: Callable[[], bool] | None = None
) -> Progress:
    """Run an answer to its end, or until `enough` returns True, showing every step; returns the last one."""
    last = None
    try:
        for last in steps:
            if show:
                show(last)
            if enough and enough():
                break
    except (PacelineError, KeyboardInterrupt):
        if last is not None and show:
            # so that the error message, or the shell's prompt, begins on a new line
            out.file.write("\n")
            out.file.flush()
        raise
    assert last is not None
    return last
