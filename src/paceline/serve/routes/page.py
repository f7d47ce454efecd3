"""GET /, /docs and /page/...: the live page and the API page."""

from __future__ import annotations

import hashlib
from importlib.resources import files

from fastapi import APIRouter, Request, Response

from paceline.serve.asking import Service
from paceline.serve.errors import APIError
from paceline.serve.settings import Settings

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
}
_FRONT, _DOCS = "index.html", "api.html"


def router(service: Service, settings: Settings) -> APIRouter:
    """The files are read once, here; any other name is 404, so a path cannot lead outside of the folder."""
    routes = APIRouter(include_in_schema=False)
    folder = files("paceline.serve") / "page"
    known = {
        one.name: (one.read_bytes(), media)
        for one in folder.iterdir()
        if (media := _TYPES.get(one.name.rpartition(".")[2])) is not None
    }

    def served(request: Request, name: str) -> Response:
        content, media = known[name]
        # revalidated each time (304 while this version is served), so a page never mixes files of two versions
        headers = {"Cache-Control": "no-cache", "ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"'}
        if _matches(request.headers.get("if-none-match", ""), headers["ETag"]):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=media)

    @routes.api_route("/", methods=["GET", "HEAD"])
    async def front(request: Request) -> Response:
        return served(request, _FRONT)

    @routes.api_route("/docs", methods=["GET", "HEAD"])
    async def docs(request: Request) -> Response:
        return served(request, _DOCS)

    @routes.api_route("/page/{name}", methods=["GET", "HEAD"])
    async def file(request: Request, name: str) -> Response:
        if name not in known or name in (_FRONT, _DOCS):
            raise APIError(404, "the page has no such file")
        return served(request, name)

    return routes


def _matches(shown: str, tag: str) -> bool:
    """Whether If-None-Match has this version's tag; a proxy that compresses turns it into a weak tag (W/)."""
    return any(one.strip().removeprefix("W/") in (tag, "*") for one in shown.split(","))
