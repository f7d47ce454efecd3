"""`paceline generate`: complete a prompt."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.answering import Typed, loaded, streamed
from paceline.cli.grammars import JsonSchema, Lark, Regex, answer_params
from paceline.cli.inputs import text_of_file, text_of_stdin
from paceline.cli.options import (
    CacheTokens,
    Draft,
    FrequencyPenalty,
    Json,
    KVCache,
    Lossy,
    MaxTokens,
    MinP,
    Model,
    Policy,
    PresencePenalty,
    RepetitionPenalty,
    Seed,
    Stop,
    Temperature,
    TopK,
    TopP,
    Verify,
    Weights,
    path_option,
)
from paceline.cli.terminal import err, fail, need_output, out, tell_json

if TYPE_CHECKING:
    from paceline.engine.llm import LLM, Completion
    from paceline.learning.costs import Costs
    from paceline.params import SamplingParams

_LARGEST_BYTES = 16 << 20
"""Largest prompt, more than any context holds."""


def generate(
    model: Model = None,
    prompt: Annotated[
        str, typer.Option("-p", "--prompt", help="Raw text; special tokens are added once. - reads from standard input.")
    ] = "",
    prompt_file: Annotated[
        Path | None, path_option("--prompt-file", "Read the prompt from a UTF-8 file, without its final newline.")
    ] = None,
    draft: Draft = "auto",
    verify: Verify = "match",
    lossy: Lossy = False,
    policy: Policy = None,
    weights: Weights = None,
    kv_cache: KVCache = None,
    cache_tokens: CacheTokens = 65536,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: RepetitionPenalty = 1.0,
    presence_penalty: PresencePenalty = 0.0,
    frequency_penalty: FrequencyPenalty = 0.0,
    seed: Seed = None,
    stop: Stop = None,
    json_schema: JsonSchema = None,
    regex: Regex = None,
    lark: Lark = None,
    as_json: Json = False,
    trace: Annotated[bool, typer.Option("--trace", help="Colour tokens by drafter; show rejected draft tokens.")] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Show the time spent in each part of a step.")] = False,
) -> None:
    """Complete a prompt."""
    need_output()
    params = answer_params(locals())
    from paceline.display import Trace, profile_table, summary

    if trace and as_json:
        fail("--trace is for people to look at, and --json for programs: leave one of them out")
    prompt = _prompt(prompt, prompt_file)
    llm = loaded(
        model,
        draft,
        verify,
        lossy,
        policy,
        weights,
        kv_cache,
        cache_tokens,
        has_grammar=params.grammar is not None,
        quiet=as_json,
    )
    tracer = Trace(out, llm.tokenizer) if trace else None
    began = perf_counter()
    last = streamed(llm.stream(prompt, params), tracer.show if tracer else None if as_json else Typed().show)
    wall_s = perf_counter() - began
    completion = llm.completed(last.sequence, last.text)
    costs = llm.engine.speculative.costs
    if as_json:
        answer = _answer_json(llm, completion, params, wall_s)
        if profile:
            answer["speculation"]["profile"] = _profile_json(costs, wall_s)
        tell_json(answer)
        return
    if tracer:
        tracer.legend()
    out.file.write("\n")
    err.print(summary(completion, llm.draft_name, wall_s), style="dim", highlight=False, soft_wrap=True)
    if profile:
        err.print(profile_table(costs.profile(wall_s), costs.steps))


def _prompt(prompt: str, file: Path | None) -> str:
    """The text to complete: as given, from a file, or from standard input."""
    if prompt and file is not None:
        fail("a prompt is given by -p or by --prompt-file, not by both")
    if file is not None:
        return text_of_file(file, _LARGEST_BYTES, "a prompt")
    if prompt == "-":
        return text_of_stdin(_LARGEST_BYTES, "a prompt")
    if not prompt:
        fail("a prompt is needed: -p TEXT, -p - for standard input, or --prompt-file FILE")
    return prompt


def _answer_json(llm: LLM, completion: Completion, params: SamplingParams, wall_s: float) -> dict[str, Any]:
    from paceline.display import speculation_json
    from paceline.machine import peak_resident_bytes

    speculative, keeps = llm.engine.speculative, llm.keeps(params)
    return {
        "text": completion.text,
        "token_ids": completion.token_ids,
        "sources": completion.sources,
        "finish_reason": completion.finish_reason,
        "seed": completion.seed,
        "usage": {
            "prompt_tokens": completion.prompt_tokens,
            "completion_tokens": len(completion.token_ids),
            "total_tokens": completion.prompt_tokens + len(completion.token_ids),
        },
        "speculation": {
            "drafter": speculative.drafter.name,
            "verifier": speculative.verifier.name,
            "policy": speculative.policy.name,
            "lossless": keeps != "nothing",
            "keeps": keeps,
            "law": speculative.verifier.law,
            "target": llm.target.described,
            **speculation_json(completion.speculation),
            "emitted_tokens": completion.speculation.emitted_tokens,
            "wall_s": round(wall_s, 6),
        },
        "memory": {"peak_resident_bytes": peak_resident_bytes(), "weights_bytes": llm.target.weights_bytes},
    }


def _profile_json(costs: Costs, wall_s: float) -> dict[str, Any]:
    parts = costs.profile(wall_s)
    return {
        "steps": costs.steps,
        **{name: {"ms_per_step": round(part.ms_per_step, 4), "share": round(part.share, 4)} for name, part in parts.items()},
    }
