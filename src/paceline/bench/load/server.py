"""Server: a server's description of itself, and token counts by its tokenizer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence as Many
from dataclasses import dataclass, field
from typing import Any

import httpx2

from paceline.bench.errors import BenchError
from paceline.bench.load.chunks import said

_LARGEST_BYTES, _LONGEST_S = 8 << 20, 30.0
_SPECULATION = ("target", "default", "policy", "verifier", "batch")
"""Fields kept of /v1/speculation, which only Paceline has."""


@dataclass(frozen=True)
class Server:
    """url: without /v1. context_tokens: of prompt and answer together. version: as it reports it. None if it does not report it.

    speculation: its target, drafters, verifier, policy, and number of requests in flight, as it reports them.
    """

    url: str
    model: str
    context_tokens: int | None = None
    version: str | None = None
    speculation: Mapping[str, Any] = field(default_factory=dict)


async def look(http: httpx2.AsyncClient, url: str, model: str | None) -> Server:
    """Query models and version. model: the first one listed if None. Raises BenchError if the models cannot be queried."""
    try:
        status, content = await _json(http, "GET", "/v1/models")
    except (httpx2.RequestError, TimeoutError) as error:
        raise BenchError(f"{url} does not answer: {str(error) or type(error).__name__}") from error
    listed = content.get("data") if status == 200 and isinstance(content, dict) else None
    entries = [entry for entry in _list(listed) if isinstance(entry, dict) and isinstance(entry.get("id"), str)]
    if model is None:
        if not entries:
            answer = said(content) or ("no model" if status == 200 else "")
            way_out = {401: "; give a key with --api-key", 403: ""}.get(status, "; name a model with --model")
            raise BenchError(f"{url}/v1/models: status {status}{f', {answer}' if answer else ''}{way_out}")
        model = str(entries[0]["id"])
    entry = next((entry for entry in entries if entry["id"] == model), {})
    longest = entry.get("max_model_len")
    version = (await _fetched(http, "/version")).get("version")
    speculation = await _fetched(http, "/v1/speculation")
    return Server(
        url,
        model,
        longest if isinstance(longest, int) and longest > 0 else None,
        version if isinstance(version, str) else None,
        {name: speculation[name] for name in _SPECULATION if name in speculation},
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


async def _fetched(http: httpx2.AsyncClient, path: str) -> dict[str, Any]:
    """The JSON object at a path; empty if the server does not have it."""
    try:
        status, content = await _json(http, "GET", path)
    except (httpx2.RequestError, TimeoutError):
        return {}
    return content if status == 200 and isinstance(content, dict) else {}


async def count_tokens(http: httpx2.AsyncClient, model: str, texts: Many[str]) -> list[int] | None:
    """Number of tokens of each text by the server's /tokenize, in the form of vLLM and Paceline or of llama.cpp; None without."""
    for form in ({"model": model, "add_special_tokens": False}, {"add_special": False}):
        name = "prompt" if "model" in form else "content"
        counts: list[int] = []
        for text in texts:
            # replace unpaired surrogates, which JSON can express and UTF-8 cannot
            sent = text.encode("utf-8", "replace").decode()
            try:
                status, content = await _json(http, "POST", "/tokenize", {**form, name: sent})
            except (httpx2.RequestError, TimeoutError):
                return None
            tokens = content.get("tokens") if status == 200 and isinstance(content, dict) else None
            if not isinstance(tokens, list):
                break
            counts.append(len(tokens))
        else:
            return counts
    return None


async def _json(http: httpx2.AsyncClient, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Status and content of a response; the content is None if it is not JSON or too large."""
    async with asyncio.timeout(_LONGEST_S), http.stream(method, path, json=body) as response:
        content = b""
        async for piece in response.aiter_bytes():
            content += piece
            if len(content) > _LARGEST_BYTES:
                return response.status_code, None
        try:
            return response.status_code, json.loads(content)
        except (ValueError, RecursionError):
            return response.status_code, None
