"""How an error is told to a client, in the form of the API it speaks, and what becomes of errors nobody expected."""

from __future__ import annotations

import json
import logging
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.serve.errors import APIError, TooLong
from paceline.serve.recording import path_of

_ANTHROPIC_TYPES = {413: "request_too_large", 503: "overloaded_error"}
_CLOSING = (408, 431)
"""Whoever sent half a request is not waited for once more."""
_log = logging.getLogger(__name__)


def body_of(error: APIError, path: str) -> dict[str, Any]:
    """Anthropic's form under /v1/messages, else OpenAI's."""
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        message = error.anthropics if isinstance(error, TooLong) else error.message
        return {"type": "error", "error": {"type": _ANTHROPIC_TYPES.get(error.status, error.kind), "message": message}}
    return error.body


def response_of(error: APIError, path: str) -> Response:
    # ASCII only: a message may quote what a client sent, and half a surrogate pair has no UTF-8
    answer = Response(json.dumps(body_of(error, path)), error.status, error.headers, "application/json")
    if error.status == 401:
        answer.headers["WWW-Authenticate"] = "Bearer"
    if error.status in _CLOSING:
        answer.headers["Connection"] = "close"
    return answer


async def failed(request: Request, error: Exception) -> Response:
    """The answer to an error nobody expected; what it was is logged, not told."""
    return response_of(APIError(500, "the server failed to answer"), path_of(request.scope))


class Caught:
    """Answers what guards raise, and any exception at all; of one that is none of ours a client learns only that it was."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except APIError as error:
            answer = response_of(error, path_of(scope))
        except Exception as error:
            _log.error("a request failed", exc_info=error)
            answer = await failed(Request(scope), error)
        else:
            return
        # an answer that broke off stays incomplete: the server then cuts the connection, which is how a client can tell
        if not begun:
            await answer(scope, receive, send)
