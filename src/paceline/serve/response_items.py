"""The output items of a response, built incrementally, and the stream events for them."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from paceline.serve.tool_parsing import Arguments, CallBegun, CallEnded, Event, Thought


class Items:
    """`output` of one response. Its methods return events of the stream, not numbered yet.

    Log-probabilities are attached to the next text; those of calls and thoughts are dropped, since the API has no place for them.
    namespaced: by the names that the model calls, the namespaces of functions that have one, and their names there.
    """

    def __init__(self, namespaced: Mapping[str, tuple[str, str]] = MappingProxyType({})) -> None:
        self._namespaced = namespaced
        self.output: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        self._logprobs: list[dict[str, Any]] = []

    def add(self, events: Iterable[Event], logprobs: Iterable[dict[str, Any]] = (), thought: int = 0) -> list[dict[str, Any]]:
        """Add the events of a step. thought: how many of the pending log-probabilities, oldest first, turned out to belong to a
        thought."""
        emitted: list[dict[str, Any]] = []
        self._logprobs += logprobs
        del self._logprobs[:thought]
        for event in events:
            if isinstance(event, CallBegun):
                emitted += self.close()
                namespace, name = self._namespaced.get(event.name, (None, event.name))
                call = {
                    "type": "function_call",
                    "call_id": event.id,
                    **({"namespace": namespace} if namespace else {}),
                    "name": name,
                    "arguments": "",
                    "status": "in_progress",
                }
                emitted += self._begin({"id": f"fc_{secrets.token_hex(16)}", **call})
            elif isinstance(event, Arguments):
                assert self._open is not None
                self._open["arguments"] += event.text
                emitted.append({"type": "response.function_call_arguments.delta", **self._place("item_id"), "delta": event.text})
            elif isinstance(event, CallEnded):
                emitted += self.close()
            else:
                emitted += self._thought(event.text) if isinstance(event, Thought) else self._text(event.text)
        return emitted

    def finish(self, cut: bool) -> list[dict[str, Any]]:
        """Note the end of the answer. cut: it is incomplete. An answer without text, thought or call gets an empty message."""
        emitted = [] if self.output else self._begin_message()
        # a complete call is closed already, so one that is still open was cut off, at least by a stop string
        cut = cut or (self._open is not None and self._open["type"] == "function_call")
        return [*emitted, *self.close("incomplete" if cut else "completed")]

    def _thought(self, text: str) -> list[dict[str, Any]]:
        emitted: list[dict[str, Any]] = []
        if self._open is None:
            thought = {"id": f"rs_{secrets.token_hex(16)}", "type": "reasoning", "status": "in_progress", "summary": []}
            emitted = self._begin_with_part(thought, {"type": "reasoning_text", "text": ""})
        assert self._open is not None
        self._open["content"][0]["text"] += text
        return [*emitted, {"type": "response.reasoning_text.delta", **self._place("part"), "delta": text}]

    def _text(self, text: str) -> list[dict[str, Any]]:
        # there is at most one thought, at the beginning: any text ends it
        emitted = self.close() if self._open is not None and self._open["type"] == "reasoning" else []
        if self._open is None:
            emitted += self._begin_message()
        assert self._open is not None
        part, logprobs = self._open["content"][0], self._logprobs
        self._logprobs = []
        part["text"] += text
        part["logprobs"] += logprobs
        delta = {"type": "response.output_text.delta", **self._place("part"), "delta": text, "logprobs": logprobs}
        return [*emitted, delta]

    def _begin_message(self) -> list[dict[str, Any]]:
        message = {"id": f"msg_{secrets.token_hex(16)}", "type": "message", "status": "in_progress", "role": "assistant"}
        return self._begin_with_part(message, {"type": "output_text", "text": "", "annotations": [], "logprobs": []})

    def _begin_with_part(self, item: dict[str, Any], part: dict[str, Any]) -> list[dict[str, Any]]:
        emitted = self._begin({**item, "content": []})
        assert self._open is not None
        self._open["content"].append(part)
        return [*emitted, {"type": "response.content_part.added", **self._place("part"), "part": _copied(part)}]

    def _begin(self, item: dict[str, Any]) -> list[dict[str, Any]]:
        self.output.append(item)
        self._open = item
        return [{"type": "response.output_item.added", **self._place("output"), "item": _copied(item)}]

    def close(self, status: str = "completed") -> list[dict[str, Any]]:
        """Close the open item, if any."""
        item, emitted = self._open, []
        if item is None:
            return []
        item["status"] = status
        if item["type"] == "function_call":
            done = {"type": "response.function_call_arguments.done", **self._place("item_id"), "name": item["name"]}
            emitted.append({**done, "arguments": item["arguments"]})
            self._logprobs = []
        elif item["type"] == "reasoning":
            part = item["content"][0]
            emitted.append({"type": "response.reasoning_text.done", **self._place("part"), "text": part["text"]})
            emitted.append({"type": "response.content_part.done", **self._place("part"), "part": part})
        else:
            part = item["content"][0]
            # of tokens without text, such as the one that ends the answer
            part["logprobs"] += self._logprobs
            self._logprobs = []
            done = {"type": "response.output_text.done", **self._place("part"), "text": part["text"]}
            emitted.append({**done, "logprobs": part["logprobs"]})
            emitted.append({"type": "response.content_part.done", **self._place("part"), "part": part})
        emitted.append({"type": "response.output_item.done", **self._place("output"), "item": item})
        self._open = None
        return emitted

    def _place(self, what: str) -> dict[str, Any]:
        index = {"output_index": len(self.output) - 1}
        if what == "output":
            return index
        assert self._open is not None
        return {"item_id": self._open["id"], **index, **({"content_index": 0} if what == "part" else {})}


def _copied(item: dict[str, Any]) -> dict[str, Any]:
    """A snapshot: the item changes before its event is serialized."""
    return {key: list(value) if isinstance(value, list) else value for key, value in item.items()}
