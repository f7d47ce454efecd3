"""Documents: texts read from files piece by piece: one per row of a .jsonl file, a document for any other file, .gz of both."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Any, cast

from paceline.spec import SpecError

_PIECE_CHARACTERS = 1 << 16
LARGEST_ROW_MIB = 16
"""Most Mi characters of a row: rows are read whole, and a file that is not JSON lines may have no end of line at all."""


@dataclass(frozen=True)
class Piece:
    """Some text of a document. ends: whether the document ends behind it. read_bytes: how much of its file was read by then."""

    text: str
    ends: bool
    read_bytes: int


def pieces(file: Path) -> Iterator[Piece]:
    """The text of a file. Raises SpecError, in one sentence, where it is missing, damaged, no text or no regular file: a device
    may never end."""
    kind = file.with_suffix("").suffix if file.suffix == ".gz" else file.suffix
    try:
        if file.exists() and not (file.is_file() or file.is_dir()):
            raise SpecError(f"'{file}' is no regular file: a device or a pipe may never end")
        with file.open("rb") as raw:
            stream = cast("gzip.GzipFile", gzip.GzipFile(fileobj=raw) if file.suffix == ".gz" else raw)
            # no universal newlines in rows: a carriage return within one is the row's own
            with TextIOWrapper(stream, "utf-8-sig", newline="\n" if kind == ".jsonl" else None) as text:
                for piece, ends in _rows(file, text) if kind == ".jsonl" else _parts(text):
                    yield Piece(piece, ends, raw.tell())
    except UnicodeDecodeError:
        raise SpecError(f"'{file}' is not UTF-8 text") from None
    except (OSError, EOFError, zlib.error) as error:
        raise SpecError(f"cannot read '{file}': {getattr(error, 'strerror', None) or error}") from None


def _word_end(text: str, start: int, end: int) -> int:
    """Where to cut text[start:end] so that tokens stay whole: behind its last line, before its last word, or at its end."""
    return text.rfind("\n", start, end) + 1 or max(text.rfind(" ", start + 1, end), 0) or end


def _rows(file: Path, lines: TextIOWrapper) -> Iterator[tuple[str, bool]]:
    most = LARGEST_ROW_MIB << 20
    for number, line in enumerate(iter(partial(lines.readline, most + 1), ""), 1):
        if len(line) > most:
            raise SpecError(f"'{file}' line {number} is longer than {LARGEST_ROW_MIB} Mi characters: a row is one document")
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise SpecError(f"'{file}' line {number} is no JSON") from None
        try:
            text = _text_of(row)
            if not isinstance(text, str):
                raise TypeError
        except (KeyError, TypeError):
            raise SpecError(f"'{file}' line {number} {_lacking(row)}") from None
        try:
            text.encode()
        except UnicodeEncodeError:
            # JSON can escape one half of a surrogate pair without the other
            raise SpecError(f"'{file}' line {number} holds half of a character") from None
        yield from cut(text)


def cut(text: str) -> Iterator[tuple[str, bool]]:
    """One document in pieces: a tokenizer takes hundreds of bytes for each character."""
    start = 0
    while len(text) - start > _PIECE_CHARACTERS:
        end = _word_end(text, start, start + _PIECE_CHARACTERS)
        yield text[start:end], False
        start = end
    yield text[start:], True


def _text_of(row: dict[str, Any]) -> Any:
    if "text" in row:
        return row["text"]
    return _said(row["messages"]) if "messages" in row else row["prompt"] + row["completion"]


def _lacking(row: Any) -> str:
    if isinstance(row, dict) and "turns" in row:
        # as in files of benchmarks: questions are not what a model writes
        return "holds questions alone, its 'turns': answers are looked for in 'text', 'prompt' and 'completion', or 'messages'"
    return "has neither 'text', 'prompt' and 'completion', nor 'messages'"


def _said(messages: list[dict[str, Any]]) -> str:
    """The model's messages of a conversation, joined by newlines: what others write is not to be drafted."""
    contents = [message["content"] for message in messages if message["role"] == "assistant" and message["content"] is not None]
    return "\n".join(content if isinstance(content, str) else "".join(_texts(content)) for content in contents)


def _texts(parts: list[dict[str, Any]]) -> Iterator[str]:
    """The texts among the parts of a message."""
    return (part["text"] for part in parts if part["type"] == "text")


def _parts(text: TextIOWrapper) -> Iterator[tuple[str, bool]]:
    """One document, cut behind a line or at least behind a word, so that tokens stay whole."""
    rest = ""
    while more := text.read(_PIECE_CHARACTERS):
        rest += more
        cut = _word_end(rest, 0, len(rest))
        yield rest[:cut], False
        rest = rest[cut:]
    yield rest, True
