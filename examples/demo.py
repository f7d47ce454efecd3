"""The demonstration: real prompts of each domain, decoded plainly and with the best drafter, side by side on this machine.

Run with `make demo`; `--out FILE.json` also writes the numbers. Both decodings use the same engine and the same model, loaded
once for each; they take turns, and medians are compared.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from paceline import LLM, Completion, SamplingParams, __version__
from paceline.bench.origin import origin
from paceline.engine.prompts import PROMPTS
from paceline.machine import processor
from paceline.models.base import ModelError

TURNS = 3
console = Console()


def timed(llm: LLM, prompt: str, params: SamplingParams) -> tuple[Completion, float]:
    """Decode once; returns the completion and its seconds."""
    began = perf_counter()
    completion = llm.generate(prompt, params)[0]
    return completion, perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    out = parser.parse_args().out
    if out and not out.absolute().parent.is_dir():
        parser.error(f"there is no folder {out.absolute().parent}")
    torch.set_num_threads(min(torch.get_num_threads(), 2))
    # an engine for each, so that both are as in real use and keep what they learnt from earlier texts; prefix caching is off, so
    # that no turn finds its prompt in the cache
    plainly, drafting = (LLM(draft=draft, shortest_prefix=sys.maxsize) for draft in ("none", "auto"))
    params = SamplingParams(max_tokens=96, stop=("\n\n",))
    for llm in (plainly, drafting):
        timed(llm, "warm up", params)
    table = Table(header_style="dim", title="greedy, one request at a time", title_justify="left")
    for column in ("domain", "tokens", "plain tokens/s", "drafted tokens/s", "speed-up", "tau", "same text"):
        table.add_column(column, justify="left" if column == "domain" else "right")
    differing, rows = 0, []
    total = sum(len(prompts) for prompts in PROMPTS.values()) * TURNS
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("decoding plainly and with drafts", total=total)
        for domain, prompts in PROMPTS.items():
            tokens, plain_s, drafted_s, steps, emitted, same = 0, 0.0, 0.0, 0, 0, True
            for prompt in prompts:
                plain_times, drafted_times = [], []
                for _ in range(TURNS):
                    plain, seconds = timed(plainly, prompt, params)
                    plain_times.append(seconds)
                    drafted, seconds = timed(drafting, prompt, params)
                    drafted_times.append(seconds)
                    same &= plain.token_ids == drafted.token_ids
                    bar.advance(task)
                tokens += len(plain.token_ids)
                plain_s += median(plain_times)
                drafted_s += median(drafted_times)
                steps += drafted.speculation.steps
                emitted += drafted.speculation.emitted_tokens
                text = Text(prompt, style="dim").append(drafted.text, style="bold not dim")
                console.print(text, soft_wrap=True)
                verdict = "identical to plain decoding" if plain.token_ids == drafted.token_ids else "NOT THE SAME TEXT"
                console.print(f"[dim]  {len(drafted.token_ids)} tokens, {verdict}[/dim]\n", highlight=False)
            differing += not same
            rows.append(
                {
                    "domain": domain,
                    "tokens": tokens,
                    "plain_s": plain_s,
                    "drafted_s": drafted_s,
                    "speedup": plain_s / drafted_s,
                    "tau": emitted / steps,
                    "same_text": same,
                }
            )
            table.add_row(
                domain,
                str(tokens),
                f"{tokens / plain_s:.1f}",
                f"{tokens / drafted_s:.1f}",
                f"{plain_s / drafted_s:.2f}x",
                f"{emitted / steps:.2f}",
                "yes" if same else "NO",
            )
    console.print(table)
    console.print(
        f"{drafting.target.name}, drafted by {drafting.draft_name}; medians of {TURNS} turns each;"
        f" {torch.get_num_threads()} threads, {processor()}, torch {torch.__version__}, paceline {__version__}",
        style="dim",
        highlight=False,
    )
    if out:
        report = {
            "what": f"greedy, batch 1, medians of {TURNS} turns, {drafting.target.name} drafted by {drafting.draft_name}",
            "argv": sys.argv[1:],
            "threads": torch.get_num_threads(),
            **origin(),
            "rows": rows,
        }
        out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if differing else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ModelError as error:
        sys.stderr.write(f"demo: {error}\n")
        sys.exit(2)
