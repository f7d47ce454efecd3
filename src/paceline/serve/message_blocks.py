"""The content blocks of a message in Anthropic's format, built incrementally, and the stream events for them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from paceline.serve.tool_parsing import Arguments, CallBegun, CallEnded, Event, Thought

_SIGNATURE = "cGFjZWxpbmU="
"""Says nothing, and nobody checks it. Clients drop a thought without one, or send it back as a text."""


class Blocks:
    """`content` of one message. Its methods return events of the stream. tells: whether thoughts are told; else their blocks are
    empty."""

    def __init__(self, tells: bool = True) -> None:
        self._tells = tells
        self._blocks: list[dict[str, Any]] = []
        self._arguments: dict[int, str] = {}
        self._open = False
        self.called = False
        """Whether there are calls and the last one is complete."""

    @property
    def content(self) -> list[dict[str, Any]]:
        """All complete blocks: a call that was cut off is left out, since its arguments must not be used."""
        whole = [
            {**block, "input": read} if block["type"] == "tool_use" else block
            for at, block in enumerate(self._blocks)
            if (read := _object(self._arguments.get(at, "{}"))) is not None
        ]
        return [block for block in whole if block["type"] != "text" or block["text"]]

    def add(self, events: Iterable[Event]) -> list[dict[str, Any]]:
        """Add the events of a step."""
        emitted: list[dict[str, Any]] = []
        for event in events:
            if isinstance(event, CallBegun):
                self.called = False
                emitted += self.close()
                emitted.append(self._begin({"type": "tool_use", "id": event.id, "name": event.name, "input": {}}))
                self._arguments[len(self._blocks) - 1] = ""
            elif isinstance(event, Arguments):
                self._arguments[len(self._blocks) - 1] += event.text
                emitted.append(self._delta({"type": "input_json_delta", "partial_json": event.text}))
            elif isinstance(event, CallEnded):
                self.called = True
                emitted += self.close()
            elif isinstance(event, Thought):
                emitted += self._grown("thinking", event.text, {"signature": ""})
            else:
                emitted += self._grown("text", event.text, {})
        return emitted

    def _grown(self, kind: str, text: str, more: dict[str, Any]) -> list[dict[str, Any]]:
        """Append to a text or a thought. kind: type of the block; a block of the other kind is closed first. more: further fields
        of a new block."""
        emitted: list[dict[str, Any]] = []
        if self._open and self._blocks[-1]["type"] != kind:
            emitted += self.close()
        if not self._open:
            emitted.append(self._begin({"type": kind, kind: "", **more}))
        if kind == "thinking" and not self._tells:
            return emitted
        self._blocks[-1][kind] += text
        return [*emitted, self._delta({"type": f"{kind}_delta", kind: text})]

    def close(self) -> list[dict[str, Any]]:
        """Close the open block, if any."""
        if not self._open:
            return []
        self._open, emitted = False, list[dict[str, Any]]()
        if self._blocks[-1]["type"] == "thinking":
            self._blocks[-1]["signature"] = _SIGNATURE
            emitted.append(self._delta({"type": "signature_delta", "signature": _SIGNATURE}))
        return [*emitted, {"type": "content_block_stop", "index": len(self._blocks) - 1}]

    def _begin(self, block: dict[str, Any]) -> dict[str, Any]:
        self._blocks.append(block)
        self._open = True
        return {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": dict(block)}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}


def _object(text: str) -> dict[str, Any] | None:
    """The arguments of a complete call, without unpaired surrogates (UTF-8 cannot encode them); None if they are not JSON."""
    try:
        read = json.loads(text)
        return json.loads(json.dumps(read, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
