"""Parses chunks of streamed completions and chat answers, tolerating missing fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.bench.load.settings import MOST_TOKENS


class BadChunk(Exception):
    """The server streamed an error, or something that is not a chunk; the message is the server's, or says what it is."""


@dataclass(frozen=True)
class Chunk:
    """text: its part of the answer. carries: it has tokens. finished: it has the reason why the answer ends."""

    text: str = ""
    carries: bool = False
    finished: bool = False
    prompt_tokens: int | None = None
    tokens: int | None = None
    speculation: Mapping[str, Any] = field(default_factory=dict)


def parsed(data: str) -> Chunk:
    """The chunk in the data of an event. Raises BadChunk."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadChunk("a chunk that is not JSON") from error
    if not isinstance(content, dict):
        raise BadChunk("a chunk that is no object")
    if content.get("error"):
        raise BadChunk(said(content))
    usage, speculation = _object(content, "usage"), _object(_object(content, "metrics"), "speculative_decoding")
    prompt_tokens, tokens = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    choices = content.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        return Chunk("", False, False, prompt_tokens, tokens, speculation)
    delta = _object(choice, "delta")
    parts = (choice.get("text"), delta.get("reasoning_content") or delta.get("reasoning"), delta.get("content"))
    text = "".join(part for part in parts if isinstance(part, str))
    carries = bool(text or delta.get("tool_calls"))
    return Chunk(text, carries, choice.get("finish_reason") is not None, prompt_tokens, tokens, speculation)


def said(content: Any) -> str:
    """The message in an error's body, in one line; "" if there is none."""
    error = content.get("error", content) if isinstance(content, dict) else None
    message = error.get("message", error.get("detail")) if isinstance(error, dict) else error
    return " ".join(message.split())[:300] if isinstance(message, str) else ""


def _object(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = content.get(name)
    return value if isinstance(value, dict) else {}


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    """The server's count; None if it is not plausible, since a latency is stored for every token."""
    value = usage.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS else None
