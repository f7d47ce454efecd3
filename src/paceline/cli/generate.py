"""`paceline generate`: complete a prompt."""

from __future__ import annotations

import json
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.answering import Typed, loaded, streamed
from paceline.cli.options import (
    Draft,
    Json,
    Lossy,
    MaxTokens,
    Model,
    Policy,
    Seed,
    Temperature,
    TopP,
    Verify,
    Weights,
    sampling_params,
)
from paceline.cli.terminal import err, fail, out

if TYPE_CHECKING:
    from paceline.costs import Costs
    from paceline.engine.llm import LLM, Completion
    from paceline.params import SamplingParams


def generate(
    model: Model = None,
    prompt: Annotated[str, typer.Option("-p", "--prompt", help="Raw text; special tokens are added once.")] = "",
    draft: Draft = "auto",
    verify: Verify = "match",
    lossy: Lossy = False,
    policy: Policy = None,
    weights: Weights = None,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.0,
    top_k: Annotated[int, typer.Option("--top-k", help="Keep this many tokens; 0 keeps all.")] = 0,
    top_p: TopP = 1.0,
    seed: Seed = None,
    stop: Annotated[list[str] | None, typer.Option("--stop", help="End before this text; may be repeated.")] = None,
    as_json: Json = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="Colour tokens by their drafter; show what was drafted in vain.")
    ] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Show where the time of a step goes.")] = False,
) -> None:
    """Complete a prompt."""
    from paceline.display import Trace, profile_table, summary
    from paceline.engine.llm import completed

    if not prompt:
        fail("a prompt is needed: -p TEXT")
    params = sampling_params(
        max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, stop=tuple(stop or ())
    )
    llm = loaded(model, draft, verify, lossy, policy, weights, quiet=as_json)
    tracer = Trace(out, llm.tokenizer) if trace and not as_json else None
    began = perf_counter()
    last = streamed(llm.stream(prompt, params), tracer.show if tracer else None if as_json else Typed().show)
    wall_s = perf_counter() - began
    completion = completed(last.sequence, last.text)
    costs = llm.engine.speculative.costs
    if as_json:
        answer = _answer_json(llm, completion, params, wall_s)
        if profile:
            answer["speculation"]["profile"] = _profile_json(costs, wall_s)
        print(json.dumps(answer, ensure_ascii=False))
        return
    if tracer:
        tracer.legend()
    out.file.write("\n")
    err.print(summary(completion, llm.draft_name, wall_s), style="dim", highlight=False, soft_wrap=True)
    if profile:
        err.print(profile_table(costs.profile(wall_s), costs.steps))


def _answer_json(llm: LLM, completion: Completion, params: SamplingParams, wall_s: float) -> dict[str, Any]:
    from paceline.display import speculation_json
    from paceline.machine import peak_resident_bytes

    speculative = llm.engine.speculative
    return {
        "text": completion.text,
        "token_ids": completion.token_ids,
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
            "lossless": llm.lossless(params) is not None,
            "law": speculative.verifier.law,
            "target": f"{llm.target.name} ({llm.target.weights})",
            **speculation_json(completion.speculation),
            "wall_s": round(wall_s, 6),
        },
        "forward_costs": speculative.costs.table(),
        "memory": {"peak_resident_bytes": peak_resident_bytes(), "weights_bytes": llm.target.weights_bytes},
    }


def _profile_json(costs: Costs, wall_s: float) -> dict[str, Any]:
    parts = costs.profile(wall_s)
    return {
        "steps": costs.steps,
        **{name: {"ms_per_step": round(part.ms_per_step, 4), "share": round(part.share, 4)} for name, part in parts.items()},
    }
