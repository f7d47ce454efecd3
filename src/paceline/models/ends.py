"""Ends: the end-of-text (EOS) tokens that a checkpoint's files name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_GENERATION, _SETTINGS, _DESCRIPTION = "generation_config.json", "tokenizer_config.json", "tokenizer.json"


def end_tokens(path: Path, config: Mapping[str, Any], read: Callable[[Path], Mapping[str, Any]]) -> frozenset[int]:
    """The EOS tokens of the first of these that names any: generation_config.json, config.json, its `text_config` (of a
    vision-language model); and in addition the tokenizer's EOS.

    Chat fine-tunes often end a turn with a token that only their tokenizer's files name: without it they would continue past
    the end of their answer. config: config.json. read: reads a JSON file that holds an object; returns an empty one if the
    file does not exist.
    """
    places = (read(path / _GENERATION), config, config.get("text_config"))
    stated = (place.get("eos_token_id") for place in places if isinstance(place, Mapping))
    return _ids(next((ids for ids in stated if ids is not None), None)) | tokenizer_ends(path, read)


def tokenizer_ends(path: Path, read: Callable[[Path], Mapping[str, Any]]) -> frozenset[int]:
    """The tokenizer's EOS alone; empty if it has none. path, read: as in `end_tokens`."""
    settings = read(path / _SETTINGS)
    named = _content(settings.get("eos_token"))
    if named is None:
        return frozenset()
    listed = settings.get("added_tokens_decoder")
    if isinstance(listed, dict) and listed:
        ids = [token for token, entry in listed.items() if _content(entry) == named]
        return _ids([int(token) for token in ids if token.isdecimal() and len(token) < 10])
    added = read(path / _DESCRIPTION).get("added_tokens")
    entries = [entry for entry in added if isinstance(entry, dict)] if isinstance(added, list) else []
    return _ids([entry.get("id") for entry in entries if _content(entry) == named])


def _content(token: Any) -> str | None:
    """A token's text: the token itself if it is a string, else its `content` field."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _ids(value: Any) -> frozenset[int]:
    values = value if isinstance(value, list) else [value]
    return frozenset(item for item in values if type(item) is int and item >= 0)
