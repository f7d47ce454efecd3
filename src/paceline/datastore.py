"""Datastore: the tokens of many documents in a file that is mapped into memory, and the order of their suffixes in another.

A folder of three files: `tokens.i32`, all documents one after another with a border behind each; `suffixes.i32`, where every
suffix begins, sorted; `datastore.json`, their header, written last. Numbers are little-endian int32: eight bytes per token on
disk. The first two are mapped and never read whole, so building and using a datastore takes little memory of its own.

Source: He et al., REST (arXiv:2311.08252), section 3; the layout is our own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence as Many
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from paceline.kernels.compiled import ready
from paceline.kernels.suffixes import array
from paceline.lookups.documents import pieces
from paceline.spec import SpecError

HEADER, TOKENS, SUFFIXES = "datastore.json", "tokens.i32", "suffixes.i32"
_WORD = np.dtype("<i4")
_MOST_TOKENS = 2**31 - 2
_PIECE_TOKENS = 1 << 18
_LOOKED_AT = 1024
"""Suffixes whose order is checked when a datastore is opened."""
_ZEROS_BYTES = 1 << 20
"""Written at once where room for a file cannot be reserved."""

Report = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


class Header(BaseModel):
    """tokenizer: the fingerprint of the vocabulary. tokens: borders included. suffixes: tokens that are not borders."""

    model_config = ConfigDict(extra="forbid")

    format: Literal["paceline datastore"] = "paceline datastore"
    version: Literal[1] = 1
    vocab_size: int = Field(ge=1)
    tokenizer: str
    documents: int = Field(ge=1)
    tokens: int = Field(ge=2, le=_MOST_TOKENS)
    suffixes: int = Field(ge=1)


@dataclass(frozen=True)
class Datastore:
    """tokens: int32 [tokens], array.BORDER behind every document. suffixes: int32 [suffixes], in order. Both are mapped."""

    header: Header
    tokens: np.ndarray
    suffixes: np.ndarray

    @classmethod
    def open(cls, folder: Path) -> Datastore:
        """Map a datastore. Raises SpecError, in one sentence, where there is none or it is damaged."""
        header = _header(folder)
        tokens, suffixes = _mapped(folder / TOKENS, header.tokens), _mapped(folder / SUFFIXES, header.suffixes)
        looked_at = np.unique(np.linspace(0, header.suffixes - 1, _LOOKED_AT).astype(np.int64))
        if tokens[-1] != array.BORDER or not array.IS_SORTED(tokens, suffixes, looked_at):
            raise SpecError(f"the datastore in '{folder}' is damaged: its suffixes are not in order; build it anew")
        return cls(header, tokens, suffixes)


def _header(folder: Path) -> Header:
    file = folder / HEADER
    try:
        text = file.read_bytes()
    # ValueError: a path that no file can have, such as one with a null byte
    except (FileNotFoundError, NotADirectoryError, ValueError):
        command = f"paceline datastore build FILES --out {folder} --model TARGET"
        reason = f"there is no datastore in '{folder}': make one with '{command}', TARGET being the model that it is for"
        raise SpecError(reason) from None
    except OSError as error:
        raise SpecError(f"cannot read '{file}': {error.strerror}") from None
    try:
        return Header.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = f"'{first['loc'][0]}' in it is not what it should be" if first["loc"] else "it is not JSON"
        raise SpecError(f"'{file}' is no header of a datastore that this version reads: {place}") from None


def _mapped(file: Path, count: int) -> np.ndarray:
    try:
        size = file.stat().st_size
        if size != count * _WORD.itemsize:
            raise SpecError(
                f"'{file}' is damaged: it has {size} bytes, and its header says {count * _WORD.itemsize}; build it anew"
            )
        return np.asarray(np.memmap(file, _WORD, "r"))
    except OSError as error:
        raise SpecError(f"cannot read '{file}': {error.strerror}") from None


def build(
    files: Many[Path], folder: Path, encode: Callable[[str], list[int]], vocab_size: int, tokenizer: str, report: Report
) -> Header:
    """Write a datastore of text files (`lookups/documents`) to a folder. An existing one is replaced once the new one is whole.

    encode: text to token ids, nothing added. tokenizer: the fingerprint of its vocabulary. Files are processed in pieces; beside
    these, memory holds only as much of the mapped files as there is room for. Raises SpecError where a file cannot be read or
    written; nothing is left behind then.
    """
    parts = {name: folder / f"{name}.part" for name in (TOKENS, SUFFIXES)}
    try:
        had = folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with parts[TOKENS].open("wb") as out:
                corpus = _tokenised(files, out, encode, report)
            _sorted(parts[TOKENS], parts[SUFFIXES], corpus, report)
            (folder / HEADER).unlink(missing_ok=True)
            for name, part in parts.items():
                os.replace(part, folder / name)
        finally:
            for part in parts.values():
                part.unlink(missing_ok=True)
            if not had:
                # fails where it holds a datastore
                with suppress(OSError):
                    folder.rmdir()
        header = Header(
            vocab_size=vocab_size,
            tokenizer=tokenizer,
            documents=corpus.documents,
            tokens=corpus.tokens,
            suffixes=int(corpus.starts[-1]),
        )
        (folder / HEADER).write_text(header.model_dump_json(indent=2) + "\n")
    except FileExistsError:
        raise SpecError(f"cannot write a datastore to '{folder}': it is no folder") from None
    except OSError as error:
        raise SpecError(f"cannot write a datastore to '{folder}': {error.strerror or error}") from None
    return header


def size_bytes(header: Header) -> int:
    """Size of the two mapped files."""
    return _WORD.itemsize * (header.tokens + header.suffixes)


class _Corpus:
    """What was tokenised. starts: int64 [V + 1], how many suffixes begin with a smaller token, once counts are summed up."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out, self._waiting = out, []
        self.tokens = self.documents = 0
        self.starts = np.zeros(1, np.int64)

    def add(self, ids: list[int]) -> None:
        self._waiting += ids
        self.tokens += len(ids)
        if self.tokens > _MOST_TOKENS:
            raise SpecError(f"a datastore holds at most {_MOST_TOKENS} tokens: divide the files")
        if len(self._waiting) >= _PIECE_TOKENS:
            self.flush()

    def flush(self) -> None:
        piece = np.array(self._waiting, _WORD)
        self._waiting.clear()
        lacking = int(piece.max(initial=-1)) + 2 - len(self.starts)
        if lacking > 0:
            self.starts = np.pad(self.starts, (0, lacking))
        array.COUNT_TOKENS(piece, self.starts)
        # `tofile` does not say why it failed
        self._out.write(piece.tobytes())


def _tokenised(files: Many[Path], out: IO[bytes], encode: Callable[[str], list[int]], report: Report) -> _Corpus:
    corpus = _Corpus(out)
    total, before = sum(file.stat().st_size for file in files if os.path.isfile(file)), 0
    for file in files:
        since = corpus.tokens
        for piece in pieces(file):
            corpus.add(encode(piece.text))
            if piece.ends and corpus.tokens > since:
                corpus.add([array.BORDER])
                corpus.documents += 1
                since = corpus.tokens
            report("tokenising", before + piece.read_bytes, total)
        before += file.stat().st_size
    if not corpus.documents:
        raise SpecError("there is no text in these files")
    corpus.flush()
    corpus.starts = np.cumsum(corpus.starts)
    return corpus


def _reserve(file: Path, size: int) -> None:
    """Make a file of `size` zero bytes. Through a memory map, a full disk would kill the process, not raise OSError."""
    with file.open("wb") as out:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(out.fileno(), 0, size)
            return
        for done in range(0, size, _ZEROS_BYTES):
            out.write(bytes(min(_ZEROS_BYTES, size - done)))


def _sorted(source: Path, target: Path, corpus: _Corpus, report: Report) -> None:
    """Bucket all suffixes by their first token, then sort each bucket in place."""
    tokens = np.asarray(np.memmap(source, _WORD, "r+"))
    suffixes = int(corpus.starts[-1])
    _reserve(target, suffixes * _WORD.itemsize)
    order = np.asarray(np.memmap(target, _WORD, "r+", shape=(suffixes,)))
    ready([array.BUCKET_SUFFIXES, array.SORT_RANGE])
    places = corpus.starts.copy()
    for first in range(0, len(tokens), _PIECE_TOKENS):
        array.BUCKET_SUFFIXES(tokens[first : first + _PIECE_TOKENS], first, places, order)
    call = array.SORT_RANGE.call(tokens=tokens, order=order, waiting=np.empty((array.WAITING, 3), np.int64))
    reported = 0
    for low, high in zip(corpus.starts, corpus.starts[1:], strict=False):
        call.record.low, call.record.high = low, high
        call()
        if high - reported >= _PIECE_TOKENS or high == len(order):
            reported = int(high)
            report("sorting", reported, len(order))
