"""Conversations with tools for templates that know none: what a model is told of its tools, and calls and results as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence as Many
from typing import Any

_TOLD = """You may call functions. These are their signatures, as JSON:
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


def knows_tools(template: str | None) -> bool:
    """Whether a template shows tools to the model."""
    return template is not None and "tools" in template


def spelled_out(messages: Many[Mapping[str, Any]], functions: Many[Mapping[str, Any]], *, must: bool) -> list[dict[str, Any]]:
    """The conversation in the roles that every template has.

    The tools go in front of the system message, or are one; calls become text of the assistant, results messages of the user.
    """
    told: list[dict[str, Any]] = []
    for message in messages:
        role, content = message["role"], message.get("content") or ""
        if role == "tool":
            content = f"<tool_response>\n{content}\n</tool_response>"
            if told and told[-1]["role"] == "user" and told[-1].pop("of_tools", False):
                told[-1]["content"] += "\n" + content
                told[-1]["of_tools"] = True
            else:
                told.append({"role": "user", "content": content, "of_tools": True})
        elif message.get("tool_calls"):
            calls = "\n".join(_call(call["function"]) for call in message["tool_calls"])
            told.append({"role": role, "content": f"{content}\n{calls}" if content else calls})
        else:
            told.append(dict(message))
    for message in told:
        message.pop("of_tools", None)
    if functions:
        listed = "\n".join(
            json.dumps({"type": "function", "function": _shown(function)}, ensure_ascii=False) for function in functions
        )
        text = _TOLD.format(tools=listed, rule=_MUST if must else _MAY)
        if told and told[0]["role"] == "system":
            told[0] = {**told[0], "content": f"{text}\n\n{told[0]['content']}"}
        else:
            told.insert(0, {"role": "system", "content": text})
    return told


def _shown(function: Mapping[str, Any]) -> dict[str, Any]:
    return {name: function[name] for name in ("name", "description", "parameters") if function.get(name) is not None}


def _call(function: Mapping[str, Any]) -> str:
    call = json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"
