"""One system message, at the beginning: a conversation again, for templates that refuse any other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Many
from typing import Any


def with_one_system(messages: Many[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The conversation with its leading system messages as one, and later ones in the user's turn beside them."""
    found: list[dict[str, Any]] = []
    was_late = False
    for message in messages:
        one, before = dict(message), found[-1] if found else None
        late = one["role"] == "system" and before is not None and before["role"] != "system"
        if late:
            one["role"] = "user"
        if before is not None and before["role"] == one["role"] and (late or was_late or one["role"] == "system"):
            before["content"] = "\n\n".join(filter(None, (before["content"], one["content"])))
        else:
            found.append(one)
        was_late = late
    return found
