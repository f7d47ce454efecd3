"""`paceline check`: is it lossless?"""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.answering import loaded
from paceline.cli.grammars import JsonSchema, Lark, Regex, grammar_of
from paceline.cli.inputs import text_of_file
from paceline.cli.options import (
    CheckedPolicy,
    Draft,
    Json,
    KVCache,
    Lossy,
    MaxTokens,
    Model,
    Seed,
    Temperature,
    TopP,
    Verify,
    Weights,
    path_option,
    sampling_params,
)
from paceline.cli.terminal import err, fail, out, tell_json

_LARGEST_BYTES = 64 << 20
"""Largest file of prompts."""

if TYPE_CHECKING:
    from paceline.engine.check import Row
    from paceline.engine.law import Fit
    from paceline.engine.llm import LLM
    from paceline.engine.small_law import SmallFit


def check(
    model: Model = None,
    draft: Draft = "auto",
    verify: Verify = "match",
    lossy: Lossy = False,
    policy: CheckedPolicy = None,
    weights: Weights = None,
    kv_cache: KVCache = None,
    prompts: Annotated[
        Path | None, path_option("--prompts", "A file with one prompt per line, or JSONL rows with 'prompt' or 'turns'.")
    ] = None,
    max_tokens: MaxTokens = 64,
    temperature: Temperature = 1.0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    json_schema: JsonSchema = None,
    regex: Regex = None,
    lark: Lark = None,
    as_json: Json = False,
) -> None:
    """Compare speculative with plain decoding, greedy and sampled. Exit code 0: lossless, 1: not, 3: inconclusive.

    Texts are compared token by token. Where a verifier keeps only the distribution, sampled tokens are tested against the
    target's distribution. The result is inconclusive where the verifier guarantees neither, or the sample is too small.
    """
    from rich.progress import Progress

    from paceline.engine.check import Comparison, doubt, examine, law_of, small_fits, verdict
    from paceline.engine.law import tokens_drawn
    from paceline.engine.prompts import all_prompts

    asked = _read_prompts(prompts) if prompts else all_prompts()
    both = {"max_tokens": max_tokens, "seed": seed, "grammar": grammar_of(json_schema, regex, lark)}
    greedy, heated = sampling_params(**both), sampling_params(temperature=temperature, top_p=top_p, **both)
    settings = [greedy, heated] if heated.temperature > 0 else [greedy]
    llm = loaded(model, draft, verify, lossy, "fixed" if policy is None else policy, weights, kv_cache, quiet=as_json)
    rows = []
    with Progress(console=err, transient=True, disable=as_json or not err.is_terminal) as bar:
        task = bar.add_task("checking", total=len(asked) * len(settings))
        drawn = tokens_drawn(len(asked), max_tokens)
        for row in examine(llm, draft, asked, settings):
            rows.append(row)
            bar.advance(task, 1 if isinstance(row, Comparison) else len(asked) * len(row.ranks) / drawn)
        bar.update(task, description="checking the verifier on four tokens", total=None)
        small = list(small_fits(llm)) if law_of(rows) else []
    drafts = llm.engine.speculative.drafter.budget.nodes > 0
    answer = verdict(rows, small, drafts)
    reason = doubt(rows, drafts) if answer == "inconclusive" else None
    if as_json:
        tell_json(_check_json(llm, rows, small, answer, reason))
    else:
        _show_check(llm, rows, small, answer, reason)
    raise typer.Exit({"lossless": 0, "not lossless": 1, "inconclusive": 3}[answer])


def _read_prompts(path: Path) -> list[str]:
    text = text_of_file(path, _LARGEST_BYTES, "a file of prompts")
    # not splitlines(): JSON strings may contain U+2028 and similar characters
    lines = [line.removesuffix("\r") for line in text.split("\n") if line.strip()]
    return [_prompt_of(line, f"{path} row {number}") for number, line in enumerate(lines, 1)]


def _prompt_of(line: str, place: str) -> str:
    """A line as it is, or if it is a JSON object, as in files of `bench`, its `prompt` or the first of its `turns`."""
    if not line.lstrip().startswith("{"):
        return line
    try:
        row = json.loads(line)
        prompt = row["prompt"] if "prompt" in row else row["turns"][0]
        if not isinstance(prompt, str):
            raise TypeError
    except (ValueError, LookupError, TypeError, RecursionError):
        fail(f"{place} is neither a prompt nor JSON with a 'prompt', or with 'turns', in it")
    return prompt


def _check_json(llm: LLM, rows: list[Row], small: list[SmallFit], answer: str, reason: str | None) -> dict[str, Any]:
    from paceline.engine.check import Comparison, law_of

    accepted = sum(row.speculative.speculation.accepted_tokens for row in rows)
    law = law_of(rows)
    return {
        "verdict": answer,
        "reason": reason,
        "form": "law" if law else "text",
        "drafter": llm.draft_name,
        "verifier": llm.engine.speculative.verifier.name,
        "runs": len(rows),
        "tokens": sum(len(row.speculative.token_ids) for row in rows),
        "accepted_tokens": accepted,
        "law": _law_json(law) if law else None,
        "small_vocabulary": [
            {"kind": one.kind.name, "drafts": one.drafts, "deviation": one.deviation, "bound": one.bound} for one in small
        ],
        "divergences": [
            {
                "prompt": row.prompt,
                "temperature": row.temperature,
                "position": row.divergence.position,
                "plain": row.divergence.plain,
                "speculative": row.divergence.speculative,
                "logit_gap": row.divergence.logit_gap if isfinite(row.divergence.logit_gap) else None,
            }
            for row in rows
            if isinstance(row, Comparison) and row.divergence is not None
        ],
    }


def _law_json(law: Fit) -> dict[str, Any]:
    from paceline.engine.law import FALSE_ALARM

    return {
        "tokens": law.tokens,
        "distance": law.distance,
        "bound": law.bound,
        "excess": law.excess,
        "excess_bound": law.excess_bound,
        "impossible": law.impossible,
        "drafted": law.drafted,
        "drafted_distance": law.drafted_distance if law.drafted else None,
        "drafted_bound": law.drafted_bound if law.drafted else None,
        "false_alarm": FALSE_ALARM,
    }


def _show_check(llm: LLM, rows: list[Row], small: list[SmallFit], answer: str, reason: str | None) -> None:
    from paceline.engine.check import Comparison, law_of
    from paceline.engine.law import FALSE_ALARM

    for row in rows:
        parted = row.divergence if isinstance(row, Comparison) else None
        if parted is not None:
            names = [repr(llm.tokenizer.decode([t])) if t >= 0 else "the end" for t in (parted.plain, parted.speculative)]
            tie = ", a near-tie" if parted.near_tie else ""
            out.print(
                f"temperature {row.temperature:g}, token {parted.position}: plain {names[0]}, speculative {names[1]},"
                f" logit gap {parted.logit_gap:.2g}{tie}   in {row.prompt[:60]!r}",
                highlight=False,
            )
    law = law_of(rows)
    if law is not None:
        out.print(
            f"distribution: {law.tokens} drawn tokens are {law.distance:.4f} from the target's distribution; up to"
            f" {law.bound:.4f} is chance. The likeliest token came in {abs(law.excess):.1f} places"
            f" {'more' if law.excess > 0 else 'less'} than expected; up to {law.excess_bound:.1f} is chance (false-alarm rate"
            f" {FALSE_ALARM:g})",
            highlight=False,
            soft_wrap=True,
        )
        if law.impossible:
            out.print(f"{law.impossible} of them have no probability there at all", highlight=False)
        if law.drafted:
            out.print(
                f"drafts: {law.drafted} drafted tokens are {law.drafted_distance:.4f} from what the drafter recorded; up to"
                f" {law.drafted_bound:.4f} is chance",
                highlight=False,
                soft_wrap=True,
            )
    for one in small:
        out.print(
            f"verifier, four tokens: of {one.drafts} drafts of the kind {one.kind.name}, a text came {one.deviation:.4f} more or"
            f" less often than it should; up to {one.bound:.4f} is chance",
            highlight=False,
            soft_wrap=True,
        )
    tokens = sum(len(row.speculative.token_ids) for row in rows)
    accepted = sum(row.speculative.speculation.accepted_tokens for row in rows)
    form = "" if law is None else " (distribution)"
    out.print(
        f"{answer}{form}: {len(rows)} runs, {tokens} tokens, {accepted} of them drafted and accepted ({llm.draft_name})",
        highlight=False,
        soft_wrap=True,
    )
    if reason is not None:
        out.print(reason, highlight=False, soft_wrap=True)
