"""Prompts: what each request says and how long an answer it asks for, from tasks, or in a trace's lengths."""

from __future__ import annotations

from collections.abc import Iterable, Sequence as Many
from dataclasses import dataclass
from itertools import zip_longest

from paceline.bench.load.arrivals import Traced
from paceline.bench.tasks import Task

ROOM = 0.9
"""The share of a context that a trace's longest request may fill: texts are cut by an average of characters per token."""


@dataclass(frozen=True)
class Asked:
    """One request, before it is put into a server's words."""

    index: int
    prompt: str
    max_tokens: int


def texts(tasks: Iterable[Task]) -> list[str]:
    """The first turn of every question, the tasks in turns."""
    columns = ([item.texts[0] for item in task.items] for task in tasks)
    return [text for row in zip_longest(*columns) for text in row if text is not None]


def repeated(prompts: Many[str], count: int, max_tokens: int) -> list[Asked]:
    """So many requests, the prompts over and over."""
    return [Asked(index, prompts[index % len(prompts)], max_tokens) for index in range(count)]


def scale_to(traced: Many[Traced], context_tokens: int | None) -> float:
    """What lengths have to be multiplied with for the longest request to fit; 1 where all do."""
    longest = max(request.prompt_tokens + request.tokens for request in traced)
    if context_tokens is None or longest <= context_tokens * ROOM:
        return 1.0
    return context_tokens * ROOM / longest


def lengthened(traced: Many[Traced], prompts: Many[str], examples: Many[str], scale: float, characters: float) -> list[Asked]:
    """A request per row of a trace, in its lengths times `scale`.

    A text is the last so many characters of a row of texts that ends with one of the prompts and begins elsewhere each time, so
    that no two requests share a prefix for long. characters: per token, on average.
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
