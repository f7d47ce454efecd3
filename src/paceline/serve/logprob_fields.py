"""Log-probabilities of tokens in the three forms that clients read: of chat, of text completions, and of prompts."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence as Many
from typing import Any

from paceline.logprobs import TokenLogprobs
from paceline.serve.asking import Service
from paceline.serve.speculation_fields import shown

_LEAST = -9999.0
"""What OpenAI writes for a token that is next to impossible; JSON has no infinity."""


def _finite(logprob: float) -> float:
    """As JSON can say it: what is not a number is no larger than the least, or than anything."""
    return logprob if logprob > _LEAST else _LEAST


def chat_entries(service: Service, logprobs: Iterable[TokenLogprobs]) -> list[dict[str, Any]]:
    """`logprobs.content` of a chat completion or of a response: one entry per token."""
    return [
        {
            **_entry(service, one.token, one.logprob),
            "top_logprobs": [_entry(service, token, logprob) for token, logprob in one.top],
        }
        for one in logprobs
    ]


def _entry(service: Service, token: int, logprob: float) -> dict[str, Any]:
    piece = service.piece(token)
    return {"token": piece.decode("utf-8", errors="replace"), "logprob": _finite(logprob), "bytes": list(piece)}


def prompt_entries(service: Service, logprobs: Iterable[TokenLogprobs | None], count: int) -> list[dict[str, Any] | None]:
    """`prompt_logprobs`, as vLLM writes them: per token a mapping from ids to what is known of them; null for the first."""
    return [None if one is None else _by_id(service, one, count) for one in logprobs]


def _by_id(service: Service, one: TokenLogprobs, count: int) -> dict[str, Any]:
    ranked = [(token, logprob, rank) for rank, (token, logprob) in enumerate(one.top[:count], 1)]
    return {
        str(token): {"logprob": _finite(logprob), "rank": rank, "decoded_token": shown(service, token)}
        for token, logprob, rank in [*ranked, (one.token, one.logprob, one.rank)]
    }


class CompletionLogprobs:
    """`logprobs` of one choice of a text completion, in as many parts as its stream has chunks.

    Offsets count characters of the choice's text; a token that only begins a character stands where the character will.
    hides: whether the answer leaves special tokens out, which then take no room.
    """

    def __init__(self, service: Service, count: int, hides: bool) -> None:
        self._service, self._count, self._hides, self._offset = service, count, hides, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def prompt(self, text: str, ids: Many[int], logprobs: Many[TokenLogprobs | None]) -> dict[str, list[Any]]:
        """Of an echoed prompt. Tokens that its text does not show, such as a BOS, take no room."""
        offsets = []
        for token in ids:
            offsets.append(self._offset)
            written = self._decoder.decode(self._service.piece(token))
            # some tokenizers drop the space that a text begins with
            for form in (written, written.lstrip(" ")):
                if form and text.startswith(form, self._offset):
                    self._offset += len(form)
                    break
        self._offset = len(text)
        self._decoder.reset()
        return self._part(ids, logprobs, offsets)

    def answer(self, logprobs: Many[TokenLogprobs]) -> dict[str, list[Any]]:
        ids = [one.token for one in logprobs]
        offsets = []
        for token in ids:
            hidden, piece = self._hides and self._is_special(token), self._service.piece(token)
            if not hidden and not _continues(piece):
                # what was begun before ends as it is: one replacement character
                self._offset += len(self._decoder.decode(b"", final=True))
            offsets.append(self._offset)
            if not hidden:
                self._offset += len(self._decoder.decode(piece))
        return self._part(ids, logprobs, offsets)

    def _is_special(self, token: int) -> bool:
        service = self._service
        return not service.decode([token]) and service.decode([token], skip_special_tokens=False).encode() == service.piece(token)

    def _part(self, ids: Many[int], logprobs: Many[TokenLogprobs | None], offsets: list[int]) -> dict[str, list[Any]]:
        return {
            "tokens": [self._name(token) for token in ids],
            "token_logprobs": [None if one is None else _finite(one.logprob) for one in logprobs],
            "top_logprobs": [None if one is None else self._top(one) for one in logprobs],
            "text_offset": offsets,
        }

    def _top(self, one: TokenLogprobs) -> dict[str, float]:
        """The likeliest tokens and the token itself; of two that read the same, the likelier is told."""
        top: dict[str, float] = {}
        for token, logprob in (*one.top[: self._count], (one.token, one.logprob)):
            name = self._name(token)
            top[name] = max(_finite(logprob), top.get(name, _LEAST))
        return top

    def _name(self, token: int) -> str:
        """Its text, or as OpenAI writes bytes that are no whole character."""
        piece = self._service.piece(token)
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _continues(piece: bytes) -> bool:
    """Whether it can go on with a character that another token began, as UTF-8 has it."""
    return not piece or 0x80 <= piece[0] < 0xC0


def joined(*parts: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: [value for part in parts for value in part[name]] for name in parts[0]}
