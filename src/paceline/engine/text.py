"""Text: tokens to text, a piece at a time, never a broken character and never past a stop string."""

from __future__ import annotations

from collections.abc import Sequence as Many
from functools import partial

from paceline.models.tokenizer import Tokenizer

_BROKEN = "\ufffd"
_KEPT_TOKENS = 4
"""Tokens decoded again before each new one: some tokenizers write a token differently at the start of a text. A character
has at most as many bytes, so one of as many neighbouring tokens begins one."""

_LONGEST_WINDOW = 4 * _KEPT_TOKENS
"""Tokens decoded at once before the window moves on: moving it costs another decoding."""
_LONGEST_BROKEN = 12 * _KEPT_TOKENS
"""Tokens in a row that end no character, at most: decoding without end what is no text would take quadratic time."""


class TextStream:
    """The text of one sequence as it grows.

    It continues `prompt`: the first token is written as it stands behind it. keep_stop: the stop string that ends it is part of
    it. skip_special: special tokens are not.
    `text` is final text: it stops before an unfinished character, and, when cut, before or behind the stop string, `stop`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: tuple[str, ...] = (),
        prompt: tuple[int, ...] = (),
        *,
        keep_stop: bool = False,
        skip_special: bool = True,
    ) -> None:
        self._decode = partial(tokenizer.decode, skip_special=False) if not skip_special else tokenizer.decode
        self._stops, self._keep_stop = stops, keep_stop
        self._ids, self._before = self._opening(prompt)
        self._window = 0
        self._sent = 0
        self._broken = 0
        """Tokens since the last with which a character ended."""
        self.text = ""
        self.stop: str | None = None

    def _opening(self, prompt: tuple[int, ...]) -> tuple[list[int], str]:
        """The last tokens of the prompt, and their text.

        From a token inside a character on, byte fallback writes a whole run of bytes as broken: another token begins one.
        """
        for kept in range(_KEPT_TOKENS, 2 * _KEPT_TOKENS) if prompt else ():
            text = self._decode(list(prompt[-kept:]))
            if not text.endswith(_BROKEN):
                return list(prompt[-kept:]), text
        last = list(prompt[-_KEPT_TOKENS:])
        return last, self._decode(last).rstrip(_BROKEN) if last else ""

    @property
    def stopped(self) -> bool:
        return self.stop is not None

    def append(self, token: int) -> None:
        """Take one token; sets `stop` where the text now holds a stop string, behind which nothing is kept."""
        self.extend((token,))

    def extend(self, tokens: Many[int]) -> None:
        """Take several tokens at once; a stop string is found all the same, but not which of them ended it.

        However a text is cut into steps, it is the same: what is given up is counted in tokens, and where they end inside a
        character they are taken one by one, for some of them may end one.
        """
        if self._broken + len(tokens) < _LONGEST_BROKEN:
            window = self._decode([*self._ids[self._window :], *tokens])
            if not window.endswith(_BROKEN):
                self._take(tokens, window)
                return
        for token in tokens:
            if not self.stopped:
                self._take((token,), self._decode([*self._ids[self._window :], token]))

    def _take(self, tokens: Many[int], window: str) -> None:
        """One token, or several that end a character. window: the text of the window with them."""
        self._ids += tokens
        settled = window.rstrip(_BROKEN)
        fresh = settled[len(self._before) + self._sent :]
        self._sent += len(fresh)
        if settled == window:
            self._broken = 0
            if len(self._ids) - self._window >= _LONGEST_WINDOW:
                self._advance(window)
        else:
            self._broken += 1
            if self._broken >= _LONGEST_BROKEN:
                fresh += self._given_up(window)
        self._add(fresh)

    def _given_up(self, window: str) -> str:
        """What is broken for good, all but what the last tokens may still complete; the window begins at these."""
        text = window[len(self._before) + self._sent :]
        last = self._decode(self._ids[-_KEPT_TOKENS:])
        self._window, self._before, self._sent = len(self._ids) - _KEPT_TOKENS, last.rstrip(_BROKEN), 0
        self._broken = _KEPT_TOKENS
        return text[: max(len(text) - (len(last) - len(self._before)), 0)]

    def _advance(self, window: str) -> None:
        """Begin the window at a later token, where that one does not stand inside a character.

        Tokenizers with byte fallback write a whole run of bytes as broken when one character of it is.
        """
        for kept in range(_KEPT_TOKENS, 2 * _KEPT_TOKENS):
            start = len(self._ids) - kept
            if start <= self._window:
                return
            before = self._decode(self._ids[start:])
            if window.endswith(before):
                self._window, self._before, self._sent = start, before, 0
                return

    def finish(self) -> None:
        """The sequence ended: an unfinished character will not be finished any more, and shows as it is."""
        if not self.stopped:
            window = self._decode(self._ids[self._window :])
            self._add(window[len(self._before) + self._sent :])

    def _add(self, fresh: str) -> None:
        if not self._stops:
            self.text += fresh
            return
        searched = max(len(self.text) - max(map(len, self._stops)) + 1, 0)
        self.text += fresh
        # the first to begin; of several that begin there, the shortest was there first
        found = [(at, len(stop), stop) for stop in self._stops if (at := self.text.find(stop, searched)) >= 0]
        if found:
            at, size, self.stop = min(found)
            self.text = self.text[: at + size if self._keep_stop else at]

    @property
    def safe(self) -> str:
        """The text less a tail that may yet become a stop string: what may be shown while the sequence runs."""
        if self.stopped:
            return self.text
        held = 0
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(self.text)), held, -1):
                if self.text.endswith(stop[:size]):
                    held = size
                    break
        return self.text[: len(self.text) - held]
