"""Parts of a request that say their type, and fields that are a text or something with parts."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Discriminator, model_validator

from paceline.serve.wire.common import Wire, printable, refusal


class OfType(Wire):
    """Something that says its type. known: the types there are; every other is refused by name."""

    known: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _is_known(cls, values: Any) -> Any:
        kind = values.get("type") if isinstance(values, dict) else None
        if isinstance(kind, str) and kind not in cls.known:
            raise refusal("type", f"there is no '{printable(kind)}' here, only {', '.join(cls.known)}")
        return values


def by_kind(said: str) -> Discriminator:
    """For unions whose branches are tagged "str", "list" and "dict": what is wrong with a text, or with a list, is then said of
    that alone. said: what it must be, where there is no such branch."""
    return Discriminator(_kind, custom_error_type="kind", custom_error_message=said)


def _kind(value: object) -> str:
    return "str" if isinstance(value, str) else "list" if isinstance(value, list) else "dict"
