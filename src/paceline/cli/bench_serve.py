"""`paceline bench serve`: measures a server under load from outside."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.options import Json, MaxTokens, Temperature, path_option
from paceline.cli.records import told
from paceline.cli.terminal import err
from paceline.interrupts import raise_again


def bench_serve(
    url: Annotated[str, typer.Option("--url", help="URL of the server, with or without /v1.")] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key", envvar="PACELINE_BENCH_API_KEY", show_envvar=True, help="Sent as a bearer token; never recorded."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Model name; the first one that the server lists if left out.")
    ] = None,
    endpoint: Annotated[
        str, typer.Option("--endpoint", help="completions, or chat (applies the model's chat template).")
    ] = "completions",
    tasks: Annotated[
        str, typer.Option("--tasks", help="Prompts: built-in tasks, JSONL files or both, as for `paceline bench`.")
    ] = "e2e,sql,maths,code,story,copy",
    requests: Annotated[
        int | None,
        typer.Option("--requests", help="Requests per load level and body; if left out 40, 4 per concurrent one, or 100."),
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(
            "--concurrency", help="Closed loop with this many concurrent requests, or a sweep such as 1,4,16; 1 if left out."
        ),
    ] = None,
    rate: Annotated[str | None, typer.Option("--rate", help="Poisson arrivals per second, or a sweep such as 1,2,4.")] = None,
    trace: Annotated[
        Path | None, path_option("--trace", "Arrival times and lengths from an Azure trace (CSV); answers may end earlier.")
    ] = None,
    scale_lengths: Annotated[
        float | None, typer.Option("--scale-lengths", help="Factor for a trace's lengths; chosen to fit if left out.")
    ] = None,
    speed_up: Annotated[float, typer.Option("--speed-up", help="Replay a trace's arrivals this many times faster.")] = 1.0,
    max_tokens: MaxTokens = 96,
    temperature: Temperature = 0.0,
    seed: Annotated[int, typer.Option("--seed", help="Random seed of arrivals; request i is sent with this seed plus i.")] = 0,
    slo: Annotated[
        str | None, typer.Option("--slo", help="Service-level objective in seconds, such as ttft=0.5,tpot=0.05,e2e=10.")
    ] = None,
    find_rate: Annotated[bool, typer.Option("--find-rate", help="Search the highest request rate that meets the SLO.")] = False,
    slo_share: Annotated[
        float, typer.Option("--slo-share", help="Fraction of requests that must meet the SLO, for --find-rate.")
    ] = 0.99,
    extra_body: Annotated[
        str | None, typer.Option("--extra-body", help="JSON object with additional fields for every request.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option("--against", help="JSON object: also send the same requests with these fields instead, in turns."),
    ] = None,
    block: Annotated[
        int | None,
        typer.Option(
            "--block",
            help="Requests of one body before the other's turn; if left out 1, or 4 per concurrent request, or an eighth of all"
            " for --rate and --trace.",
        ),
    ] = None,
    salt: Annotated[
        bool, typer.Option("--salt", help="Give each request its own cache_salt, so that requests share no prefixes.")
    ] = False,
    warmup: Annotated[
        int, typer.Option("--warmup", help="Unmeasured sequential requests of each body before the measurement.")
    ] = 1,
    timeout: Annotated[float, typer.Option("--timeout", help="Request timeout in seconds.")] = 300.0,
    retry: Annotated[
        bool, typer.Option("--retry", help="Retry rejected requests (HTTP 429, 503) after the server's Retry-After.")
    ] = False,
    out_dir: Annotated[Path | None, path_option("--out", "Write the record as JSON, with plots, to this directory.")] = None,
    as_json: Json = False,
) -> None:
    """Measure an OpenAI-compatible server under load, from outside.

    Exit code 1 if no request is answered, or if --find-rate finds no rate.
    Without --rate and --trace, requests come in a closed loop. TTFT counts
    from when a request was due. ITL is per token: a chunk of k tokens is one
    gap and k - 1 zeros. TPOT is a request's time behind its first text, over
    all its tokens but one.
    """
    from paceline.bench.files import writable
    from paceline.bench.load.files import written
    from paceline.bench.load.plots import plot
    from paceline.bench.load.settings import Settings
    from paceline.bench.load.sweep import run
    from paceline.bench.load.table import show, watched

    raise_again()
    settings = Settings.of(
        url=url, api_key=api_key, model=model, endpoint=endpoint, tasks=tasks, requests=requests, rate=rate,
        concurrency=concurrency, trace=trace, scale_lengths=scale_lengths, speed_up=speed_up, max_tokens=max_tokens,
        temperature=temperature, seed=seed, slo=slo, find_rate=find_rate, slo_share=slo_share, extra_body=extra_body,
        against=against, block=block, warmup=warmup, timeout=timeout, retry=retry, salt=salt,
    )  # fmt: skip
    if out_dir is not None:
        writable(out_dir)
    record = run(settings, ["paceline", *sys.argv[1:]], watched(err, quiet=as_json))
    told(record, out_dir, as_json, written, show, plot)
    answered = sum(found["answered"] for level in record["levels"] for found in level["bodies"].values())
    held = record["find_rate"] is None or record["find_rate"]["held_per_s"] is not None
    raise typer.Exit(0 if answered and held else 1)
