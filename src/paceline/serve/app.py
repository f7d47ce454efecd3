"""The application: routes over a service, and errors in the form that the clients of each API read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from paceline.serve.errors import APIError
from paceline.serve.recording import path_of
from paceline.serve.refusals import response_of
from paceline.serve.wire.common import explained
from paceline.version import __version__

_QUOTED_CHARS = 100


def application(routers: Iterable[APIRouter]) -> FastAPI:
    """The routes and how their errors are told; nothing guards them yet."""
    # the pages that FastAPI makes of the schema load their scripts from elsewhere: /docs is one of ours
    app = FastAPI(
        title="Paceline",
        version=__version__,
        summary="An OpenAI-compatible server whose drafts never change a word",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    for router in routers:
        app.include_router(router)

    async def schema(request: Request) -> Response:
        # to make it takes a second or two, once, for which no stream should stop
        made, root = await asyncio.to_thread(app.openapi), request.scope.get("root_path", "").rstrip("/")
        return JSONResponse({**made, "servers": [{"url": root}]} if root else made)

    app.add_route("/openapi.json", schema, include_in_schema=False)

    @app.exception_handler(APIError)
    async def refused(request: Request, error: APIError) -> Response:
        return response_of(error, path_of(request.scope))

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        return response_of(explained(error.errors()), path_of(request.scope))

    @app.exception_handler(HTTPException)
    async def unrouted(request: Request, error: HTTPException) -> Response:
        path = path_of(request.scope)
        known = {404: f"there is no {path[:_QUOTED_CHARS]} here", 405: f"{path} does not take {request.method}"}
        answer = response_of(APIError(error.status_code, known.get(error.status_code, str(error.detail))), path)
        answer.headers.update(error.headers or {})
        return answer

    return app
