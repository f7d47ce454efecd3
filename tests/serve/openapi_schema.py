"""Validation against OpenAI's own API description, if it is available."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

from shared import DATA, WHY

DESCRIPTION = DATA / "openai-openapi.json"


def check(name: str, body: Any) -> None:
    """Fails if `body` does not match the schema `name`; skips if the description is not available."""
    errors = [f"{error.json_path}: {error.message}" for error in _validator(name).iter_errors(body)]
    assert not errors, errors


def check_completion(body: dict[str, Any]) -> None:
    """Like `check`, for text completions. The description forbids values that OpenAI itself sends: null for the log-probability
    of the first echoed token, and for the finish_reason of a chunk that is not the last."""
    body = json.loads(json.dumps(body))
    for choice in body["choices"]:
        choice["finish_reason"] = choice["finish_reason"] or "stop"
        told = choice["logprobs"]
        if told and told["token_logprobs"][:1] == [None]:
            assert told["top_logprobs"][0] is None
            told["token_logprobs"][0], told["top_logprobs"][0] = 0.0, {}
    if body.get("usage", ...) is None:
        del body["usage"]
    check("CreateCompletionResponse", body)


@functools.cache
def _validator(name: str) -> Any:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    schemas = _schemas()
    return jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}})


@functools.cache
def _schemas() -> dict[str, Any]:
    if not DESCRIPTION.is_file():
        pytest.skip(WHY)
    return _plain(json.loads(DESCRIPTION.read_text(encoding="utf-8"))["components"]["schemas"])


def _plain(schema: Any) -> Any:
    """OpenAPI's `nullable`, which JSON Schema lacks, rewritten as a union with null."""
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: _plain(value) for key, value in schema.items() if key != "nullable"}
    return {"anyOf": [plain, {"type": "null"}]} if schema.get("nullable") is True else plain
