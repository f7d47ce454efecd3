"""Logs: one line per event, for people or as JSON, from this server and uvicorn alike. Request texts only with `log_prompts`."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any, TextIO

from paceline.serve.settings import Settings

_UNSEEN = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
"""Control characters: a line that quotes a client must stay one line, and move no cursor."""


def configure(settings: Settings, stream: TextIO | None = None) -> None:
    """Send everything that is logged in this process to one place. stream: standard error if None."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter((JsonLines if settings.log_json else Lines)(settings.log_prompts))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    for name in ("paceline", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(settings.log_level.upper())
    # uvicorn sets the levels of these loggers; an earlier server in this process may have left them set
    for name in ("uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        logging.getLogger(name).setLevel(logging.NOTSET)


class _Formatter(logging.Formatter):
    """messages: whether exception messages are shown; they may quote request texts."""

    def __init__(self, messages: bool) -> None:
        super().__init__()
        self._messages = messages

    def time(self, record: logging.LogRecord) -> str:
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        return getattr(record, "fields", {})

    def trace(self, record: logging.LogRecord) -> str:
        """The traceback of an exception and of its causes; empty without an exception."""
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return ""
        if self._messages:
            return "".join(traceback.format_exception(error)).rstrip()
        parts, seen = list[str](), set[int]()
        while error is not None and id(error) not in seen:
            seen.add(id(error))
            parts.append("".join([*traceback.format_tb(error.__traceback__), f"{type(error).__qualname__} (message withheld)"]))
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return "\nwhich came of\n".join(parts)


class Lines(_Formatter):
    """For people: time, level, message, then fields as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={value}" for name, value in self.fields(record).items())
        line = f"{self.time(record)} {record.levelname.lower():7} {record.getMessage()} {fields}".rstrip().translate(_UNSEEN)
        trace = self.trace(record)
        return f"{line}\n{trace}" if trace else line


class JsonLines(_Formatter):
    """For machines: one JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        trace = self.trace(record)
        return json.dumps(entry | self.fields(record) | ({"exception": trace} if trace else {}), default=str)
