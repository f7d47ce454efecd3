"""The application: routes over a service, errors in the form that the clients of each API read, guards around all of it."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from paceline.serve.errors import APIError, invalid
from paceline.version import __version__


def application(routers: Iterable[APIRouter]) -> FastAPI:
    """The routes and how their errors are told; nothing guards them yet."""
    # the pages that FastAPI makes of the schema load their scripts from elsewhere: a browser here finds the schema itself
    app = FastAPI(
        title="Paceline",
        version=__version__,
        summary="An OpenAI-compatible server whose drafts never change a word",
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    for router in routers:
        app.include_router(router)

    @app.exception_handler(APIError)
    async def refused(request: Request, error: APIError) -> Response:
        return told(error)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return told(invalid(f"{'.'.join(map(str, first['loc']))}: {first['msg']}"))

    @app.exception_handler(HTTPException)
    async def unrouted(request: Request, error: HTTPException) -> Response:
        known = {404: f"there is no {request.url.path} here", 405: f"{request.url.path} does not take {request.method}"}
        answer = told(APIError(error.status_code, known.get(error.status_code, str(error.detail))))
        answer.headers.update(error.headers or {})
        return answer

    return app


def told(error: APIError) -> JSONResponse:
    """OpenAI's form."""
    return JSONResponse(error.body, error.status, headers=error.headers)
