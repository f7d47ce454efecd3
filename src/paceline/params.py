"""SamplingParams: how one request is sampled, checked before anything is done with it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

Finite = Annotated[float, Field(allow_inf_nan=False)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
LONGEST_GRAMMAR = 1 << 18
"""Characters. The grammar of an answer that may call tools holds the schemas of all of them."""
LEAST_TEMPERATURE = 1e-6
"""Except for 0: logits divided by less would overflow float32, and several tokens be infinitely likely."""


def _divisible(temperature: float) -> float:
    if 0.0 < temperature < LEAST_TEMPERATURE:
        raise ValueError("must be 0 (greedy) or at least 1e-6")
    return temperature


def _texts(stop: Any) -> Any:
    return (stop,) if isinstance(stop, str) else stop


class Grammar(BaseModel):
    """A grammar that constrains an answer. Immutable.

    kind: a JSON schema, a regular expression, or a grammar in llguidance's dialect of Lark.
    text: the schema as JSON, the regular expression or the grammar.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["json_schema", "regex", "lark"]
    text: Annotated[str, Field(min_length=1, max_length=LONGEST_GRAMMAR)]


class SamplingParams(BaseModel):
    """How one request is sampled. Immutable; out-of-range, infinite or unknown fields raise pydantic.ValidationError.

    max_tokens: maximum number of generated tokens.
    temperature: divides the logits; 0 is greedy decoding.
    top_k: sample from the k likeliest tokens; 0 disables it.
    top_p: nucleus sampling, from the smallest set of tokens with this total probability; 1 disables it.
    min_p: drop tokens below this fraction of the top token's probability; 0 disables it.
    repetition_penalty: above 1, makes tokens of the prompt and the answer less likely, as in transformers; 1 disables it.
    presence_penalty: subtracted from the logit of every token that the answer already contains; 0 disables it.
    frequency_penalty: the same, times the number of occurrences; 0 disables it.
    logit_bias: token id to what is added to its logit.
    min_tokens: no EOS and no token of `stop_token_ids` is sampled among the first `min_tokens` tokens, unless a grammar allows
    nothing else, and no stop string begins in their text.
    stop: one stop string or several; the answer ends before the first one that occurs.
    stop_token_ids: token ids that end the answer.
    seed: of the sampling noise; if None, one is drawn when the request is admitted, and reported.
    ignore_eos: continue after the end-of-text token.
    logprobs: for each token of the answer, report its log-probability and those of this many likeliest tokens; None for neither.
    prompt_logprobs: the same for each token of the prompt.
    include_stop_str_in_output: keep the stop string that ended the answer in its text.
    skip_special_tokens: leave special tokens out of the text.
    grammar: constrains the answer to this grammar; only a length limit can cut it short.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_tokens: Annotated[int, Field(ge=1, le=2**24)] = 256
    temperature: Annotated[Finite, Field(ge=0.0, le=100.0), AfterValidator(_divisible)] = 0.0
    top_k: Annotated[int, Field(ge=0, lt=2**31)] = 0
    top_p: Annotated[Finite, Field(gt=0.0, le=1.0)] = 1.0
    min_p: Annotated[Finite, Field(ge=0.0, le=1.0)] = 0.0
    repetition_penalty: Annotated[Finite, Field(ge=0.01, le=100.0)] = 1.0
    presence_penalty: Annotated[Finite, Field(ge=-2.0, le=2.0)] = 0.0
    frequency_penalty: Annotated[Finite, Field(ge=-2.0, le=2.0)] = 0.0
    logit_bias: Annotated[dict[TokenId, Annotated[Finite, Field(ge=-100.0, le=100.0)]], Field(max_length=4096)] = {}
    min_tokens: Annotated[int, Field(ge=0, le=2**24)] = 0
    stop: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=1024)], ...], Field(max_length=64), BeforeValidator(_texts)
    ] = ()
    stop_token_ids: Annotated[frozenset[TokenId], Field(max_length=1024)] = frozenset()
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    ignore_eos: bool = False
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    grammar: Grammar | None = None

    if TYPE_CHECKING:
        # the types of arguments, not of the fields
        def __init__(
            self,
            *,
            max_tokens: int = 256,
            temperature: float = 0.0,
            top_k: int = 0,
            top_p: float = 1.0,
            min_p: float = 0.0,
            repetition_penalty: float = 1.0,
            presence_penalty: float = 0.0,
            frequency_penalty: float = 0.0,
            logit_bias: Mapping[int, float] = ...,
            min_tokens: int = 0,
            stop: str | Iterable[str] = (),
            stop_token_ids: Iterable[int] = (),
            seed: int | None = None,
            ignore_eos: bool = False,
            logprobs: int | None = None,
            prompt_logprobs: int | None = None,
            include_stop_str_in_output: bool = False,
            skip_special_tokens: bool = True,
            grammar: Grammar | None = None,
        ) -> None: ...

    @property
    def shapes_logits(self) -> bool:
        """True where anything but the temperature changes the logits of a row."""
        return bool(
            self.logit_bias
            or self.grammar is not None
            or self.min_tokens
            or self.repetition_penalty != 1.0
            or self.presence_penalty
            or self.frequency_penalty
        )

    @property
    def cuts(self) -> bool:
        """Whether less likely tokens are left out."""
        return self.temperature > 0.0 and bool(self.top_k or self.top_p < 1.0 or self.min_p)

    @property
    def log_min_p(self) -> float:
        """How far below the largest a score may lie under min-p; -inf for any."""
        return math.log(self.min_p) if self.min_p else -math.inf

    @property
    def plain_greedy(self) -> bool:
        return self.temperature == 0.0 and not self.shapes_logits
