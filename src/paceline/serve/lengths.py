"""Limits on the length of texts, checked before rendering and tokenizing; in characters, so equal for every script."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence as Many
from typing import Any

from paceline.serve.errors import TooLong
from paceline.serve.settings import Settings


def characters(
    messages: Many[Mapping[str, Any]], tools: Many[Mapping[str, Any]] = (), variables: Mapping[str, Any] | None = None
) -> int:
    """Characters of a conversation as templates read it: texts as they are; calls, tools and variables as JSON."""
    # a role is one of a few fixed words, not text of the client
    parts = [value for message in messages for name, value in message.items() if name != "role"]
    parts += [*tools, *(variables or {}).values()]
    return sum(len(part) if isinstance(part, str) else len(json.dumps(part, ensure_ascii=False)) for part in parts)


def check_length(characters: int, settings: Settings, param: str) -> None:
    """Raises APIError (400) if a text is too long."""
    if characters > (most := settings.max_prompt_chars):
        # OpenAI's wording, by which clients recognize the error
        limit = f"'{param}': string too long. Expected a string with maximum length {most}"
        raise TooLong(f"{limit}, but got one with {characters} characters", param, characters, most, "characters")
