"""Prompts: the prompt and the answer length of each request, from tasks, optionally with a trace's lengths."""

from __future__ import annotations

from collections.abc import Iterable, Sequence as Many
from dataclasses import dataclass
from itertools import zip_longest

from paceline.bench.load.arrivals import Traced
from paceline.bench.tasks import Task

ROOM = 0.9
"""Share of the context that a trace's longest request may fill: texts are cut by an average of characters per token."""


@dataclass(frozen=True)
class Asked:
    """One request, before it becomes a JSON body."""

    index: int
    prompt: str
    max_tokens: int


def texts(tasks: Iterable[Task]) -> list[str]:
    """The first turn of every question, the tasks in turns."""
    columns = ([item.texts[0] for item in task.items] for task in tasks)
    return [text for row in zip_longest(*columns) for text in row if text is not None]


def repeated(prompts: Many[str], count: int, max_tokens: int) -> list[Asked]:
    """`count` requests that cycle through the prompts."""
    return [Asked(index, prompts[index % len(prompts)], max_tokens) for index in range(count)]


def scale_to(traced: Many[Traced], context_tokens: int | None) -> float:
    """The factor on lengths that makes the longest request fit; 1 if all fit."""
    longest = max(request.prompt_tokens + request.tokens for request in traced)
    if context_tokens is None or longest <= context_tokens * ROOM:
        return 1.0
    return context_tokens * ROOM / longest


def lengthened(traced: Many[Traced], prompts: Many[str], examples: Many[str], scale: float, characters: float) -> list[Asked]:
    """A request per row of a trace, with its lengths times `scale`.

    A prompt is the end, of the wanted length, of several joined texts. The last text is one of the prompts; the first one varies,
    so that no two requests share a long prefix. characters: per token, on average.
    """
    pool = [*examples, *prompts]
    asked = []
    for index, request in enumerate(traced):
        wanted = max(1, round(request.prompt_tokens * scale * characters))
        last = prompts[index % len(prompts)]
        before: list[str] = []
        held = len(last)
        while held < wanted:
            before.append(pool[(index + len(before)) % len(pool)])
            held += len(before[-1]) + 2
        asked.append(Asked(index, "\n\n".join((*before[::-1], last))[-wanted:], max(1, round(request.tokens * scale))))
    return asked
