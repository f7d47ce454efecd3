"""Lengths of texts, in characters and so the same in every script, before anything is rendered or tokenized."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence as Many
from typing import Any

from paceline.serve.errors import TooLong
from paceline.serve.settings import Settings


def characters(
    messages: Many[Mapping[str, Any]], tools: Many[Mapping[str, Any]] = (), variables: Mapping[str, Any] | None = None
) -> int:
    """Of a conversation as templates read it: texts as they are; calls, tools and variables as JSON."""
    # a role is one of a few words, and nothing that a client writes
    parts = [value for message in messages for name, value in message.items() if name != "role"]
    parts += [*tools, *(variables or {}).values()]
    return sum(len(part) if isinstance(part, str) else len(json.dumps(part, ensure_ascii=False)) for part in parts)


def check_length(characters: int, settings: Settings, param: str) -> None:
    """Before anything is tokenized. Raises APIError (400)."""
    if characters > (most := settings.max_prompt_chars):
        # the words that clients of OpenAI's know it by
        limit = f"'{param}': string too long. Expected a string with maximum length {most}"
        raise TooLong(f"{limit}, but got one with {characters} characters", param, characters, most, "characters")
