"""Text: tokens to text, a piece at a time, never a broken character and never past a stop string."""

from __future__ import annotations

from collections.abc import Sequence as Many
from functools import partial

from paceline.engine.stop_strings import StopString
from paceline.models.tokenizer import Tokenizer

_BROKEN = "\ufffd"
_KEPT_TOKENS = 4
"""Tokens decoded again before each new one: some tokenizers write a token differently at the start of a text. A character
has at most as many bytes, so one of as many neighbouring tokens begins one."""

_LONGEST_WINDOW = 4 * _KEPT_TOKENS
"""Tokens decoded at once before the window moves on: moving it costs another decoding."""
_LONGEST_BROKEN = 12 * _KEPT_TOKENS
"""Most tokens in a row that complete no character: decoding what is no text again and again would take quadratic time."""
_TOGETHER = 32
"""Tokens decoded at once at the end of a text that `waits`: few enough for `extend` to decode them together."""


class TextStream:
    """The text of one sequence as it grows.

    It continues `prompt`: the first token is decoded as it reads behind it. include_stop_str_in_output: the stop string that
    ends it is part of it. skip_special_tokens: special tokens are not. min_tokens: in the text of so many no stop string begins.
    waits: nobody reads it before its end, so it is only decoded then, unless a stop string may end it. `text` is final text: it
    stops before an unfinished character, and, when cut, before or behind the stop string, `stop`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: tuple[str, ...] = (),
        prompt: tuple[int, ...] = (),
        *,
        include_stop_str_in_output: bool = False,
        skip_special_tokens: bool = True,
        min_tokens: int = 0,
        waits: bool = False,
    ) -> None:
        self._decode = partial(tokenizer.decode, skip_special_tokens=False) if not skip_special_tokens else tokenizer.decode
        self._stops, self._include_stop_str = [StopString(stop) for stop in stops], include_stop_str_in_output
        self._waiting: list[int] | None = [] if waits and not stops else None
        """Tokens to be decoded at the end."""
        self._prompt = prompt
        self._early = min_tokens if stops else 0
        """How many tokens to come are not searched for stop strings."""
        if self._waiting is None:
            self._open()
        self.text = ""
        self.stop: str | None = None

    def _open(self) -> None:
        """Begin to decode, behind the last tokens of the prompt."""
        self._ids, self._shown = self._opening()
        """Tokens, those without text left out; and the text of the window up to `_settled`."""
        self._window, self._settled = 0, len(self._ids)
        """Index of the token at which decoding begins, and the latest index behind which no character was unfinished."""
        self._sent = 0
        """Characters that were added since `_settled`."""
        self._broken = 0
        """Tokens since `_settled`."""

    def _opening(self) -> tuple[list[int], str]:
        """The last tokens of the prompt, and their text.

        From a token inside a character on, byte fallback decodes a whole run of bytes as broken: another token is tried.
        """
        prompt = self._prompt
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
        """Take several tokens at once; a stop string is found all the same, but not which of them completed it.

        The text does not depend on how it is cut into steps: only tokens that are whole characters behind whole characters are
        decoded together, where it makes no difference.
        """
        if self._waiting is not None:
            self._waiting += tokens
            return
        if len(tokens) > 1 and not self._early and self._broken + len(tokens) < _LONGEST_BROKEN:
            window = self._decode([*self._ids[self._window :], *tokens])
            fresh = window[len(self._shown) + self._sent :]
            if _BROKEN not in fresh and window.startswith(self._shown):
                self._ids += tokens
                self._settle(window)
                self._add(fresh)
                return
        for token in tokens:
            if not self.stopped:
                self._take(token)

    def _take(self, token: int) -> None:
        self._ids.append(token)
        window = self._decoded()
        whole = window.rstrip(_BROKEN)
        begin = len(self._shown) + self._sent
        fresh = whole[begin:]
        if whole != window:
            self._sent += len(fresh)
            self._broken += 1
            if self._broken >= _LONGEST_BROKEN:
                fresh += self._given_up(window)
        elif window and window == self._shown:
            # it has no text, like special tokens; a space at the very start gets its text with the next token
            self._ids.pop()
        else:
            self._settle(window)
        self._add(fresh)
        if self._early:
            self._early -= 1

    def _decoded(self) -> str:
        """The text of the window, which begins with what was shown of it.

        Byte fallback decodes a whole run of bytes as broken when one of them is. Characters that were shown stay: the window
        then begins behind them.
        """
        window = self._decode(self._ids[self._window :])
        if not window.startswith(self._shown):
            self._window, self._shown = self._settled, ""
            window = self._decode(self._ids[self._window :])
        return window

    def _settle(self, window: str) -> None:
        """Note that the window ends with a whole character."""
        self._shown, self._settled, self._sent, self._broken = window, len(self._ids), 0, 0
        if len(self._ids) - self._window >= _LONGEST_WINDOW:
            self._advance(window)

    def _given_up(self, window: str) -> str:
        """The text that stays broken, without what the last tokens may still complete; moves the window to these."""
        text = window[len(self._shown) + self._sent :]
        self._window = self._settled = len(self._ids) - _KEPT_TOKENS
        last = self._decode(self._ids[self._window :])
        self._shown, self._sent, self._broken = "", len(last.rstrip(_BROKEN)), _KEPT_TOKENS
        return text[: max(len(text) - (len(last) - self._sent), 0)]

    def _advance(self, window: str) -> None:
        """Begin the window at a later token that is not inside a character, if there is text from it on.

        Byte fallback would decode a run of bytes that begins inside a character as broken, and a token with no text before it
        would be decoded as at the start of a text.
        """
        for kept in range(_KEPT_TOKENS, 2 * _KEPT_TOKENS):
            start = len(self._ids) - kept
            if start <= self._window:
                return
            shown = self._decode(self._ids[start:])
            if shown and window.endswith(shown):
                self._window, self._shown = start, shown
                return

    def finish(self) -> None:
        """The sequence ended: an unfinished character will not be finished any more, and shows as it is."""
        if self._waiting is not None:
            waited, self._waiting = self._waiting, None
            self._open()
            for low in range(0, len(waited), _TOGETHER):
                self.extend(waited[low : low + _TOGETHER])
        if not self.stopped:
            self._add(self._decoded()[len(self._shown) + self._sent :])

    def _add(self, fresh: str) -> None:
        before = len(self.text)
        self.text += fresh
        if not self._stops or self._early:
            return
        # the one that begins first; of several that begin there, the shortest was complete first
        ends = [(before + read, stop.text) for stop in self._stops if (read := stop.read(fresh)) is not None]
        if ends:
            at, size, self.stop = min((end - len(stop), len(stop), stop) for end, stop in ends)
            self.text = self.text[: at + size if self._include_stop_str else at]

    @property
    def safe(self) -> str:
        """The text less a tail that may yet become a stop string: what may be shown while the sequence runs."""
        if self.stopped or not self._stops:
            return self.text
        return self.text[: len(self.text) - max([stop.begun for stop in self._stops])]
