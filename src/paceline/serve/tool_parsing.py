"""Parses the text of an answer, as it arrives, into plain content and tool calls."""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeAlias

from paceline.serve.tool_forms import PYTHON_TAG, Form


@dataclass(frozen=True)
class Thought:
    """What a model thinks before it answers (`thoughts`)."""

    text: str


@dataclass(frozen=True)
class Content:
    """Text outside of calls."""

    text: str


@dataclass(frozen=True)
class CallBegun:
    """index: of the call in the answer, from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class Arguments:
    """The next piece of a call's arguments, a JSON object as the model writes it."""

    index: int
    text: str


@dataclass(frozen=True)
class CallEnded:
    """The arguments of a call are complete. A call that the end of the answer cuts off has no such event."""

    index: int


Event: TypeAlias = Thought | Content | CallBegun | Arguments | CallEnded

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_BLANK = " \t\r\n"
_QUIET = _BLANK + ",;"
"""Characters that may stand between two calls and after the last, besides the form's own pieces."""
_LONGEST_HEAD = 512
"""Most characters from the trigger to the arguments, including blanks."""


class PlainText:
    """For answers without tools: all of it is content."""

    def feed(self, text: str) -> list[Event]:
        return [Content(text)] if text else []

    def end(self) -> list[Event]:
        return []


class ToolParser:
    """Parses one answer in a given form. names: of the tools; a call of any other name is content, as is text that turns out not
    to be a call.

    Blanks between the pieces of a call may differ from the form's; blanks before a call are dropped. Memory is bounded by the
    text; arguments are passed on as they arrive.
    """

    def __init__(self, form: Form, names: Collection[str], prefix: str = "call_") -> None:
        self._names, self._prefix = names, prefix
        self._heads = [_compact(piece) for piece in (form.before, form.middle)]
        self._triggers = [form.trigger] if form.trigger else [PYTHON_TAG]
        self._bare = not form.trigger
        """Whether a call at the beginning of the answer needs no trigger."""
        quiet = {piece for piece in (*form.between, *form.closing, *self._triggers) if piece.strip(_QUIET)}
        self._passed = (*sorted(quiet), "}") if form.after else tuple(sorted(quiet))
        self._state = self._content
        self._held = ""
        """Text that was read but is not classified yet."""
        self._said = False
        self._begun = ""
        """While the head of a call is read: text before `_held` that becomes content if it is not a call."""
        self._depth, self._quoted, self._escaped = 0, False, False
        self.calls = 0

    def feed(self, text: str) -> list[Event]:
        """Events that can be decided with the next piece of text."""
        self._held += text
        events: list[Event] = []
        while self._state(events):
            pass
        return events

    def end(self) -> list[Event]:
        """Events for text still held back when the answer ended. A call that did not reach its arguments is left out."""
        events: list[Event] = []
        if self._state == self._content and not (self.calls and not self._held.strip(_BLANK)):
            self._say(events, self._held)
        self._held = self._begun = ""
        return events

    def _say(self, events: list[Event], text: str) -> None:
        if text:
            self._said = self._said or bool(text.strip())
            if events and isinstance(last := events[-1], Content):
                events[-1] = Content(last.text + text)
            else:
                events.append(Content(text))

    def _content(self, events: list[Event]) -> bool:
        if self._bare and not self._said:
            start = self._held.lstrip(_BLANK)
            if start.startswith("{"):
                self._begun, self._held = self._held[: -len(start)], start
                self._state = self._head
                return True
            if not start:
                return False
        found = [(at, one) for one in self._triggers if (at := self._held.find(one)) >= 0]
        if found:
            at, trigger = min(found)
            before = self._held[:at]
            kept = before.rstrip(_BLANK)
            self._say(events, kept)
            self._begun, self._held = before[len(kept) :] + trigger, self._held[at + len(trigger) :]
            self._state = self._head
            return True
        safe = len(self._held) - max(overlap(self._held, one) for one in self._triggers)
        safe = len(self._held[:safe].rstrip(_BLANK))
        self._say(events, self._held[:safe])
        self._held = self._held[safe:]
        return False

    def _head(self, events: list[Event]) -> bool:
        """From the trigger to the brace that opens the arguments."""
        before, middle = self._heads
        for at, character in enumerate(self._held):
            compact = _compact(self._held[: at + 1])
            # a list of calls opens with an additional bracket
            compact = compact.removeprefix("[") if not before.startswith("[") else compact
            name = _NAME.match(compact, len(before)) if compact.startswith(before) else None
            begins = before.startswith(compact) or (name and (middle + "{").startswith(compact[name.end() :]))
            if not begins or at >= _LONGEST_HEAD:
                return self._no_call(events)
            if name and character == "{" and compact[name.end() :] == middle + "{":
                if name.group() not in self._names:
                    return self._no_call(events)
                events.append(CallBegun(self.calls, self._prefix + secrets.token_hex(12), name.group()))
                self.calls += 1
                self._said, self._begun, self._held = True, "", self._held[at:]
                self._state = self._arguments
                return True
        return False

    def _no_call(self, events: list[Event]) -> bool:
        self._say(events, self._begun)
        # the text that began like a call is content now, and cannot begin a call again
        self._said, self._begun = True, ""
        self._state = self._content
        return True

    def _arguments(self, events: list[Event]) -> bool:
        for at, character in enumerate(self._held):
            if self._quoted:
                self._quoted = self._escaped or character != '"'
                self._escaped = character == "\\" and not self._escaped
            elif character == '"':
                self._quoted = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if not self._depth:
                    events += [Arguments(self.calls - 1, self._held[: at + 1]), CallEnded(self.calls - 1)]
                    self._held = self._held[at + 1 :]
                    self._state = self._between
                    return True
        if self._held:
            events.append(Arguments(self.calls - 1, self._held))
            self._held = ""
        return False

    def _between(self, events: list[Event]) -> bool:
        """After a call: pieces of the form, the next call, or content again."""
        rest = self._held.lstrip(_QUIET)
        if not rest:
            return False
        for piece in self._passed:
            if rest.startswith(piece):
                self._begun = ""
                self._held = rest[len(piece) :]
                # a trigger begins a call; other pieces are skipped
                if piece in self._triggers:
                    self._begun, self._state = piece, self._head
                return True
            if piece.startswith(rest):
                return False
        opens = self._heads[0][:1]
        if opens and rest.startswith(opens):
            self._held, self._state = rest, self._head
        else:
            self._state = self._content
        return True


def _compact(text: str) -> str:
    return "".join(text.split())


def overlap(text: str, marker: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `marker`."""
    return next((size for size in range(min(len(marker) - 1, len(text)), 0, -1) if text.endswith(marker[:size])), 0)
