"""Answer reader: splits the text of an answer, as it arrives, into thought, content and tool calls, in that order."""

from __future__ import annotations

from paceline.serve.thoughts import Thoughts
from paceline.serve.tool_parsing import Event, PlainText, Thought, ToolParser


class AnswerReader:
    """Reads one answer. opened: whether it begins inside a thought; None if no thought is to be recognized in it."""

    def __init__(self, parser: ToolParser | PlainText, opened: bool | None) -> None:
        self._parser = parser
        self._thoughts = None if opened is None else Thoughts(opened)

    def feed(self, text: str) -> list[Event]:
        """Events that the next piece of text completes."""
        return self._read(*self._thoughts.feed(text)) if self._thoughts else self._parser.feed(text)

    def end(self) -> list[Event]:
        """Events for text that was still held back when the answer ended."""
        events = self._read(*self._thoughts.end()) if self._thoughts else []
        return [*events, *self._parser.end()]

    def _read(self, thought: str, said: str) -> list[Event]:
        return [*([Thought(thought)] if thought else []), *self._parser.feed(said)]
