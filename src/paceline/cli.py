"""The command line. Every error a user can cause is one sentence on stderr and exit code 2."""

from __future__ import annotations

import gc
import json
import logging
import sys
from contextlib import nullcontext
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import Progress as Bar

import paceline

# what needs torch is imported where it is used, so that help and wrong usage answer at once
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from paceline.costs import Costs
    from paceline.engine.check import Row
    from paceline.engine.engine import Progress
    from paceline.engine.llm import LLM, Completion
    from paceline.params import SamplingParams

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=paceline.__doc__)
datastore = typer.Typer(no_args_is_help=True, help="Texts to draft from, for the drafter 'datastore'.")
app.add_typer(datastore, name="datastore")
out, err = Console(), Console(stderr=True)

Model = Annotated[str | None, typer.Argument(help="A directory, a Hub id or an embedded name; the embedded default if left out.")]
Draft = Annotated[str, typer.Option("--draft", help="What drafts: a spec string such as ngram, model:PATH, a+b, none.")]
Verify = Annotated[str, typer.Option("--verify", help="The rule that accepts drafts.")]
Lossy = Annotated[bool, typer.Option("--lossy", help="Allow rules that change the text or its distribution.")]
Policy = Annotated[
    str | None,
    typer.Option("--policy", help="How much is drafted: fixed, bass, confidence or adaptive; adaptive for auto, else fixed."),
]
Weights = Annotated[
    str | None,
    typer.Option("--weights", help="What the target is: fp32, bf16, fp16, int8, int4 or w8a8; as stored if left out."),
]
MaxTokens = Annotated[int, typer.Option("--max-tokens", help="Longest answer, in tokens.")]
Temperature = Annotated[float, typer.Option("--temperature", help="0 is greedy.")]
TopP = Annotated[float, typer.Option("--top-p", help="Keep the most probable tokens that hold this share.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Same seed, same text; drawn and reported if left out.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on one line.")]


def _fail(message: str) -> NoReturn:
    sys.stderr.write(f"paceline: {message}\n")
    raise typer.Exit(2)


def _params(**fields: Any) -> SamplingParams:
    from pydantic import ValidationError

    from paceline.params import SamplingParams

    try:
        return SamplingParams(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        option = str(first["loc"][0]).replace("_", "-")
        _fail(f"--{option} {first['input']}: {first['msg'].lower()}")


def _loaded(
    model: str | None, draft: str, verify: str, lossy: bool, policy: str | None, weights: str | None, quiet: bool = False
) -> LLM:
    """Load a target with its drafter, a spinner beside it where a person is watching."""
    from paceline.engine.llm import LLM

    log = logging.getLogger("paceline")
    log.setLevel(logging.INFO)
    if not log.handlers:
        log.addHandler(logging.StreamHandler())
    with nullcontext() if quiet or not err.is_terminal else err.status("loading the model"):
        llm = LLM(model, draft, verify=verify, lossy=lossy, policy=policy, weights=weights)
    # what torch and transformers left behind stays for good: the collector need not look through it at every turn
    gc.freeze()
    return llm


class _Typed:
    """Writes an answer's text as it grows."""

    def __init__(self) -> None:
        self._shown = 0

    def show(self, progress: Progress) -> None:
        out.file.write(progress.text[self._shown :])
        out.file.flush()
        self._shown = len(progress.text)


def _streamed(steps: Iterator[Progress], show: Callable[[Progress], None] | None) -> Progress:
    """Run an answer to its end, showing every step; the last one."""
    last = None
    for last in steps:
        if show:
            show(last)
    assert last is not None
    return last


def _answer_json(llm: LLM, completion: Completion, params: SamplingParams, wall_s: float) -> dict[str, Any]:
    from paceline.display import speculation_json

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
    }


@app.command()
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
    approximate: Annotated[
        str | None, typer.Option("--approximate", help="Serve the target under an approximation: lossy.")
    ] = None,
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
        _fail("a prompt is needed: -p TEXT")
    if approximate is not None:
        from paceline.registry import APPROXIMATIONS

        APPROXIMATIONS[approximate.partition(":")[0]].load()
    params = _params(max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, stop=tuple(stop or ()))
    llm = _loaded(model, draft, verify, lossy, policy, weights, quiet=as_json)
    tracer = Trace(out, llm.tokenizer) if trace and not as_json else None
    began = perf_counter()
    last = _streamed(llm.stream(prompt, params), tracer.show if tracer else None if as_json else _Typed().show)
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


def _profile_json(costs: Costs, wall_s: float) -> dict[str, Any]:
    parts = costs.profile(wall_s)
    return {
        "steps": costs.steps,
        **{name: {"ms_per_step": round(part.ms_per_step, 4), "share": round(part.share, 4)} for name, part in parts.items()},
    }


@app.command()
def chat(
    model: Model = None,
    draft: Draft = "auto",
    verify: Verify = "match",
    lossy: Lossy = False,
    policy: Policy = None,
    weights: Weights = None,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = None,
) -> None:
    """Talk with a model through its own chat template; an empty line or end of input ends it."""
    from paceline.display import summary
    from paceline.engine.llm import completed

    params = _params(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed)
    llm = _loaded(model, draft, verify, lossy, policy, weights)
    messages: list[dict[str, str]] = []
    before = None
    while True:
        try:
            said = (out.input("[bold]> [/bold]") if sys.stdin.isatty() else sys.stdin.readline()).strip()
        except EOFError:
            said = ""
        except UnicodeDecodeError:
            _fail("the input is not UTF-8 text")
        if not said:
            return
        messages.append({"role": "user", "content": said})
        began = perf_counter()
        ids = llm.tokenizer.chat(messages)
        while len(messages) > 1 and len(ids) >= llm.engine.longest:
            # the oldest exchange makes room for the newest
            del messages[:2]
            ids = llm.tokenizer.chat(messages)
        last = _streamed(llm.stream(ids, params, keep=True, after=before), _Typed().show)
        before = last.sequence
        completion = completed(last.sequence, last.text)
        messages.append({"role": "assistant", "content": completion.text})
        out.file.write("\n")
        line = summary(completion, llm.draft_name, perf_counter() - began)
        err.print(line, style="dim", highlight=False, soft_wrap=True)


@app.command()
def check(
    model: Model = None,
    draft: Draft = "auto",
    verify: Verify = "match",
    lossy: Lossy = False,
    policy: Policy = None,
    weights: Weights = None,
    prompts: Annotated[Path | None, typer.Option("--prompts", help="One prompt per line, or JSONL rows with 'prompt'.")] = None,
    max_tokens: MaxTokens = 64,
    temperature: Temperature = 1.0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Compare with plain decoding, greedy and at a temperature. Exit code 0: lossless, 1: not, 3: inconclusive.

    Texts are compared token by token. At a temperature, where a rule keeps only the distribution, what it draws is tested
    against the target's.
    """
    from paceline.engine.check import Comparison, examine, verdict
    from paceline.engine.law import TURNS
    from paceline.engine.prompts import all_prompts

    asked = _read_prompts(prompts) if prompts else all_prompts()
    greedy = _params(max_tokens=max_tokens, seed=seed)
    settings = [greedy]
    if temperature > 0:
        settings.append(_params(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed))
    # whatever a policy would leave out is drafted here: what is never drafted is not checked
    llm = _loaded(model, draft, verify, lossy, policy or "fixed", weights, quiet=as_json)
    rows = []
    with Bar(console=err, transient=True, disable=as_json or not err.is_terminal) as bar:
        task = bar.add_task("checking", total=len(asked) * len(settings))
        for params in settings:
            for row in examine(llm, draft, asked, params):
                rows.append(row)
                bar.advance(task, 1 if isinstance(row, Comparison) else len(row.ranks) / (TURNS * max_tokens))
    answer = verdict(rows)
    if as_json:
        print(json.dumps(_check_json(llm, rows, answer), ensure_ascii=False))
    else:
        _show_check(llm, rows, answer)
    raise typer.Exit({"lossless": 0, "not lossless": 1, "inconclusive": 3}[answer])


def _read_prompts(path: Path) -> list[str]:
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        return [_prompt_of(json.loads(line)) if line.lstrip().startswith("{") else line for line in lines]
    except (OSError, UnicodeDecodeError) as error:
        _fail(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}")
    except (ValueError, KeyError, TypeError):
        _fail(f"{path} holds a row that is neither a prompt nor JSON with a 'prompt'")


def _prompt_of(row: dict[str, Any]) -> str:
    if not isinstance(row["prompt"], str):
        raise TypeError
    return row["prompt"]


def _check_json(llm: LLM, rows: list[Row], answer: str) -> dict[str, Any]:
    from paceline.engine.check import Comparison, law_of
    from paceline.engine.law import FALSE_ALARM

    accepted = sum(row.speculative.speculation.accepted_tokens for row in rows)
    law = law_of(rows)
    return {
        "verdict": answer,
        "form": "law" if law else "text",
        "drafter": llm.draft_name,
        "verifier": llm.engine.speculative.verifier.name,
        "runs": len(rows),
        "tokens": sum(len(row.speculative.token_ids) for row in rows),
        "accepted_tokens": accepted,
        "law": {"tokens": law.tokens, "distance": law.distance, "bound": law.bound, "false_alarm": FALSE_ALARM} if law else None,
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


def _show_check(llm: LLM, rows: list[Row], answer: str) -> None:
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
                markup=False,
            )
    law = law_of(rows)
    if law is not None:
        out.print(
            f"law: {law.tokens} drawn tokens are {law.distance:.4f} from the target's distribution; up to {law.bound:.4f} is"
            f" chance (false-alarm rate {FALSE_ALARM:g})",
            highlight=False,
            soft_wrap=True,
        )
    tokens = sum(len(row.speculative.token_ids) for row in rows)
    accepted = sum(row.speculative.speculation.accepted_tokens for row in rows)
    form = "" if law is None else " (law)"
    out.print(
        f"{answer}{form}: {len(rows)} runs, {tokens} tokens, {accepted} of them drafted and accepted ({llm.draft_name})",
        highlight=False,
    )


@app.command()
def bench(
    model: Model = None,
    draft: Annotated[list[str] | None, typer.Option("--draft", help="What drafts; may be repeated; auto if left out.")] = None,
    tasks: Annotated[
        str, typer.Option("--tasks", help="A comma list of built-in tasks, of JSONL files in Spec-Bench's form, or of both.")
    ] = "e2e,sql,maths,code,story,copy",
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="Write the record as JSON, and its plots, to this folder.")
    ] = None,
    weights: Weights = None,
    grow: Annotated[
        str | None, typer.Option("--grow", help="LAYERS or LAYERSxWIDTH: the same function in a model of that size.")
    ] = None,
    peers: Annotated[str, typer.Option("--peers", help="Other engines: transformers,llama.cpp,ctranslate2,openvino.")] = "",
    batch: Annotated[str, typer.Option("--batch", help="Sizes of batch whose throughput is measured, such as 1,4,16.")] = "1",
    threads: Annotated[
        int | None, typer.Option("--threads", help="Threads of every engine; torch's own choice if left out.")
    ] = None,
    temperature: Annotated[float, typer.Option("--temperature", help="0 is greedy; else every run has the same seed.")] = 0.0,
    max_tokens: MaxTokens = 96,
    repeats: Annotated[int, typer.Option("--repeats", help="Measured runs, whose median counts.")] = 3,
    limit: Annotated[int | None, typer.Option("--limit", help="At most this many prompts of each task.")] = None,
    context: Annotated[
        int, typer.Option("--context", help="Up to so many tokens of solved examples before each prompt of e2e and sql.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Measure what drafts gain over plain decoding, side by side. Exit code 1 where a text differs."""
    from paceline.bench.files import written
    from paceline.bench.plots import plot
    from paceline.bench.runner import run
    from paceline.bench.settings import Settings
    from paceline.bench.table import show, watched

    settings = Settings.of(
        model, draft or ["auto"], tasks=tasks, weights=weights, grow=grow, peers=peers, batch=batch, threads=threads,
        temperature=temperature, max_tokens=max_tokens, repeats=repeats, limit=limit, context=context,
    )  # fmt: skip
    record = run(settings, watched(err, quiet=as_json))
    if out_dir is not None:
        file = written(record, out_dir)
        plot(record, file.with_suffix(""))
    if as_json:
        print(json.dumps(record, ensure_ascii=False))
    else:
        show(out, record)
    raise typer.Exit(0 if record["equal"] else 1)


@app.command()
def methods(as_json: Json = False) -> None:
    """List drafters, verifiers, policies and approximations, and what each says of itself."""
    from paceline.display import methods_table
    from paceline.methods import FAMILIES, described

    found = {family: described(registry) for family, registry in FAMILIES.items()}
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
        return
    for family, rows in found.items():
        if rows:
            out.print(methods_table(family, rows))


@app.command()
def models(as_json: Json = False) -> None:
    """List the embedded models."""
    from rich.table import Table

    from paceline.models.embedded import embedded_models

    found = embedded_models()
    if as_json:
        rows = [
            {"name": m.name, "role": m.role, "parameters": m.parameters, "size_bytes": m.size_bytes, "draft": m.draft}
            for m in found
        ]
        print(json.dumps({"models": rows}))
        return
    table = Table(header_style="dim")
    for column in ("name", "role", "parameters", "size", "draft"):
        table.add_column(column)
    for m in found:
        table.add_row(m.name, m.role, f"{m.parameters / 1e6:.1f}M", f"{m.size_bytes / 1e6:.1f} MB", m.draft or "")
    out.print(table if found else "no embedded models are installed")


@datastore.command("build")
def build_datastore(
    files: Annotated[list[Path], typer.Argument(help="Texts: .txt, a document each; .jsonl, one per row; .gz of both.")],
    out_dir: Annotated[Path, typer.Option("--out", help="Write the datastore to this folder.")],
    model: Annotated[str | None, typer.Option("--model", help="Whose tokenizer; the embedded default's if left out.")] = None,
    as_json: Json = False,
) -> None:
    """Build what 'datastore:DIR' drafts from. A row has a 'text', or a 'prompt' and its 'completion'."""
    from paceline.datastore import build, size_bytes
    from paceline.models.embedded import DEFAULT
    from paceline.models.load import resolve
    from paceline.models.quiet import quiet
    from paceline.models.tokenizer import Tokenizer

    tokenizer = Tokenizer(resolve(model if model is not None else DEFAULT))
    began = perf_counter()
    with quiet(), Bar(console=err, transient=True, disable=as_json or not err.is_terminal) as bar:
        tasks = {name: bar.add_task(name, total=None) for name in ("tokenising", "sorting")}
        header = build(
            files,
            out_dir,
            lambda text: tokenizer.encode(text, add_special=False),
            tokenizer.vocab_size,
            tokenizer.fingerprint,
            lambda name, done, total: bar.update(tasks[name], completed=done, total=total),
        )
    built = {
        "out": str(out_dir),
        "documents": header.documents,
        "tokens": header.suffixes,
        "size_bytes": size_bytes(header),
        "wall_s": round(perf_counter() - began, 3),
    }
    if as_json:
        print(json.dumps(built, ensure_ascii=False))
    else:
        out.print(
            f"{header.documents} documents, {header.suffixes} tokens, {built['size_bytes'] / 1e6:.1f} MB in '{out_dir}'",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def main() -> None:
    """Entry point: turns every error a user can cause into one sentence and exit code 2."""
    try:
        app(standalone_mode=True)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Exception as error:
        if not isinstance(error, _user_errors()):
            raise
        sys.stderr.write(f"paceline: {error}\n")
        raise SystemExit(2) from None


def _user_errors() -> tuple[type[Exception], ...]:
    from paceline.bench.errors import BenchError
    from paceline.engine.engine import RequestError
    from paceline.models.base import ModelError
    from paceline.registry import UnknownMethod
    from paceline.sampling import LogitsError
    from paceline.spec import SpecError

    return (ModelError, SpecError, UnknownMethod, RequestError, LogitsError, BenchError)
