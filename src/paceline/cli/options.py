"""Options that several commands share, and the sampling parameters made from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.terminal import fail
from paceline.errors import validators_words

if TYPE_CHECKING:
    from paceline.params import SamplingParams

Model = Annotated[str | None, typer.Argument(help="A directory, a Hub id or an embedded model; the embedded target if left out.")]
Draft = Annotated[
    str, typer.Option("--draft", help="Drafter spec: auto, auto:PATH, ngram, model:PATH, a+b, none (see `paceline methods`).")
]
VERIFIERS_HELP = (
    "Verifier: match (default), rejection, multi-round, k-seq, spechub, block; with --lossy also typical, relaxed, lenient,"
    " contrastive."
)
Verify = Annotated[str, typer.Option("--verify", help=VERIFIERS_HELP)]
Lossy = Annotated[bool, typer.Option("--lossy", help="Allow verifiers that change the text and its distribution.")]
Policy = Annotated[
    str | None,
    typer.Option(
        "--policy", help="Draft policy: fixed, bass, confidence or adaptive; adaptive for auto, otherwise fixed, if left out."
    ),
]
CheckedPolicy = Annotated[
    str | None,
    typer.Option("--policy", help="Draft policy; fixed if left out, since only what is drafted is checked."),
]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        help="Weight format of the target: fp32, bf16, fp16, w16a16, int8, int4, w8a8 or w4a8; if left out, the checkpoint's"
        " precision, or fp32 in the transformers backend on a CPU.",
    ),
]
KVCache = Annotated[
    str | None,
    typer.Option(
        "--kv-cache",
        help="KV cache format of the target, on a GPU: fp8 (compute capability 8.9 or newer) or int8; unquantised if left out.",
    ),
]
CacheTokens = Annotated[
    int, typer.Option("--cache-tokens", min=2, help="Capacity of the KV cache in tokens, which also limits prompt plus answer.")
]
MaxTokens = Annotated[int, typer.Option("--max-tokens", help="Maximum number of generated tokens.")]
Temperature = Annotated[float, typer.Option("--temperature", help="Sampling temperature; 0 is greedy.")]
TopK = Annotated[int, typer.Option("--top-k", help="Sample from the k likeliest tokens; 0 disables it.")]
TopP = Annotated[float, typer.Option("--top-p", help="Nucleus sampling: the smallest set of tokens with this total probability.")]
MinP = Annotated[float, typer.Option("--min-p", help="Drop tokens below this fraction of the top token's probability.")]
RepetitionPenalty = Annotated[
    float, typer.Option("--repetition-penalty", help="Above 1, tokens of the prompt and the answer become less likely.")
]
PresencePenalty = Annotated[float, typer.Option("--presence-penalty", help="Above 0, tokens of the answer become less likely.")]
FrequencyPenalty = Annotated[float, typer.Option("--frequency-penalty", help="The same, once per occurrence of a token.")]
Stop = Annotated[list[str] | None, typer.Option("--stop", help="Stop string; the answer ends before it; may be repeated.")]
Seed = Annotated[
    int | None,
    typer.Option("--seed", help="Random seed: under match, the same seed gives the same text; drawn and reported if left out."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on one line.")]
_SHOWN_CHARACTERS = 80
"""Most characters of a refused value that are shown."""


def path_option(flag: str, text: str, panel: str | None = None) -> Any:
    """An option that names a file or a folder; `~` is expanded. text: help text."""

    def named(path: str) -> Path:
        from paceline.machine import expanded

        # may come from an unset shell variable; Path("") would be the current folder
        if not path:
            fail(f"{flag} is an empty text: name a file or a folder")
        try:
            return expanded(path)
        except OSError as error:
            fail(f"{flag}: {error}")

    return typer.Option(flag, help=text, parser=named, metavar="PATH", rich_help_panel=panel)


def sampling_params(**fields: Any) -> SamplingParams:
    """Sampling parameters from options; errors name the option."""
    from pydantic import ValidationError

    from paceline.params import SamplingParams

    try:
        return SamplingParams(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        option = str(first["loc"][0]).replace("_", "-")
        fail(f"--{option} {_shown(first['input'])}: {validators_words(first['msg']).lower()}")


def _shown(value: Any) -> str:
    shown = repr(value) if isinstance(value, str) else str(value)
    return shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}..."
