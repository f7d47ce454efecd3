"""Error responses in the format of the client's API, and the handling of unexpected exceptions."""

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
"""After these statuses the connection closes: the request was not read to its end."""
_log = logging.getLogger(__name__)


def body_of(error: APIError, path: str) -> dict[str, Any]:
    """In Anthropic's format under /v1/messages, else in OpenAI's."""
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        message = error.anthropics if isinstance(error, TooLong) else error.message
        told: dict[str, Any] = {"type": _ANTHROPIC_TYPES.get(error.status, error.kind), "message": message}
        if error.param == "thread":
            # its clients then send the request again without
            told["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
        return {"type": "error", "error": told}
    return error.body


def response_of(error: APIError, path: str) -> Response:
    # ASCII only: a message may quote the client, and UTF-8 cannot encode an unpaired surrogate
    answer = Response(json.dumps(body_of(error, path)), error.status, error.headers, "application/json")
    if error.status == 401:
        answer.headers["WWW-Authenticate"] = "Bearer"
    if error.status in _CLOSING:
        answer.headers["Connection"] = "close"
    return answer


async def failed(request: Request, error: Exception) -> Response:
    """The response to an unexpected exception; its details are only logged."""
    return response_of(APIError(500, "the server failed to answer"), path_of(request.scope))


class Caught:
    """Turns exceptions into responses: an APIError of the guards as it is, any other exception without details."""

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
        # a response that broke off stays incomplete: the server then closes the connection, which shows the client the error
        if not begun:
            await answer(scope, receive, send)
