"""GPU page: the results of `benchmarks/gpu.py` on a device, as a section of the benchmark page."""

from __future__ import annotations

from collections.abc import Sequence as Many
from pathlib import Path
from typing import Any

from paceline.bench.markdown import table
from paceline.bench.pictures import pyplot_for_files, saved

GPU_TITLE = "A GPU"
_Forwards = Many[dict[str, Any]]


def gpu_section(record: dict[str, Any], picture: str) -> list[str]:
    """The lines of the section. picture: its plot, as a link relative to the page."""
    alone, beside = _alone(record["forward"]), [one for one in record["forward"] if one["batch"] > 1]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    bits = [record["bits"], record["model_bits"]]
    equal, compared = _sum(bits, "equal"), _sum(bits, "compared")
    contexts, batches = _by(alone, "context"), _by(beside, "batch")
    by_rows = [
        (rows, *(cell for of in contexts.values() for cell in (_ms(of[rows]), f"{of[rows]['cost']:.2f}")))
        for rows in next(iter(contexts.values()))
    ]
    by_batch = [
        (batch, _ms(of[1]), f"{of[1]['share_of_roofline']:.2f}", _ms(of[8]), f"{of[8]['cost']:.2f}")
        for batch, of in batches.items()
    ]
    first = alone[0]
    answered = [one for one in record["engine"] if "failed" not in one]
    drafted = [one for one in answered if one["draft"] != "none"]
    return [
        f"- Machine: {record['machine']}; {versions}; commit {record['commit']}",
        "- Command: `python benchmarks/gpu.py` ([record](../benchmarks/gpu.json))",
        f"- Rows whose bits are those of decoding them alone, in drafts, prompts and batches: {equal} of {compared}",
        f"- Shares refer to what a copy within the device's memory moves, read and written:"
        f" {record['copy_bytes_per_s'] / 1e12:.2f} TB/s",
        *_missing(record),
        "",
        "The engine's own backend for Llama-form models in the shape of Llama-3-8B, random bf16 weights"
        f" ({record['weight_bytes'] / 1e9:.1f} GB read by a forward). One row after {first['context']} tokens takes"
        f" {_ms(first)} ms, {first['share_of_roofline']:.2f} of the memory's speed. Whole forwards, recorded as CUDA graphs,"
        " medians; a tree of so many rows, two below each, at batch 1, over one row:",
        "",
        *table(("rows", *(cell for context in contexts for cell in (f"ms after {context} tokens", "over one row"))), by_rows),
        f"![cost of verifying by rows, and share of the memory's speed by batch]({picture})",
        "",
        f"Several requests at once, {beside[0]['context']} tokens each, one row of each and a tree of eight:",
        "",
        *table(("requests", "one row, ms", "share of the memory's speed", "eight rows, ms", "over one row"), by_batch),
        "Prompts read in one step, beside what a library's products of the same matrices take by themselves:",
        "",
        *table(("tokens", "ms", "the library's products alone, ms"), [_prompt(one) for one in record["prefill"]]),
        "128 tokens through the engine, every draft in turns with none; the model's own end of text is ignored, so most of them"
        " are what it writes after its answer. `auto` has the draft model at hand for the embedded one; for what was grown from"
        " that it looks up and recycles. Drafted texts that equal"
        f" those without: {_sum(drafted, 'equal')} of {_sum(drafted, 'answers')}.",
        "",
        *table(
            ("model", "temperature", "requests", "draft", "tokens per step", "tokens/s", "over none"),
            [_answer(one) for one in answered],
        ),
        *_beside([one for one in record["beside"] if "failed" not in one]),
    ]


def _missing(record: dict[str, Any]) -> list[str]:
    """Measurements missing in the tables: those that failed, and those that did not fit the device's memory."""
    failed = [
        f"- Answers {where} failed: {' '.join(one['failed'].split())}"
        for part, where in (("engine", "through the engine"), ("beside", "beside transformers"))
        for one in record[part]
        if "failed" in one
    ]
    return failed + [f"- Left out for want of memory: {what}" for what in record["left_out"]]


def _beside(ways: Many[dict[str, Any]]) -> list[str]:
    """The comparison with another engine on the same model."""
    if not ways:
        return []
    plain = next(one for one in ways if one["engine"] != "paceline")["tokens_per_s"]
    return [
        f"{ways[0]['model']}, greedy, one request at a time, {ways[0]['answers']} prompts, in turns with transformers' `generate`"
        " as it comes (float16, its own cache, no compiling), plain and with its own drafts:",
        "",
        *table(
            ("engine", "draft", "tokens/s", "over transformers' plain", "texts as ours without drafts"),
            [
                (
                    one["engine"],
                    one["mode"],
                    f"{one['tokens_per_s']:.0f}",
                    f"{one['tokens_per_s'] / plain:.2f}",
                    f"{one['equal']} of {one['answers']}",
                )
                for one in ways
            ],
        ),
    ]


def _sum(parts: Many[dict[str, Any]], name: str) -> int:
    return sum(part[name] for part in parts)


def _prompt(one: dict[str, Any]) -> tuple[object, ...]:
    return one["tokens"], _ms(one), f"{one['library_products_s'] * 1e3:.2f}"


def _answer(one: dict[str, Any]) -> tuple[object, ...]:
    model = f"{one['model']}, {one['weights']}"
    return (
        model,
        f"{one['temperature']:g}",
        one["batch"],
        one["draft"],
        f"{one['tau']:.2f}",
        f"{one['tokens_per_s']:.0f}",
        f"{one['over_none']:.2f}",
    )


def plot_gpu(record: dict[str, Any], stem: Path) -> Path:
    """Plot the cost of verifying by rows, and the share of the memory bandwidth that decoding one row per request reaches."""
    pyplot = pyplot_for_files()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    alone = _alone(record["forward"])
    for context, of in _by(alone, "context").items():
        left.plot([*of], [one["cost"] for one in of.values()], marker="o", label=f"after {context} tokens")
    left.set(xscale="log", xlabel="rows of a draft tree", ylabel="time over one row", title="Verifying")
    left.set_ylim(bottom=0)
    left.legend()
    single = [one for one in record["forward"] if one["rows"] == 1 and one["context"] == alone[0]["context"]]
    right.plot([one["batch"] for one in single], [one["share_of_roofline"] for one in single], marker="o")
    right.set(xscale="log", xlabel="requests, one row each", ylabel="share of the memory's speed", title="Decoding", ylim=(0, 1))
    for axes in (left, right):
        axes.set_xticks(ticks := [1, 2, 4, 8, 16, 32, 64], [str(tick) for tick in ticks])
        axes.minorticks_off()
    figure.suptitle(f"Llama-3-8B's shape in bf16 on an {record['machine']}")
    file = saved(figure, stem, "rows")
    pyplot.close(figure)
    return file


def _alone(forwards: _Forwards) -> _Forwards:
    return [one for one in forwards if one["batch"] == 1]


def _by(forwards: _Forwards, name: str) -> dict[int, dict[int, dict[str, Any]]]:
    """Context or batch -> rows -> measurement."""
    found: dict[int, dict[int, dict[str, Any]]] = {}
    for one in forwards:
        found.setdefault(one[name], {})[one["rows"]] = one
    return found


def _ms(one: dict[str, Any]) -> str:
    return f"{one['seconds'] * 1e3:.2f}"
