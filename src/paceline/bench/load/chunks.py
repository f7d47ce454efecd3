"""Chunks of a streamed answer, of completions and of chat, whatever a server leaves out of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.bench.load.settings import MOST_TOKENS


class BadChunk(Exception):
    """The server streamed an error, or what is no chunk; the message is the server's."""


@dataclass(frozen=True)
class Chunk:
    """text: what it adds to the answer. carries: it brings tokens. finished: it says why the answer ends."""

    text: str = ""
    carries: bool = False
    finished: bool = False
    prompt_tokens: int | None = None
    tokens: int | None = None
    speculation: Mapping[str, Any] = field(default_factory=dict)


def parsed(data: str) -> Chunk:
    """One event's data. Raises BadChunk."""
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
    """What an error's body says, in one line; "" if nothing can be read from it."""
    error = content.get("error", content) if isinstance(content, dict) else None
    message = error.get("message", error.get("detail")) if isinstance(error, dict) else error
    return " ".join(message.split())[:300] if isinstance(message, str) else ""


def _object(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = content.get(name)
    return value if isinstance(value, dict) else {}


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    """As the server says it; None of what no answer or prompt can have, since a latency is noted for every token."""
    value = usage.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS else None
