"""From the text of an answer, as it comes, to plain content and calls of tools."""

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
    """Text that is no call."""

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
    """Its arguments are whole. A call that the answer's end cuts off does not end."""

    index: int


Event: TypeAlias = Thought | Content | CallBegun | Arguments | CallEnded

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_BLANK = " \t\r\n"
_QUIET = _BLANK + ",;"
"""What may stand between two calls and behind the last, beside the form's own pieces."""
_LONGEST_HEAD = 512
"""Characters from the trigger to the arguments, blanks included."""


class PlainText:
    """For answers without tools: all of it is content."""

    def feed(self, text: str) -> list[Event]:
        return [Content(text)] if text else []

    def end(self) -> list[Event]:
        return []


class ToolParser:
    """Reads one answer in a form. names: of the tools; a call of any other is content, as is whatever is no call after all.

    Blanks between the pieces of a call may differ from the form's, and those in front of a call are part of no content. Its
    memory is bounded by the text; arguments are passed on as they come.
    """

    def __init__(self, form: Form, names: Collection[str], prefix: str = "call_") -> None:
        self._names, self._prefix = names, prefix
        self._heads = [_compact(piece) for piece in (form.before, form.middle)]
        self._triggers = [form.trigger] if form.trigger else [PYTHON_TAG]
        self._bare = not form.trigger
        """A call needs no trigger where the answer begins with it."""
        quiet = {piece for piece in (*form.between, *form.closing, *self._triggers) if piece.strip(_QUIET)}
        self._passed = (*sorted(quiet), "}") if form.after else tuple(sorted(quiet))
        self._state = self._content
        self._held = ""
        """Read, and not yet known for what it is."""
        self._said = False
        self._begun = ""
        """Of a call, before it is known to be one: all that would be content if it is none."""
        self._depth, self._quoted, self._escaped = 0, False, False
        self.calls = 0

    def feed(self, text: str) -> list[Event]:
        """What became known with some more text."""
        self._held += text
        events: list[Event] = []
        while self._state(events):
            pass
        return _joined(events)

    def end(self) -> list[Event]:
        """What was still held back when the answer ended. A call whose name is not whole yet is left out."""
        events: list[Event] = []
        if self._state == self._content and not (self.calls and not self._held.strip(_BLANK)):
            self._say(events, self._held)
        self._held = self._begun = ""
        return events

    def _say(self, events: list[Event], text: str) -> None:
        if text:
            self._said = self._said or bool(text.strip())
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
            # lists of calls open with a bracket of their own
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
        # what began it is content now, and cannot begin a call once more
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
        """Behind a call: pieces of the form, the next call, or content again."""
        rest = self._held.lstrip(_QUIET)
        if not rest:
            return False
        for piece in self._passed:
            if rest.startswith(piece):
                self._begun = ""
                self._held = rest[len(piece) :]
                # a trigger promises a call; the rest only passes by
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
    """How much of the end of `text` may be the beginning of `marker`."""
    return next((size for size in range(min(len(marker) - 1, len(text)), 0, -1) if text.endswith(marker[:size])), 0)


def _joined(events: list[Event]) -> list[Event]:
    """Neighbours of the same kind as one."""
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(event, Content) and isinstance(last, Content):
            joined[-1] = Content(last.text + event.text)
        else:
            joined.append(event)
    return joined
