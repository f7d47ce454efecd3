"""`paceline bench`: measures the gain of drafts; also the command group of all measurements, with this as its default."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.bench_serve import bench_serve
from paceline.cli.groups import Command, DefaultGroup
from paceline.cli.options import Json, KVCache, Lossy, MaxTokens, Model, Weights, path_option
from paceline.cli.records import told
from paceline.cli.terminal import err, fail
from paceline.interrupts import raise_again

if TYPE_CHECKING:
    from paceline.bench.settings import Settings

bench = typer.Typer(cls=DefaultGroup, invoke_without_command=True, subcommand_metavar="| COMMAND [ARGS]...")
bench.command("serve", cls=Command)(bench_serve)


@bench.callback()
def bench_drafts(
    model: Model = None,
    draft: Annotated[list[str] | None, typer.Option("--draft", help="Drafter spec; may be repeated; auto if left out.")] = None,
    verify: Annotated[list[str] | None, typer.Option("--verify", help="Verifier; may be repeated; match if left out.")] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", help="Draft policy; may be repeated; adaptive for auto, otherwise fixed, if left out."),
    ] = None,
    lossy: Lossy = False,
    tasks: Annotated[
        str,
        typer.Option(
            "--tasks",
            help="Comma-separated tasks (e2e, sql, maths, code, story, copy, random) and JSONL files in Spec-Bench's format.",
        ),
    ] = "e2e,sql,maths,code,story,copy",
    categories: Annotated[
        str, typer.Option("--categories", help="Comma-separated categories of those files; all of them if left out.")
    ] = "",
    out_dir: Annotated[Path | None, path_option("--out", "Write the record as JSON, with plots, to this directory.")] = None,
    name: Annotated[str, typer.Option("--name", help="Suffix of the record's name, to tell runs apart.")] = "",
    weights: Weights = None,
    kv_cache: KVCache = None,
    grow: Annotated[
        str | None,
        typer.Option("--grow", help="LAYERS or LAYERSxWIDTH: pad the model to this size without changing its function."),
    ] = None,
    peers: Annotated[
        str,
        typer.Option(
            "--peers", help="Other engines to compare with: transformers, llama.cpp, ctranslate2, openvino, with commas."
        ),
    ] = "",
    batch: Annotated[str, typer.Option("--batch", help="Batch sizes whose throughput is measured, such as 1,4,16.")] = "1",
    threads: Annotated[int | None, typer.Option("--threads", help="Threads of every engine; torch's choice if left out.")] = None,
    temperature: Annotated[float, typer.Option("--temperature", help="Sampling temperature; 0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option("--seed", help="Random seed of every request, plain and drafted.")] = 0,
    max_tokens: MaxTokens = 96,
    repeats: Annotated[int, typer.Option("--repeats", help="Measured runs; the median is reported.")] = 3,
    limit: Annotated[int | None, typer.Option("--limit", help="Maximum number of prompts per task.")] = None,
    context: Annotated[
        int, typer.Option("--context", help="Put up to this many tokens of solved examples before each e2e and sql prompt.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Compare the speed of speculative and plain decoding. Exit code 1 if a text differs that should not.

    Runs every draft under every given verifier and policy, in turns.
    """
    from paceline.bench.files import check_place, writable, written
    from paceline.bench.plots import plot
    from paceline.bench.runner import run
    from paceline.bench.settings import Settings
    from paceline.bench.table import show, watched

    raise_again()
    if name and out_dir is None and not as_json:
        fail("--name tells a record from another: keep it with --out, or print it with --json")
    settings = Settings.of(
        model, draft or ["auto"], verify=verify or [], policy=policy or [], lossy=lossy, tasks=tasks, weights=weights,
        kv_cache=kv_cache, grow=grow, peers=peers, batch=batch, threads=threads,
        temperature=temperature, seed=seed, max_tokens=max_tokens, repeats=repeats, limit=limit, context=context,
        name=name, categories=categories,
    )  # fmt: skip
    if out_dir is not None:
        writable(out_dir)
        check_place(*_planned(settings), out_dir)
    record = run(settings, watched(err, quiet=as_json))
    told(record, out_dir, as_json, written, show, plot)
    raise typer.Exit(0 if record["equal"] else 1)


def _planned(settings: Settings) -> tuple[dict[str, Any], list[str]]:
    """The part of a record that is known before the run, and the possible formats of its weights."""
    from paceline.bench.mode import PLAIN_MODE, modes_of
    from paceline.models.base import DTYPES
    from paceline.models.checkpoint import inspected, name_of
    from paceline.models.embedded import DEFAULT
    from paceline.models.load import resolve
    from paceline.torch_threads import usable

    source = resolve(settings.model if settings.model is not None else DEFAULT)
    planned = {
        "model": {"name": name_of(source), "sampled_sha256": inspected(source).sampled_sha256()},
        "grown": settings.growth and asdict(settings.growth),
        "threads": settings.threads or usable(),
        "settings": {
            **asdict(settings),
            "modes": {mode.name: mode.recorded() for mode in (PLAIN_MODE, *modes_of(settings, source))},
        },
        "tasks": {
            task.name: {"prompts": sum(len(item.texts) for item in task.items), "left_out": 0, "sha256": task.sha256}
            for task in settings.tasks
        },
        "batches": [{"batch": size} for size in settings.batches],
        "peers": settings.peers,
        "failed": {},
        "not_installed": settings.absent,
    }
    # without --weights they are held as stored, in a format that is known only once the model is loaded
    formats = [settings.weights] if settings.weights is not None else [*DTYPES]
    narrowed = f", keys and values {settings.kv_cache}" if settings.kv_cache else ""
    return planned, [form + narrowed for form in formats]
