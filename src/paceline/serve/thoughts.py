"""Thoughts: separates what a thinking model writes between <think> and </think> from its answer.

Templates of some models (DeepSeek-R1, QwQ) open the thought themselves; others leave it to the model (Qwen 3). Other marks are
not recognized, and text between them is content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum, auto

from paceline.serve.tool_parsing import overlap

_OPENS, CLOSES = "<think>", "</think>"
_BLANK = " \t\r\n"


class _State(Enum):
    BEGINS = auto()
    THINKS = auto()
    """In a thought that has only blanks so far."""
    GOES_ON = auto()
    ANSWERS = auto()
    """After the thought, with only blanks so far."""
    SAYS = auto()


def thinks(template: str | None) -> bool:
    """Whether a model thinks, judged by its chat template."""
    return template is not None and CLOSES in template


def is_open(prompt_end: str) -> bool:
    """Whether the end of a prompt opens a thought."""
    return prompt_end.rstrip(_BLANK).endswith(_OPENS)


def is_left_open(message: str) -> bool:
    """Whether a message that is to be continued ends inside a thought."""
    return message.rfind(_OPENS) > message.rfind(CLOSES)


class Thoughts:
    """Reads one answer as it arrives. opened: whether it begins inside a thought. Blanks around a thought are dropped."""

    def __init__(self, opened: bool) -> None:
        self._state = _State.THINKS if opened else _State.BEGINS
        self._held = ""

    def feed(self, text: str) -> tuple[str, str]:
        """(thought, content) that can be decided with the next piece of text."""
        self._held += text
        if self._state is _State.BEGINS:
            start = self._held.lstrip(_BLANK)
            if len(start) < len(_OPENS) and _OPENS.startswith(start):
                return "", ""
            if start.startswith(_OPENS):
                self._state, self._held = _State.THINKS, start[len(_OPENS) :]
            else:
                self._state = _State.SAYS
        thought = self._thought()
        if self._state is _State.ANSWERS:
            self._held = self._held.lstrip(_BLANK)
            if self._held:
                self._state = _State.SAYS
        said = ""
        if self._state is _State.SAYS:
            said, self._held = self._held, ""
        return thought, said

    def _thought(self) -> str:
        if self._state is _State.THINKS:
            self._held = self._held.lstrip(_BLANK)
            if self._held:
                self._state = _State.GOES_ON
        if self._state is not _State.GOES_ON:
            return ""
        at = self._held.find(CLOSES)
        if at >= 0:
            thought, self._held = self._held[:at].rstrip(_BLANK), self._held[at + len(CLOSES) :]
            self._state = _State.ANSWERS
            return thought
        safe = len(self._held) - overlap(self._held, CLOSES)
        thought = self._held[:safe].rstrip(_BLANK)
        self._held = self._held[len(thought) :]
        return thought

    def end(self) -> tuple[str, str]:
        """(thought, content) still held back when the answer ended."""
        held, self._held = self._held, ""
        return (held, "") if self._state is _State.GOES_ON else ("", held if self._state is _State.BEGINS else "")


class ThoughtTokens:
    """Counts the tokens of a thought, including its marks, as an answer arrives.

    opened: as in `Thoughts`. piece: gives the bytes of a token, also of special ones. count: thought tokens so far.
    """

    def __init__(self, opened: bool, piece: Callable[[int], bytes]) -> None:
        self.count = self._seen = 0
        self._piece, self._begins, self._ended = piece, not opened, False
        self._held = b""

    def see(self, tokens: Iterable[int]) -> None:
        """Process the next tokens of the answer."""
        for token in tokens:
            if self._ended:
                return
            self._seen += 1
            self._held += self._piece(token)
            if self._begins:
                start = self._held.lstrip(_BLANK.encode())
                if len(start) < len(_OPENS) and _OPENS.encode().startswith(start):
                    continue
                self._begins, self._ended, self._held = False, not start.startswith(_OPENS.encode()), start[len(_OPENS) :]
            if not self._ended:
                self.count, self._ended = self._seen, CLOSES.encode() in self._held
            self._held = self._held[-len(CLOSES) :]
