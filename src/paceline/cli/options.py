"""Options that several commands share, and the sampling parameters made of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.terminal import fail
from paceline.errors import validators_words

if TYPE_CHECKING:
    from paceline.params import SamplingParams

Model = Annotated[str | None, typer.Argument(help="A directory, a Hub id or an embedded name; the embedded default if left out.")]
Draft = Annotated[str, typer.Option("--draft", help="What drafts: a spec string such as ngram, model:PATH, a+b, none.")]
Verify = Annotated[str, typer.Option("--verify", help="The rule that accepts drafts.")]
Lossy = Annotated[bool, typer.Option("--lossy", help="Allow rules that change the text or its distribution.")]
Policy = Annotated[
    str | None,
    typer.Option("--policy", help="How much is drafted: fixed, bass, confidence or adaptive; adaptive for auto, else fixed."),
]
CheckedPolicy = Annotated[
    str | None,
    typer.Option("--policy", help="How much is drafted; fixed if left out: what is never drafted is not checked."),
]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        help="What the target is: fp32, bf16, fp16, w16a16, int8, int4 or w8a8; if left out as stored, or fp32 where"
        " transformers runs it on a CPU.",
    ),
]
KVCache = Annotated[
    str | None,
    typer.Option(
        "--kv-cache",
        help="Keys and values of the target, on a GPU: fp8 (from compute capability 8.9 on) or int8; not narrowed if left out.",
    ),
]
CacheTokens = Annotated[
    int, typer.Option("--cache-tokens", min=2, help="Longest prompt and answer together, up to the model's own context.")
]
MaxTokens = Annotated[int, typer.Option("--max-tokens", help="Longest answer, in tokens.")]
Temperature = Annotated[float, typer.Option("--temperature", help="0 is greedy.")]
TopK = Annotated[int, typer.Option("--top-k", help="Keep this many tokens; 0 keeps all.")]
TopP = Annotated[float, typer.Option("--top-p", help="Keep the most probable tokens that hold this share.")]
MinP = Annotated[float, typer.Option("--min-p", help="Keep tokens at least this share as probable as the first.")]
RepetitionPenalty = Annotated[
    float, typer.Option("--repetition-penalty", help="Above 1: tokens of the prompt and the answer become less likely.")
]
PresencePenalty = Annotated[float, typer.Option("--presence-penalty", help="Above 0: tokens of the answer become less likely.")]
FrequencyPenalty = Annotated[float, typer.Option("--frequency-penalty", help="The same, for each time that a token occurred.")]
Stop = Annotated[list[str] | None, typer.Option("--stop", help="End before this text; may be repeated.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Under match: same seed, same text; drawn and reported if left out.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on one line.")]
_SHOWN_CHARACTERS = 80
"""Of what is refused: a text may be as long as a line of commands."""


def path_option(flag: str, text: str, panel: str | None = None) -> Any:
    """An option that names a file or a folder; its `~` is a home. text: of its help."""

    def named(path: str) -> Path:
        from paceline.machine import expanded

        # as of a variable that is not set: it would be the folder in which the command is called
        if not path:
            fail(f"{flag} is an empty text: name a file or a folder")
        try:
            return expanded(path)
        except OSError as error:
            fail(f"{flag}: {error}")

    return typer.Option(flag, help=text, parser=named, metavar="PATH", rich_help_panel=panel)


def sampling_params(**fields: Any) -> SamplingParams:
    """What the options say; refuses by the name of the option."""
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
