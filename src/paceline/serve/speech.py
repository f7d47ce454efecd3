"""The message of a choice of a chat completion: thought, content and tool calls, whole or as the deltas of a stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from paceline.serve.choices import Answer
from paceline.serve.tool_parsing import Arguments, CallBegun, CallEnded, Content, Event, Thought
from paceline.serve.tools import ToolPlan


class Speech:
    """One choice, parsed as it arrives. plan: of its request."""

    def __init__(self, plan: ToolPlan) -> None:
        self._reader, self._may_think = plan.reader(), plan.opened is not None
        self._calls = self._whole = False
        """Whether there is any call, and whether the last call is complete."""

    def delta(self, text: str, ended: bool) -> dict[str, Any]:
        """`delta` of a chunk; empty if `text`, the new part of the answer, completes nothing."""
        events = [*self._reader.feed(text), *(self._reader.end() if ended else ())]
        thought, content, calls = _read(events)
        for event in events:
            if isinstance(event, CallBegun | CallEnded):
                self._calls, self._whole = True, isinstance(event, CallEnded)
        said: dict[str, Any] = _thought(thought) if thought else {}
        return said | ({"content": content} if content else {}) | ({"tool_calls": calls} if calls else {})

    def message(self, answer: Answer) -> dict[str, Any]:
        """The whole message; content is null if there are only calls."""
        said = self.delta(answer.text, ended=True)
        content = said.get("content", None if self._calls else "")
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if self._may_think:
            message |= _thought(said.get("reasoning_content"))
        if self._calls:
            message["tool_calls"] = [{key: call[key] for key in ("id", "type", "function")} for call in said["tool_calls"]]
        return message

    def finish_reason(self, answer: Answer) -> str:
        """ "tool_calls" tells the client to run the calls; never if a stop string or token cut the last one off."""
        reason = answer.finish_reason
        return "tool_calls" if self._whole and reason == "stop" else reason


def _thought(text: str | None) -> dict[str, str | None]:
    """By both names that clients read: OpenRouter's and OpenAI's Agents SDK know only the second."""
    return {"reasoning_content": text, "reasoning": text}


def _read(events: Iterable[Event]) -> tuple[str, str, list[dict[str, Any]]]:
    """Thought, content, and per call its index, the new part of its arguments and, if it begins here, its id and name."""
    thought, content, calls = "", "", dict[int, dict[str, Any]]()
    for event in events:
        match event:
            case Thought(text):
                thought += text
            case Content(text):
                content += text
            case CallBegun(index, call, name):
                function = {"name": name, "arguments": ""}
                calls[index] = {"index": index, "id": call, "type": "function", "function": function}
            case Arguments(index, text):
                call = calls.setdefault(index, {"index": index, "function": {"arguments": ""}})
                call["function"]["arguments"] += text
            case _:
                pass
    return thought, content, list(calls.values())
