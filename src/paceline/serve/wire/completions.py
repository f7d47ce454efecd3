"""The request of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Discriminator, Field, Tag, model_validator

from paceline.serve.wire.common import Ids, Text, refusal, up_to
from paceline.serve.wire.generation import FOREIGN, Generation

_PROMPTS = 1024


def _form(prompt: Any) -> str:
    """Which of the four forms a prompt has, so that an error in it is reported for this form only."""
    if isinstance(prompt, list) and prompt:
        return {str: "Texts", list: "Lists"}.get(type(prompt[0]), "Tokens")
    return "Texts" if isinstance(prompt, list) else "Text"


Prompt = Annotated[
    Annotated[Text, Tag("Text")]
    | Annotated[list[Text], up_to(_PROMPTS, least=1), Tag("Texts")]
    | Annotated[Ids, Field(min_length=1), Tag("Tokens")]
    | Annotated[list[Annotated[Ids, Field(min_length=1)]], up_to(_PROMPTS, least=1), Tag("Lists")],
    Discriminator(_form),
]


class CompletionRequest(Generation):
    """A text that the model continues. Without max_tokens, 16 tokens; with 0 and `echo`, the prompt alone.

    prompt: a text, several, token ids, or several lists of them. logprobs: of each token, and of so many of the likeliest.
    add_special_tokens: whether texts get what the model expects around them, such as a BOS.
    """

    unsupported: ClassVar = FOREIGN | {
        "suffix": "the text is continued, not filled in",
        "chat_template_kwargs": "there is no template here",
    }

    prompt: Prompt
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: Annotated[int, Field(ge=0, le=128)] | None = None
    add_special_tokens: bool = True

    @model_validator(mode="after")
    def _ranked(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise refusal("best_of", "choices are not ranked; it may only equal 'n'")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [[one for one in self.prompt if isinstance(one, int)]]
        return [one for one in self.prompt if not isinstance(one, int)]
