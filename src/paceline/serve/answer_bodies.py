"""Bodies of whole answers. Those with log-probabilities take seconds to write: in a thread, and in pieces between which it can be
interrupted, so that streams of others go on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence as Many
from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse

from paceline.serve.asking import Ask

_TOGETHER = 64
"""Entries of a list that are written at once."""


async def whole(built: Callable[[], Any], asks: Many[Ask]) -> Response:
    """The answer to some asks as JSON. built: makes it."""
    if all(ask.params.logprobs is None and ask.params.prompt_logprobs is None for ask in asks):
        return JSONResponse(built())
    content = await asyncio.to_thread(lambda: "".join(_pieces(built())).encode())
    return Response(content, media_type="application/json")


def _pieces(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        opening = "{"
        for name, held in value.items():
            yield f"{opening}{_dumped(name)}:"
            yield from _pieces(held)
            opening = ","
        yield "}" if value else "{}"
    elif isinstance(value, list) and len(value) > _TOGETHER:
        for low in range(0, len(value), _TOGETHER):
            yield ("," if low else "[") + _dumped(value[low : low + _TOGETHER])[1:-1]
        yield "]"
    elif isinstance(value, list):
        opening = "["
        for held in value:
            yield opening
            yield from _pieces(held)
            opening = ","
        yield "]" if value else "[]"
    else:
        yield _dumped(value)


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
