"""Common to all request bodies: strict types, and errors of one sentence that names the field."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence as Many
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from paceline.errors import validators_words
from paceline.params import TokenId
from paceline.serve.bodies import flaw
from paceline.serve.errors import APIError, invalid


def up_to(most: int, *, least: int | None = None) -> Any:
    """Bounds the items of a list. Only the first bad item is reported: an error costs far more time and memory than its item, and
    a body may hold a million bad items."""
    return Field(min_length=least, max_length=most, fail_fast=True)


@dataclass(frozen=True)
class Entries:
    """Bounds the entries of a mapping. They are counted before validation, which would make an error for each bad entry."""

    most: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        assert schema["type"] == "dict"
        # for the OpenAPI page
        schema["max_length"] = self.most
        return core_schema.no_info_before_validator_function(self._counted, schema)

    def _counted(self, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > self.most:
            raise PydanticCustomError("too_long", "should have at most {most} entries", {"most": self.most})
        return value


def _or_drawn(seed: int | None) -> int | None:
    return None if seed == -1 else seed


Seed = Annotated[Annotated[int, Field(ge=-(2**63), lt=2**64)] | None, AfterValidator(_or_drawn)]
"""Clients of other open servers send -1 for one that is drawn."""
Name = Annotated[str, Field(max_length=256)]
Text = Annotated[str, Field(max_length=1 << 22)]
Ids = Annotated[list[TokenId], up_to(1 << 20)]

_FIELD = re.compile(r"[a-z_][a-z0-9_]*\Z")
_BRANCHES = frozenset({"str", "int", "float", "bool", "dict", "list", "none"})
"""Names of union branches that pydantic adds to the location of an error; no field has such a name."""


class Wire(BaseModel):
    """Part of a request. `unsupported`: fields of other servers that this one lacks -> why. With a value without effect they are
    ignored, as is every field that is null, since clients send null for fields that are newer than this server."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)
    unsupported: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _supported(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        if None in values.values():
            values = {name: value for name, value in values.items() if value is not None}
        for name, reason in cls.unsupported.items():
            if not _is_off(name, values.get(name)):
                raise refusal(name, reason)
        if len(values) > len(cls.__pydantic_fields__) + len(cls.unsupported):
            # some are unknown: report one of them, while pydantic would make an error for each
            known = {field.alias or name for name, field in cls.__pydantic_fields__.items()} | cls.unsupported.keys()
            stranger = next(name for name in values if name not in known)
            raise PydanticCustomError("unknown", "unknown field '{param}'", {"param": printable(stranger)})
        return {name: value for name, value in values.items() if name not in cls.unsupported} if cls.unsupported else values


_OFF: Mapping[str, Any] = {"n": 1, "best_of": 1, "length_penalty": 1.0, "include_reasoning": True, "function_call": "none"}
"""Values of unsupported fields that have no effect: clients that send all of vLLM's or OpenAI's defaults send these."""


def _is_off(name: str, value: Any) -> bool:
    if name in _OFF:
        return value in (None, _OFF[name])
    # `is`, since 0 == False, but 0 is a value with an effect
    return value is None or value is False or value in ("", [])


def refusal(name: str, reason: str) -> PydanticCustomError:
    """For validators: '`name` is not supported: `reason`'."""
    return PydanticCustomError("unsupported", "'{param}' is not supported: {reason}", {"param": name, "reason": reason})


def misfit(name: str, reason: str) -> PydanticCustomError:
    """For validators: '`name` `reason`', of a field that does not fit another."""
    return PydanticCustomError("misfit", "'{param}' {reason}", {"param": name, "reason": reason})


def check_model(name: str | None, served: str) -> None:
    """Raises APIError (404) for a model that is not served; None stands for the one that is."""
    if name is not None and name != served:
        message = f"the model '{printable(name)}' does not exist; this server has '{served}'"
        raise APIError(404, message, param="model", code="model_not_found")


def explained(errors: Many[Mapping[str, Any]]) -> APIError:
    """400 in one sentence from pydantic's or FastAPI's errors of a body: the one with the deepest location, as most specific."""
    first = max(errors, key=lambda error: len(error["loc"]))
    kind, context = str(first["type"]), first.get("ctx") or {}
    place = [part for part in first["loc"] if part != "body"]
    if kind == "json_invalid":
        return invalid("the body is not valid JSON")
    if kind == "extra_forbidden":
        param = _joined(_path(place[:-1]), printable(place[-1]))
        return invalid(f"unknown field '{param}'", param)
    param = _joined(_path(place), str(context.get("param") or ""))
    if kind == "string_unicode" and not param:
        return invalid("a field's name is not valid Unicode")
    if not param:
        return invalid("the body must be a JSON object (Content-Type: application/json)")
    if kind == "unknown":
        return invalid(f"unknown field '{param}'", param)
    if kind == "missing":
        return invalid(f"'{param}' is missing", param)
    if kind == "unsupported":
        return invalid(f"'{param}' is not supported: {context['reason']}", param)
    if kind == "misfit":
        return invalid(f"'{param}' {context['reason']}", param)
    said = validators_words(str(first["msg"])).removeprefix("Input ")
    return invalid(f"'{param}' {said}" if said[:1].islower() else f"'{param}': {said[:1].lower()}{said[1:]}", param)


def printable(name: object) -> str:
    """Text of a client, shortened, and escaped to ASCII."""
    return str(name)[:64].encode("ascii", "backslashreplace").decode()


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name


def _path(place: Many[int | str]) -> str:
    path = ""
    for part in place:
        if isinstance(part, int):
            path += f"[{part}]"
        elif _FIELD.match(part) and part not in _BRANCHES:
            path = _joined(path, part)
    return path


_DEEPEST = 256
"""Most levels of a call's arguments, as of a body."""


def arguments(text: str) -> dict[str, Any] | str:
    """A call's arguments as chat templates need them, an object; text that is not one, such as that of a call that was cut off,
    is returned as it is, and so is one that is too deep to be written again."""
    if flaw(text.encode(), _DEEPEST):
        return text
    try:
        read = json.loads(text) if text else {}
    except ValueError:
        return text
    return read if isinstance(read, dict) else text


class ErrorTold(BaseModel):
    """What an error says, as OpenAI writes it."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    error: ErrorTold


REFUSALS: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}}
"""For the OpenAPI schema: the body of every error status."""
STREAMS: dict[int | str, dict[str, Any]] = {
    **REFUSALS,
    200: {"content": {"application/json": {}, "text/event-stream": {}}, "description": "The answer, or its stream."},
}
