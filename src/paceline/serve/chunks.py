"""Fields that all chunks of a stream share, and those its last chunk adds: usage and speculation metrics."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any

from paceline.serve.asking import Delta, Service
from paceline.serve.choices import Answer, usage
from paceline.serve.speculation_fields import metrics, traced
from paceline.serve.wire.generation import Generation


def head(service: Service, kind: str, prefix: str) -> dict[str, Any]:
    """The first fields of a response and of each of its chunks. kind: the value of `object`. prefix: of the id."""
    return {
        "id": f"{prefix}-{secrets.token_hex(16)}",
        "object": kind,
        "created": int(time.time()),
        "model": service.model,
    }


@dataclass
class Chunks:
    """Chunks of one stream. prompts: lengths in tokens. answers: the caller adds each delta to them."""

    service: Service
    fields: Generation
    head: dict[str, Any]
    prompts: Many[int]
    answers: Many[Answer]

    def of(self, choice: dict[str, Any], delta: Delta, **more: Any) -> dict[str, Any]:
        """A chunk with one choice, after `delta` was added to its answer."""
        chunk = {**self.head, "choices": [choice], **more}
        if self._usage_wanted:
            chunk["usage"] = self._usage() if self.silent_deltas else None
        elif self.fields.speculation is not None and choice["finish_reason"] and all(answer.ended for answer in self.answers):
            chunk["metrics"] = self._metrics()
        if steps := traced(self.service, delta):
            chunk["speculation"] = {"steps": steps}
        return chunk

    def last(self) -> list[dict[str, Any]]:
        """The usage chunk, if requested."""
        if not self._usage_wanted:
            return []
        return [{**self.head, "choices": [], "usage": self._usage(), "metrics": self._metrics()}]

    @property
    def _usage_wanted(self) -> bool:
        return self.fields.stream_options is not None and bool(self.fields.stream_options.include_usage)

    @property
    def silent_deltas(self) -> bool:
        """Whether a delta without text is sent nevertheless, because its chunk carries usage."""
        options = self.fields.stream_options
        return options is not None and bool(options.include_usage and options.continuous_usage_stats)

    def _usage(self) -> dict[str, Any]:
        return usage(self.prompts, self.answers, self.fields.prediction is not None)

    def _metrics(self) -> dict[str, Any]:
        return metrics([answer.ending for answer in self.answers])
