"""Bodies of whole answers. Serializing log-probabilities takes seconds, so it runs in a thread and piece by piece, which lets the
event loop serve other streams in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence as Many
from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse

from paceline.serve.asking import Ask
from paceline.serve.written import pieces


async def whole(built: Callable[[], Any], asks: Many[Ask]) -> Response:
    """The response to `asks` as JSON. built: makes its content."""
    if all(ask.params.logprobs is None and ask.params.prompt_logprobs is None for ask in asks):
        return JSONResponse(built())
    content = await asyncio.to_thread(lambda: "".join(pieces(built())).encode())
    return Response(content, media_type="application/json")
