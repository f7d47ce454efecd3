"""Fields of the requests that generate: sampling, speculation, structured output, streams, each with its bounds."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from paceline.params import Finite, TokenId
from paceline.serve.errors import invalid
from paceline.serve.wire.common import Entries, Name, Seed, Text, Wire, misfit, refusal, up_to
from paceline.serve.wire.typed import OfType

Metadata = Annotated[dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Entries(16)]


class StreamOptions(Wire):
    """include_usage: a last chunk tells the usage. continuous_usage_stats: every chunk does. Obfuscation is never added."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class Speculating(Wire):
    """How this request is drafted for; it changes how fast the answer comes, never the answer.

    drafter: names joined by "+", a list of them, or "none". budget: most drafted tokens a step. off: as drafter "none". trace: a
    stream reports what every step drafted.
    """

    drafter: Annotated[str, Field(max_length=256)] | Annotated[list[Name], up_to(16)] | None = None
    budget: Annotated[int, Field(ge=0, le=64)] | None = None
    off: bool = False
    trace: bool = False

    def names(self, offered: Many[str]) -> tuple[str, ...] | None:
        """Drafters that may draft; None for the server's default. Raises APIError if one is not offered."""
        if self.off or self.drafter in ("none", [], ["none"]):
            return ()
        if self.drafter is None:
            return None
        if isinstance(self.drafter, str):
            # a combination that is offered as one drafter has its own name, which may contain "+"
            names = [self.drafter] if self.drafter in offered else self.drafter.split("+")
        else:
            names = self.drafter
        for name in names:
            if name not in offered:
                there = ", ".join(offered) or "none"
                raise invalid(f"'{name}' is not a drafter of this server; it offers: {there}", "speculation.drafter")
        return tuple(dict.fromkeys(names))


class CacheControl(Wire):
    """A hint that changes nothing: what prompts have in common is always kept."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    scope: Name | None = None


class TextPart(OfType):
    """A part of a content; it is text, and any other type (images, audio, files) is refused by name."""

    known: ClassVar = ("text",)

    type: Literal["text"]
    text: Text
    cache_control: CacheControl | None = None


class Prediction(Wire):
    """What the answer is expected to be; tokens of it are drafted."""

    type: Literal["content"]
    content: Text | Annotated[list[TextPart], up_to(1024)]

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class StructuredOutputs(Wire):
    """What the answer must match: exactly one of them. json: a schema, as an object or as its text."""

    regex: Annotated[str, Field(max_length=65536)] | None = None
    grammar: Annotated[str, Field(max_length=65536)] | None = None
    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    choice: Annotated[list[Annotated[str, Field(min_length=1, max_length=4096)]], up_to(256, least=1)] | None = None


class Extensions(Wire):
    """Fields beside those of OpenAI's and Anthropic's APIs, by the names that clients of other open servers send."""

    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[Finite, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[Finite, Field(ge=0.01, le=100)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=2**24)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[TokenId], up_to(1024)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    cache_salt: Annotated[str, Field(max_length=256)] | None = None
    stream: bool | None = None
    speculation: Speculating | None = None
    prediction: Prediction | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | Annotated[str, Field(max_length=65536)] | None = None
    guided_regex: Annotated[str, Field(max_length=65536)] | None = None
    guided_grammar: Annotated[str, Field(max_length=65536)] | None = None
    guided_decoding_backend: Name | None = None
    guided_choice: Annotated[list[Annotated[str, Field(min_length=1, max_length=4096)]], up_to(256, least=1)] | None = None

    @model_validator(mode="after")
    def _traced(self) -> Extensions:
        if self.speculation is not None and self.speculation.trace and not self.stream:
            raise misfit("speculation.trace", "needs 'stream' to be true")
        return self


class SchemaFormat(Wire):
    """A JSON schema that the answer keeps to; it always does, whatever `strict` says."""

    name: Name
    description: Text | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Wire):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None

    @model_validator(mode="after")
    def _coherent(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise misfit("json_schema", "belongs to the type 'json_schema', which needs it")
        return self


class Generation(Extensions):
    """What chat and text completions have in common. Fields that change nothing here (user, metadata, ...) are accepted."""

    model: Name | None = None
    temperature: Annotated[Finite, Field(ge=0, le=100)] | None = None
    top_p: Annotated[Finite, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[Finite, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Finite, Field(ge=-2, le=2)] | None = None
    logit_bias: (
        Annotated[
            dict[Annotated[str, Field(pattern=r"^[0-9]{1,10}$")], Annotated[Finite, Field(ge=-100, le=100)]],
            Entries(4096),
        ]
        | None
    ) = None
    seed: Seed = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: Annotated[str, Field(max_length=1024)] | Annotated[list[Annotated[str, Field(max_length=1024)]], up_to(64)] | None = (
        None
    )
    max_tokens: Annotated[int, Field(ge=0, le=2**31)] | None = None
    response_format: ResponseFormat | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    return_token_ids: bool | None = None
    stream_options: StreamOptions | None = None

    spaces_between_special_tokens: bool | None = None
    user: Annotated[str, Field(max_length=4096)] | None = None
    metadata: Metadata | None = None
    store: bool | None = None
    service_tier: Name | None = None
    safety_identifier: Annotated[str, Field(max_length=4096)] | None = None
    prompt_cache_key: Annotated[str, Field(max_length=4096)] | None = None
    prompt_cache_retention: Name | None = None

    @model_validator(mode="after")
    def _coherent(self) -> Generation:
        if self.stream_options is not None and not self.stream:
            raise misfit("stream_options", "needs 'stream' to be true")
        if self.store:
            raise refusal("store", "nothing is stored here")
        if self.service_tier not in (None, "auto", "default"):
            raise refusal("service_tier", "there is one tier, 'default'")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(given)


FOREIGN = {
    "use_beam_search": "answers are sampled",
    "length_penalty": "it belongs to beam search",
    "chat_template": "templates come from the model alone",
    "documents": "put them into the messages",
    "truncate_prompt_tokens": "shorten the prompt before it is sent",
    "allowed_token_ids": "use logit_bias or a grammar",
    "bad_words": "use logit_bias",
    "logits_processors": "no code is taken from a request",
    "guided_whitespace_pattern": "write it into the grammar",
    "thinking_token_budget": "thoughts are not bounded apart from the answer: use max_tokens",
    "lora": "there are no adapters",
}
"""Fields of other open servers that are refused with a reason instead of as unknown."""
