"""Pieces: the bytes that each token of a tokenizer stands for, and tokens for any bytes, independent of surrounding text.

Byte-level vocabularies write a byte as a printable character, and added tokens literally; SentencePiece vocabularies write a
space as U+2581 and single bytes as <0x0A>. Texts are compared as bytes, since a character may be split between tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence as Many
from functools import cached_property

from paceline.models.base import ModelError
from paceline.models.tokenizer import Tokenizer

_SPACE = "\u2581"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_ANCHOR = "\n"
"""Put before a text that must not be tokenized as the beginning of a text."""
_SHORT_BYTES = 64
"""A text that its tokenizer cannot spell exactly is divided further only if it is longer than this."""
_SEAMS = (re.compile(rb"(?<=\n)(?=\S)|(?<=\S)(?= )"), re.compile(rb"(?=[^\x80-\xbf])"))
"""Where a text is divided: at the start of a line or a word, else at the start of any character."""


def _printable() -> dict[str, int]:
    """Character -> byte, as byte-level vocabularies write them: visible bytes as themselves, the others from U+0100 on."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + place): byte for place, byte in enumerate(hidden)}


class Pieces:
    """vocab_size: tokens of the model, padding included.

    of: per token id its bytes, empty for special tokens and padding. special, names: special tokens, name -> id and id -> name.
    roles: "bos", "eos" and "unk" -> id. opening: tokens that the tokenizer puts before a text.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer, library = tokenizer, tokenizer.library
        every: dict[str, int] = library.get_vocab()
        # a tokenizer may have tokens that its model lacks
        vocabulary = {name: token for name, token in every.items() if token < vocab_size}
        added = {token.content: token.special for token in library.added_tokens_decoder.values()}
        special = {name for name, own in added.items() if own} | set(library.all_special_tokens)
        self.special = {name: token for name, token in vocabulary.items() if name in special}
        self.names = {token: name for name, token in self.special.items()}
        roles = {role: getattr(library, f"{role}_token_id", None) for role in ("bos", "eos", "unk")}
        self.roles = {role: token for role, token in roles.items() if token in self.names}
        by_level = "ByteLevel" in repr(getattr(getattr(library, "backend_tokenizer", None), "decoder", None))
        written = _bytes_of_levels if by_level else _bytes_of_pieces
        self.of = [b""] * max(vocab_size, *(token + 1 for token in every.values()))
        self._bytewise: set[int] = set()
        for name, token in vocabulary.items():
            if name not in self.special:
                # SentencePiece decoders read added tokens like all others, such as the runs of spaces in Gemma's
                self.of[token] = name.encode() if by_level and name in added else written(name)
                if _BYTE.fullmatch(name):
                    self._bytewise.add(token)
        with_opening, without = tokenizer.encode("x"), tokenizer.encode("x", add_special=False)
        # an EOS may be appended too
        starts = range(len(with_opening) - len(without) + 1)
        place = next((at for at in starts if with_opening[at : at + len(without)] == without), len(with_opening) - len(without))
        opening = with_opening[: max(place, 0)]
        self.opening = tuple(token for token in opening if token < vocab_size)

    @cached_property
    def tokens(self) -> Mapping[bytes, int]:
        """Bytes -> token; a piece takes precedence over a single-byte token <0x..>, a lower id over a higher one."""
        found: dict[bytes, int] = {}
        for token in sorted(range(len(self.of)), key=lambda token: token in self._bytewise):
            if self.of[token]:
                found.setdefault(self.of[token], token)
        return found

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.tokens))

    def bytes_of(self, tokens: Many[int]) -> bytes:
        return b"".join(self.of[token] for token in tokens)

    def spelled(self, data: bytes, opens: bool = False) -> list[int]:
        """Tokens that stand for exactly these bytes, if possible as the tokenizer would write them in the middle of a text.

        opens: they begin a text, where a tokenizer may insert a space. Bytes that have no token become the unknown token, or are
        left out if there is none.
        """
        tokens = self._written(data, opens)
        if tokens is not None:
            return tokens
        # a single character that the tokenizer normalises must not make it fail for a whole text
        middle = _middle(data) if len(data) > _SHORT_BYTES else 0
        return self.spelled(data[:middle], opens) + self.spelled(data[middle:]) if middle else self._pieced(data)

    def _written(self, data: bytes, opens: bool) -> list[int] | None:
        """The tokens that the tokenizer gives for these bytes; None if their bytes would differ."""
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return None
        if opens:
            tokens = self._encoded(text)
            if self._plain(tokens) and self.bytes_of(tokens).removeprefix(b" ") == data.removeprefix(b" "):
                return tokens
        # if the tokenizer adds a leading space, leave out the one that is there
        candidates = [(text, 0), (text[1:], 0)] if text[:1] == " " else [(text, 0)]
        for given, surplus in (*candidates, (_ANCHOR + text, 1), (_ANCHOR + text, 2)):
            tokens = self._encoded(given)
            start = self.boundary(tokens, surplus)
            if start is not None and self._plain(tokens) and self.bytes_of(tokens[start:]) == data:
                return tokens[start:]
        return None

    def _encoded(self, text: str) -> list[int]:
        """The tokens of a text; none where a tokenizer without an unknown token lacks a character."""
        try:
            return self._tokenizer.encode(text, add_special=False)
        except ModelError:
            return []

    def _plain(self, tokens: Many[int]) -> bool:
        return all(self.of[token] for token in tokens)

    def boundary(self, tokens: Many[int], size: int) -> int | None:
        """How many tokens stand for the first `size` bytes; None if a token straddles their end."""
        count = 0
        while size > 0 and count < len(tokens):
            size -= len(self.of[tokens[count]])
            count += 1
        return count if size == 0 else None

    def _pieced(self, data: bytes) -> list[int]:
        """Spell bytes greedily, with the longest matching token each time."""
        found, at = [], 0
        while at < len(data):
            sizes = range(min(self._longest, len(data) - at), 0, -1)
            size = next((size for size in sizes if data[at : at + size] in self.tokens), 0)
            if size:
                found.append(self.tokens[data[at : at + size]])
            elif "unk" in self.roles:
                found.append(self.roles["unk"])
            at += max(size, 1)
        return found


def _middle(data: bytes) -> int:
    """Where to divide some bytes, in their middle half; 0 for nowhere."""
    middle = len(data) // 2
    for seams in _SEAMS:
        places = [seam.start() for seam in seams.finditer(data, middle // 2, middle + middle // 2)]
        if places:
            return min(places, key=lambda place: abs(place - middle))
    return 0


def translated_specials(ours: Pieces, theirs: Pieces) -> dict[int, int]:
    """Special tokens of one tokenizer -> those of the other: by name, else by role."""
    by_role = {token: theirs.roles[role] for role, token in ours.roles.items() if role in theirs.roles}
    by_name = {token: theirs.special[name] for name, token in ours.special.items() if name in theirs.special}
    return {**by_role, **by_name}


_LEVELS = _printable()


def _bytes_of_levels(name: str) -> bytes:
    """A character that does not represent a byte stands for itself, as in the decoder."""
    return b"".join(bytes([_LEVELS[one]]) if one in _LEVELS else one.encode() for one in name)


def _bytes_of_pieces(name: str) -> bytes:
    byte = _BYTE.fullmatch(name)
    return bytes([int(byte.group(1), 16)]) if byte else name.replace(_SPACE, " ").encode()
