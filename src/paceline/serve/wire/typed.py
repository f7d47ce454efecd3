"""Parts of a request with a `type` field, and fields that are either a text or a list or object."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from pydantic import BeforeValidator, Discriminator, model_validator

from paceline.serve.wire.common import Wire, printable, refusal


class OfType(Wire):
    """A part with a `type` field. known: the supported types; any other is refused by name. reasons: of some of those, why."""

    known: ClassVar[tuple[str, ...]] = ()
    reasons: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _is_known(cls, values: Any) -> Any:
        kind = values.get("type") if isinstance(values, dict) else None
        if isinstance(kind, str) and kind not in cls.known:
            none = f"there is no '{printable(kind)}' here, only {', '.join(cls.known)}"
            raise refusal("type", cls.reasons.get(kind, none))
        return values


_UNSEEN = "[an image or a file, which this model cannot see]"


def in_words(kinds: Collection[str], text: str) -> BeforeValidator:
    """Replaces parts of these types by words, in the results of tools: an agent's tool may show a picture that nobody asked for,
    and the whole conversation would be refused from then on. text: the type of a part that is text."""

    def replaced(parts: Any) -> Any:
        if not isinstance(parts, list):
            return parts
        words = {"type": text, "text": _UNSEEN}
        return [words if isinstance(part, dict) and part.get("type") in kinds else part for part in parts]

    return BeforeValidator(replaced)


def by_kind(said: str) -> Discriminator:
    """Discriminator of unions whose branches are tagged "str", "list" and "dict", so that errors are reported for the matching
    branch only. said: the error message if there is no such branch."""
    return Discriminator(_kind, custom_error_type="kind", custom_error_message=said)


def _kind(value: object) -> str:
    return "str" if isinstance(value, str) else "list" if isinstance(value, list) else "dict"
