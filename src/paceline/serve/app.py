"""The application: its routes, and error responses in the format that the clients of each API expect."""

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
    """The routes and their error handlers, without the guards."""
    # FastAPI's documentation pages load scripts from other hosts, so /docs is our own page
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
        # the first call takes a second or two, which must not block streams
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
