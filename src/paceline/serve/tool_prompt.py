"""Conversations with tools for templates without tool support: tools are described in the prompt, calls and results are text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence as Many
from typing import Any

_TOOLS_TEXT = """You may call functions. These are their signatures, as JSON:
<tools>
{tools}
</tools>
To call one, write only this, with its arguments as a JSON object:
<tool_call>
{{"name": "the function's name", "arguments": {{}}}}
</tool_call>
{rule}"""
_MAY = "Where no function helps, answer in plain text."
_MUST = "Answer with a call."


_SHOWN = re.compile(r"""(?<![\w.'"])tools(?![\w'"])""")
"""The variable `tools`, but not a message's field of that name, which Phi-4-mini's template has."""
_SHORT = "Tool call IDs should be alphanumeric strings with length 9"
_NO_SYSTEM = "System role not supported"
"""The error that the templates of Gemma 1 and 2, and those derived from them, raise for a system message."""


def knows_tools(template: str | None) -> bool:
    """Whether a template shows tools to the model."""
    return template is not None and _SHOWN.search(template) is not None


def has_system(template: str | None) -> bool:
    """Whether a template takes a system message."""
    return template is None or _NO_SYSTEM not in template


def wants_short_ids(template: str | None) -> bool:
    """Whether a template refuses call ids that are not nine letters and digits, as Mistral's do."""
    return template is not None and _SHORT in template


def spelled_out(
    messages: Many[Mapping[str, Any]], functions: Many[Mapping[str, Any]], *, must: bool, system: bool = True
) -> list[dict[str, Any]]:
    """The conversation in the roles that every template has.

    The tools' description goes in front of the system message, or is a new one; if the template takes none (`system` False), it
    goes in front of the first user message. Calls become assistant text. Results become a user message, joined with the user
    message that follows, since some templates require alternating roles.
    """
    conversation: list[dict[str, Any]] = []
    # results of consecutive calls: the content of the last message, once all of them are read
    results: list[str] = []
    for message in messages:
        role, content = message["role"], message.get("content") or ""
        if role == "tool":
            if not results:
                conversation.append({"role": "user"})
            results.append(f"<tool_response>\n{content}\n</tool_response>")
            continue
        if results:
            asked = role == "user"
            conversation[-1]["content"] = "\n".join([*results, content] if asked else results)
            results.clear()
            if asked:
                continue
        if message.get("tool_calls"):
            calls = "\n".join(_call(call["function"]) for call in message["tool_calls"])
            conversation.append({"role": role, "content": f"{content}\n{calls}" if content else calls})
        else:
            conversation.append(dict(message))
    if results:
        conversation[-1]["content"] = "\n".join(results)
    if functions:
        listed = "\n".join(
            json.dumps({"type": "function", "function": _shown(function)}, ensure_ascii=False) for function in functions
        )
        text = _TOOLS_TEXT.format(tools=listed, rule=_MUST if must else _MAY)
        if conversation and conversation[0]["role"] == ("system" if system else "user"):
            conversation[0] = {**conversation[0], "content": f"{text}\n\n{conversation[0]['content']}"}
        else:
            conversation.insert(0, {"role": "system" if system else "user", "content": text})
    return conversation


def _shown(function: Mapping[str, Any]) -> dict[str, Any]:
    return {name: function[name] for name in ("name", "description", "parameters") if function.get(name) is not None}


def _call(function: Mapping[str, Any]) -> str:
    call = json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"
