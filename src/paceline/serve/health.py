"""GET /health: whether the server can answer now, for load balancers and the people who start it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel

State = Literal["ok", "restarting", "draining"]
_RETRY_AFTER_S = 2


class Health(BaseModel):
    """status: "ok" with 200; with 503 what it is doing instead."""

    status: State


def router(state: Callable[[], State]) -> APIRouter:
    """state: returns the server's current state."""
    routes = APIRouter(tags=["operations"])

    @routes.head("/health", include_in_schema=False)
    @routes.get("/health", response_model=Health, responses={503: {"model": Health}})
    async def health() -> JSONResponse:
        now = state()
        if now == "ok":
            return JSONResponse({"status": now})
        return JSONResponse({"status": now}, 503, {"Retry-After": str(_RETRY_AFTER_S)})

    return routes
