"""Text forms of tool calls: the few in use, and which of them a chat template uses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Form:
    """The pieces of a call in the order they are written; in some vocabularies a piece is a special token.

    opening, between, closing: before the first call, between two calls, after the last. before, middle, after: around name and
    arguments. many: one answer may have several calls. trigger: text that marks a call; empty if a call is recognized by being
    the whole answer.
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
"""`<tool_call>{"name": ..., "arguments": ...}</tool_call>`, as Hermes and Qwen write it; also used for models without a form."""

MISTRAL_LIST = Form(opening=("[TOOL_CALLS]", "["), between=(", ",), closing=("]",))
"""`[TOOL_CALLS][{"name": ..., "arguments": ...}]`: Mistral up to its seventh tokenizer."""

MISTRAL = Form(opening=("[TOOL_CALLS]",), before="", middle="[ARGS]", after="", between=("[TOOL_CALLS]",))
"""`[TOOL_CALLS]name[ARGS]{...}`: Mistral's newer ones."""

LLAMA = Form(middle='", "parameters": ', many=False)
"""`{"name": ..., "parameters": ...}` and nothing else: Llama 3, whose template takes one call at a time."""

PYTHON_TAG = "<|python_tag|>"
"""A token that Llama 3 may write before a call."""


_NOT_JSON = ("<arg_key>", "<function=")
"""GLM and Qwen's coder models use the marks of Hermes, but write the arguments one by one instead of as JSON."""


def form_of(template: str) -> Form | None:
    """The form that a chat template uses, recognized by the marks in its source; None if it is unknown."""
    if "<tool_call>" in template:
        return None if any(mark in template for mark in _NOT_JSON) else HERMES
    if "[ARGS]" in template:
        return MISTRAL
    if "[TOOL_CALLS]" in template or "[AVAILABLE_TOOLS]" in template:
        return MISTRAL_LIST
    if PYTHON_TAG in template or '"parameters": dictionary of argument name' in template:
        return LLAMA
    return None
