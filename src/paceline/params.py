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
"""But for 0: logits divided by less would leave float32, and several tokens be infinitely likely."""


def _divisible(temperature: float) -> float:
    if 0.0 < temperature < LEAST_TEMPERATURE:
        raise ValueError("must be 0 (greedy) or at least 1e-6")
    return temperature


def _texts(stop: Any) -> Any:
    return (stop,) if isinstance(stop, str) else stop


class Grammar(BaseModel):
    """What an answer must be a sentence of. kind: a JSON schema, a regular expression, or a grammar in llguidance's Lark form.

    text: the schema as JSON, the expression or the grammar.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["json_schema", "regex", "lark"]
    text: Annotated[str, Field(min_length=1, max_length=LONGEST_GRAMMAR)]


class SamplingParams(BaseModel):
    """How one request is sampled. Immutable; out-of-range, infinite or unknown fields raise pydantic.ValidationError.

    temperature 0 is greedy. top_k 0, top_p 1, min_p 0, repetition_penalty 1 and the other penalties 0 switch themselves off.
    Repetition counts prompt and generated tokens, presence and frequency the generated ones. min_tokens bans whatever would
    stop the text (EOS and stop_token_ids) before that many tokens, unless a grammar allows nothing else, and no stop string
    begins in their text. Without a seed one is drawn at admission and reported. grammar: what the answer is a sentence of; it
    may be cut short by its length alone. logprobs, prompt_logprobs: report the log-probability of each token of the answer, or
    of the prompt, and of so many of the likeliest ones beside it; None reports nothing. stop: texts, or a single one. keep_stop:
    the text shows the stop string that ended it. skip_special: special tokens are not part of the text.
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
    keep_stop: bool = False
    skip_special: bool = True
    grammar: Grammar | None = None

    if TYPE_CHECKING:
        # what may be given, and not what it becomes
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
            keep_stop: bool = False,
            skip_special: bool = True,
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
