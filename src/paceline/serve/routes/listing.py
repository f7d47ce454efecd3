"""GET /v1/models, /v1/speculation and /version: what this server runs and what requests may choose."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from paceline.serve.asking import Service
from paceline.serve.settings import Settings
from paceline.serve.wire.common import REFUSALS, check_model
from paceline.version import __version__


def router(service: Service, settings: Settings) -> APIRouter:
    routes = APIRouter(tags=["listing"], responses=REFUSALS)

    def listed() -> dict[str, Any]:
        return {
            "id": service.model,
            "object": "model",
            "created": service.created,
            "owned_by": "paceline",
            "max_model_len": service.context_length,
        }

    @routes.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        """The one model that is served."""
        return {"object": "list", "data": [listed()]}

    # a served name may contain slashes, as names on the Hub do
    @routes.get("/v1/models/{model:path}")
    async def retrieve_model(model: str) -> dict[str, Any]:
        check_model(model, service.model)
        return listed()

    @routes.get("/v1/speculation")
    async def list_speculation() -> dict[str, Any]:
        """What can draft for a request, who decides how much is drafted, and how many requests are answered at once."""
        return {
            "model": service.model,
            "target": service.target,
            "default": list(service.default_drafters),
            "drafters": [_noted(service, name) for name in service.drafters],
            "policy": service.policy,
            "verifier": service.verifier,
            "has_chat_template": service.has_chat_template,
            "context_length": service.context_length,
            "batch": settings.batch,
        }

    @routes.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    return routes


def _noted(service: Service, name: str) -> dict[str, str]:
    summary, source = service.drafter_notes.get(name, ("", ""))
    return {"name": name, "summary": summary, "source": source}
