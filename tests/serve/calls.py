"""A tool as clients name it, calls of it, and an answer that calls it."""

from __future__ import annotations

LOOK = {
    "type": "function",
    "name": "look",
    "description": "look at it",
    "parameters": {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]},
    "strict": True,
}
LOOK_CALL = {"type": "function", "function": {"name": "look", "arguments": '{"at": [1]}'}, "id": "call_1"}
"""A call in an earlier answer, as OpenAI's chat clients send it back."""
CALLS = (
    'Well.\n<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "look", "arguments": {"at": 23}}\n</tool_call>'
)
