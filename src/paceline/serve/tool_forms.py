"""How a model writes the call of a tool as text: the few forms in use, and which of them a chat template speaks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Form:
    """The pieces of a call in the order they are written; a piece may be a token of its own in some vocabularies.

    opening, between, closing: before the first call, between two calls, behind the last. before, middle, after: around name and
    arguments. many: the model knows several calls in one answer. trigger: what tells a call from plain text; empty where a call
    is told by being all of the answer.
    """

    opening: tuple[str, ...] = ()
    before: str = '{"name": "'
    middle: str = '", "arguments": '
    after: str = "}"
    between: tuple[str, ...] = ()
    closing: tuple[str, ...] = ()
    many: bool = True

    @property
    def trigger(self) -> str:
        return self.opening[0] if self.opening else ""

    @property
    def markers(self) -> tuple[str, ...]:
        """Pieces that may be special tokens of a vocabulary."""
        pieces = (*self.opening, self.middle, *self.between, *self.closing)
        return tuple(dict.fromkeys(piece for piece in pieces if piece[:1] in "<[" and len(piece) > 1))


HERMES = Form(
    opening=("<tool_call>", "\n"),
    between=("\n", "</tool_call>", "\n", "<tool_call>", "\n"),
    closing=("\n", "</tool_call>"),
)
"""`<tool_call>{"name": ..., "arguments": ...}</tool_call>`, as Hermes and Qwen write it, and our own form where there is none."""

MISTRAL_LIST = Form(opening=("[TOOL_CALLS]", "["), between=(", ",), closing=("]",))
"""`[TOOL_CALLS][{"name": ..., "arguments": ...}]`: Mistral up to its seventh tokenizer."""

MISTRAL = Form(opening=("[TOOL_CALLS]",), before="", middle="[ARGS]", after="", between=("[TOOL_CALLS]",))
"""`[TOOL_CALLS]name[ARGS]{...}`: Mistral's newer ones."""

LLAMA = Form(middle='", "parameters": ', many=False)
"""`{"name": ..., "parameters": ...}` and nothing else: Llama 3, whose template takes one call at a time."""

PYTHON_TAG = "<|python_tag|>"
"""A token that Llama 3 may write before a call."""


_NOT_JSON = ("<arg_key>", "<function=")
"""Within the marks of Hermes, GLM and Qwen's coders write their arguments one by one."""


def form_of(template: str) -> Form | None:
    """The form that a chat template speaks, by the marks in its source; None for one that is not known here."""
    if "<tool_call>" in template:
        return None if any(mark in template for mark in _NOT_JSON) else HERMES
    if "[ARGS]" in template:
        return MISTRAL
    if "[TOOL_CALLS]" in template or "[AVAILABLE_TOOLS]" in template:
        return MISTRAL_LIST
    if PYTHON_TAG in template or '"parameters": dictionary of argument name' in template:
        return LLAMA
    return None
