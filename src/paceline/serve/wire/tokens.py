"""The requests of POST /tokenize and /detokenize, in vLLM's forms."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag

from paceline.serve.wire.chat import Conversation
from paceline.serve.wire.common import Ids, Name, Text, Wire


class TokenizeText(Wire):
    """add_special_tokens: whether the text gets what the model expects around it, such as a BOS. return_token_strs: tell each
    token's text too."""

    model: Name | None = None
    prompt: Text
    add_special_tokens: bool = True
    return_token_strs: bool | None = None


class TokenizeConversation(Conversation):
    """A conversation as the model's template writes it, special tokens included."""

    model: Name | None = None
    add_special_tokens: Literal[False] | None = None
    return_token_strs: bool | None = None


def _form(body: Any) -> str:
    return "Conversation" if isinstance(body, dict) and "messages" in body else "Text"


TokenizeRequest = Annotated[
    Annotated[TokenizeText, Tag("Text")] | Annotated[TokenizeConversation, Tag("Conversation")], Discriminator(_form)
]


class DetokenizeRequest(Wire):
    """Token ids whose text is wanted, special tokens included."""

    model: Name | None = None
    tokens: Ids
