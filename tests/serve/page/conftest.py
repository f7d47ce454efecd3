"""The page over `WordService`, in one browser for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from fastapi import Request
from fastapi.responses import JSONResponse

from paceline.serve.app import application
from paceline.serve.errors import APIError
from paceline.serve.routes import chat, completions, listing, messages, page, responses, tokens
from paceline.serve.settings import Settings
from serve.page.words import WordService, listening

if TYPE_CHECKING:
    from serve.page.browser import Browser

ROUTERS = tuple(one.router for one in (completions, chat, messages, responses, tokens, listing, page))


@pytest.fixture(scope="package")
def service() -> WordService:
    return WordService()


@pytest.fixture(scope="package")
def tab(service: WordService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    # imported only here, since the tests of files need no browser
    from serve.page.browser import browsing

    app = application(one(service, Settings()) for one in ROUTERS)

    @app.middleware("http")
    async def locked(request: Request, go_on):
        shown = request.headers.get("authorization")
        guarded = request.url.path.startswith("/v1/") or request.url.path == "/openapi.json"
        if service.model == "locked" and guarded and shown != "Bearer right-key":
            error = APIError(401, "the API key is missing or wrong")
            return JSONResponse(error.body, 401)
        return await go_on(request)

    with listening(app) as address, browsing(address, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def opened(tab: Browser, service: WordService) -> Iterator[Browser]:
    """The opened page. Afterwards: the console is empty, and every request went to the page's origin."""
    from serve.page.live import READY

    service.reset()
    tab.complaints()
    tab.open()
    tab.until(READY)
    yield tab
    assert tab.complaints() == []
    assert {url for url in tab.requested() if not url.startswith((f"{tab.address}/", "data:"))} == set()
