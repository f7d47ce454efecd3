"""Page: docs/benchmarks.md, a page for each other machine, and their plots, made from the records in a folder.

python -m paceline.bench.page benchmarks docs
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from paceline.bench.files import records, title
from paceline.bench.gpu_page import GPU_TITLE, gpu_section, plot_gpu
from paceline.bench.load.plots import plot as plot_load
from paceline.bench.load_page import load_section, load_title
from paceline.bench.machines import machine_name
from paceline.bench.markdown import anchor
from paceline.bench.page_words import FIGURES, MEANING, PICTURES, READING
from paceline.bench.plots import plot
from paceline.bench.report import speedups
from paceline.bench.run_page import run_section
from paceline.bench.step_page import STEP_TITLE, step_section
from paceline.bench.summary import SHORT, summary

_GPU = "gpu.json"
_MAIN, _GPU_PAGE = "benchmarks.md", "benchmarks-gpu.md"


def pages(
    runs: dict[str, dict[str, Any]],
    plots: dict[str, list[str]],
    loads: dict[str, dict[str, Any]] | None = None,
    steps: dict[str, Any] | None = None,
    gpu: dict[str, Any] | None = None,
) -> dict[str, str]:
    """The pages as Markdown, by file name. runs: by file, relative to the folder of records. plots: per file, links to its plots,
    relative to the page. loads: records of `paceline bench serve`, by file. steps: record of the step overhead. gpu: record of
    a GPU.
    """
    machines = _by_folder(runs)
    here = machines.pop("", {})
    loaded = {load_title(record): load_section(record, file, plots.get(file, [])) for file, record in (loads or {}).items()}
    others = {f"benchmarks-{folder}.md": (folder, found) for folder, found in machines.items()}
    contents = [f"- [{heading}](#{anchor(heading)})" for heading in (PICTURES, MEANING, *([SHORT] if runs else []))]
    contents += [f"- Runs on this page, {_machine(here)}:", *_links(here)] if here else []
    contents += [f"- [{heading}](#{anchor(heading)})" for heading in (*loaded, *([STEP_TITLE] if steps is not None else []))]
    for name, (folder, found) in others.items():
        contents.append(f"- [Runs on {_machine(found)}]({name}), from `benchmarks/{folder}`: {len(found)}")
    contents += [f"- [{GPU_TITLE}]({_GPU_PAGE})"] if gpu is not None else []
    lines = [
        "# Benchmarks",
        "",
        "Written by `python -m paceline.bench.page benchmarks docs` from the records in `benchmarks/`; edit nothing here."
        " Each run stands with its command, its machine and its commit. `make bench` makes such records on your machine.",
        "",
        *contents,
        "",
        READING,
        FIGURES,
        *summary(runs),
    ]
    for file, record in here.items():
        lines += run_section(record, file, plots.get(file, []))
    for section in loaded.values():
        lines += section
    if steps is not None:
        lines += step_section(steps)
    found = {_MAIN: lines}
    for name, (folder, theirs) in others.items():
        found[name] = [
            f"# Benchmarks: {_machine(theirs)}",
            "",
            f"The runs of `benchmarks/{folder}`. [{_MAIN}]({_MAIN}) says how to read them, and compares them with others.",
            "",
            *_links(theirs, ""),
            "",
            *(line for file, record in theirs.items() for line in run_section(record, file, plots.get(file, []))),
        ]
    if gpu is not None:
        found[_GPU_PAGE] = [f"# Benchmarks: {GPU_TITLE[0].lower()}{GPU_TITLE[1:]}", "", *gpu_section(gpu, *plots[_GPU])]
    return {name: "\n".join(content).rstrip() + "\n" for name, content in found.items()}


def _by_folder(runs: dict[str, dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Folder ("" for none) -> file -> record."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for file, record in runs.items():
        found.setdefault(Path(file).parent.name, {})[file] = record
    return found


def _machine(runs: dict[str, dict[str, Any]]) -> str:
    return machine_name(next(iter(runs.values()))["machine"])


def _links(runs: dict[str, dict[str, Any]], indent: str = "  ") -> list[str]:
    return [f"{indent}- [{title(record)}](#{anchor(title(record))})" for record in runs.values()]


def main(source: Path, docs: Path) -> None:
    """Write the pages to `docs` and their plots to `docs`/images. Subfolders of `source` have records of other machines."""
    runs = {str(file.relative_to(source)): record for file, record in records(source).items()}
    plots = {}
    for file, record in runs.items():
        place = (docs / "images" / file).with_suffix("")
        place.parent.mkdir(parents=True, exist_ok=True)
        # older records have all times but lack the range of the gains
        record["speedup"] = speedups(record["rows"])
        plots[file] = [os.path.relpath(png, docs) for png in plot(record, place)]
    loads = {str(file.relative_to(source)): record for file, record in _loads(source).items()}
    for file, record in loads.items():
        plots[file] = [os.path.relpath(png, docs) for png in plot_load(record, (docs / "images" / file).with_suffix(""))]
    gpu = _one(source / _GPU)
    if gpu is not None:
        plots[_GPU] = [os.path.relpath(plot_gpu(gpu, docs / "images" / "gpu"), docs)]
    # the plots of the step overhead are made together with its record
    for name, text in pages(runs, plots, loads, _one(source / "step_overhead.json"), gpu).items():
        (docs / name).write_text(text, encoding="utf-8")


def _one(file: Path) -> dict[str, Any] | None:
    """A record, if the file exists."""
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def _loads(folder: Path) -> dict[Path, dict[str, Any]]:
    """Every record of `paceline bench serve` in a folder, by file."""
    found = {file: json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("serve-*.json"))}
    return {file: record for file, record in found.items() if record.get("kind") == "paceline bench serve"}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
