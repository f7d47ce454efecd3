"""Server: what a server says of itself, and tokens as it counts them."""

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
"""What is kept of Paceline's own /v1/speculation; other servers have no such thing."""


@dataclass(frozen=True)
class Server:
    """url: without /v1. context_tokens: of prompt and answer together. version: its own word. None where it does not say.

    speculation: what it says of who drafts, verifies and decides there, and of how many requests it answers at once.
    """

    url: str
    model: str
    context_tokens: int | None = None
    version: str | None = None
    speculation: Mapping[str, Any] = field(default_factory=dict)


async def look(http: httpx2.AsyncClient, url: str, model: str | None) -> Server:
    """Ask for the models and the version. model: the first one listed if None. Raises BenchError where that is not answered."""
    try:
        status, content = await _json(http, "GET", "/v1/models")
    except (httpx2.RequestError, TimeoutError) as error:
        raise BenchError(f"{url} does not answer: {str(error) or type(error).__name__}") from error
    listed = content.get("data") if status == 200 and isinstance(content, dict) else None
    entries = [entry for entry in _list(listed) if isinstance(entry, dict) and isinstance(entry.get("id"), str)]
    if model is None:
        if not entries:
            answer = said(content) or ("no model" if status == 200 else "")
            raise BenchError(f"{url}/v1/models: status {status}{f', {answer}' if answer else ''}; name one with --model")
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
    """What a server answers there; empty where it has no such place."""
    try:
        status, content = await _json(http, "GET", path)
    except (httpx2.RequestError, TimeoutError):
        return {}
    return content if status == 200 and isinstance(content, dict) else {}


async def count_tokens(http: httpx2.AsyncClient, model: str, texts: Many[str]) -> list[int] | None:
    """The tokens of each text by the server's /tokenize, as vLLM and Paceline or as llama.cpp have it; None where it has none."""
    for form in ({"model": model, "add_special_tokens": False}, {"add_special": False}):
        name = "prompt" if "model" in form else "content"
        counts: list[int] = []
        for text in texts:
            # half of a surrogate pair, which JSON can hold and UTF-8 cannot
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
    """Status and content of an answer; None for what is not JSON or too large."""
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
