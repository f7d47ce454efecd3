"""Ends: the tokens that end a text, as the files of a checkpoint name them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_GENERATION, _SETTINGS, _DESCRIPTION = "generation_config.json", "tokenizer_config.json", "tokenizer.json"


def end_tokens(path: Path, config: Mapping[str, Any], read: Callable[[Path], Mapping[str, Any]]) -> frozenset[int]:
    """What generation_config.json names, or config.json where it names none, or what that says of the text of a model that also
    sees where it says nothing of the whole; and the EOS of the tokenizer.

    Models are often trained further on conversations that end in a token of their own, which only their tokenizer was told of:
    without it they would go on behind their answer. config: config.json. read: reads a JSON file that holds an object, empty
    where there is none.
    """
    places = (read(path / _GENERATION), config, config.get("text_config"))
    stated = (place.get("eos_token_id") for place in places if isinstance(place, Mapping))
    return _ids(next((ids for ids in stated if ids is not None), None)) | tokenizer_ends(path, read)


def tokenizer_ends(path: Path, read: Callable[[Path], Mapping[str, Any]]) -> frozenset[int]:
    """The EOS of the tokenizer alone; empty where it has none. path, read: as of `end_tokens`."""
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
    """The text of a token, which may stand in an object that says more of it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _ids(value: Any) -> frozenset[int]:
    values = value if isinstance(value, list) else [value]
    return frozenset(item for item in values if type(item) is int and item >= 0)
