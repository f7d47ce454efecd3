"""Plots of a record, as PNG files: speed-ups by task, acceptance by depth, verify cost by rows, the parts of a step."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.bench.files import threads, without_folders
from paceline.bench.grids import grid, tall_enough
from paceline.bench.ours import PLAIN
from paceline.bench.pictures import pyplot_for_files, saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
"""Okabe and Ito (2008): told apart by colour-blind readers too."""
_MARKERS = "osD^vP*X"
_MOST_BARS, _MOST_LETTERS = 12, 400
"""Of modes in one group of bars, and of their names together."""
_WIDE, _MOST_PARTS = 24, 16
"""Characters of a name that stands beside a bar in one line; parts of a path that tell names apart."""


def plot(record: dict[str, Any], stem: Path) -> list[Path]:
    """Write STEM-speedup.png, -acceptance.png, -verify.png and -step.png, those for which there is something to show.

    Raises BenchError where matplotlib is not installed.
    """
    pyplot, written = pyplot_for_files(), []
    for name, draw in (("speedup", _speedup), ("acceptance", _acceptance), ("verify", _verify), ("step", _step)):
        figure, axes = pyplot.subplots(figsize=(8.5, 4.8), layout="constrained")
        if (caption := draw(axes, record)) is not None:
            axes.set_title(f"{_subject(record)}\n{caption}", fontsize=10, loc="left")
            axes.spines[["top", "right"]].set_visible(False)
            written.append(saved(figure, stem, name))
        pyplot.close(figure)
    return written


def _subject(record: dict[str, Any]) -> str:
    model, grown = record["model"], record["grown"]
    name = f"{model['name']} grown to {model['parameters'] / 1e6:.0f}M" if grown else model["name"]
    return f"{name}, {model['weights']}, {threads(record)}, {record['machine']['processor']}"


def _names(modes: Iterable[str]) -> dict[str, str]:
    """Modes without quotes, their paths by as many last parts as tell them apart."""
    names = every = list(dict.fromkeys(modes))
    for parts in range(1, _MOST_PARTS + 1):
        names = [without_folders(mode, parts).replace('"', "") for mode in every]
        if len(set(names)) == len(every):
            break
    return dict(zip(every, names, strict=True))


def _speedup(axes: Axes, record: dict[str, Any]) -> str | None:
    """Bars by task, one per mode, or a grid of very many modes; the speed of plain decoding stands under each task."""
    gains = record["speedup"]
    modes = list(dict.fromkeys(mode for task in gains.values() for mode in task))
    if not modes:
        return None
    plain = {row["task"]: row["decode_tokens_per_s"] for row in record["rows"] if row["mode"] == PLAIN}
    labels = [f"{task}\n{plain[task]:.0f}/s" if plain[task] else task for task in gains]
    axes.set_xlabel("task, and decoding tokens per second of plain decoding")
    names = list(_names(modes).values())
    if len(modes) > _MOST_BARS or sum(map(len, names)) > _MOST_LETTERS:
        found = [[gains[task].get(mode, {}).get("decode_ratio") for task in gains] for mode in modes]
        grid(axes, names, labels, found)
        return "decoding alone, over plain decoding of this engine"
    width = 0.84 / len(modes)
    for place, mode in enumerate(modes):
        at = [number for number, task in enumerate(gains) if "decode_ratio" in gains[task].get(mode, {})]
        heights = [gains[task][mode]["decode_ratio"] for task in gains if "decode_ratio" in gains[task].get(mode, {})]
        hatch = "//" if place >= len(COLOURS) else None
        colour = COLOURS[place % len(COLOURS)]
        places = [n + (place - (len(modes) - 1) / 2) * width for n in at]
        bars = axes.bar(places, heights, width, label=names[place], color=colour, hatch=hatch)
        crowded = len(modes) > 4
        # the ground behind them keeps the line at 1 out of the figures
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
        size, turned = (7, 90) if crowded else (8, 0)
        axes.bar_label(bars, fmt="%.2f", fontsize=size, rotation=turned, padding=2.5, bbox=ground)
    # room for the labels of the tallest bars
    axes.margins(y=0.15)
    axes.set_xticks(range(len(gains)), labels, fontsize=8)
    axes.axhline(1.0, color="black", linewidth=0.8, zorder=0.5)
    axes.set_ylabel("decoding tokens/s over plain decoding's")
    axes.legend(fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    return "decoding alone, from the first token that plain decoding of each engine has; our plain decoding is 1"


def _acceptance(axes: Axes, record: dict[str, Any]) -> str | None:
    """Two lines per mode, of the last group of rows: all tasks, where there are several. A drafter that seldom drafts deep can
    be right nearly always where it does; only the share of all steps says what that is worth, and is all that a grid shows.
    """
    last = record["rows"][-1]["task"]
    rows = [row for row in record["rows"] if row["task"] == last and any(row.get("drafted_by_depth", ()))]
    if not rows:
        return None
    names = _names(row["mode"] for row in rows)
    axes.set_xlabel("depth in the draft (tokens behind the root)")
    if len(rows) > len(COLOURS):
        depths = range(1, max(len(row["drafted_by_depth"]) for row in rows) + 1)
        shares = [[accepted / row["steps"] for accepted in row["accepted_by_depth"]] for row in rows]
        grid(
            axes,
            [names[row["mode"]] for row in rows],
            [str(depth) for depth in depths],
            [[*row, *[None] * (len(depths) - len(row))] for row in shares],
        )
        return f"how deep drafts come true, share of all steps, {last}"
    for place, row in enumerate(rows):
        colour, marker = COLOURS[place % len(COLOURS)], _MARKERS[place % len(_MARKERS)]
        depths = range(1, len(row["drafted_by_depth"]) + 1)
        of_all = [accepted / row["steps"] for accepted in row["accepted_by_depth"]]
        of_drafted = [a / max(d, 1) for a, d in zip(row["accepted_by_depth"], row["drafted_by_depth"], strict=True)]
        axes.plot(depths, of_all, color=colour, marker=marker, label=names[row["mode"]])
        axes.plot(depths, of_drafted, ":", color=colour, marker=marker, markersize=4, markerfacecolor="white", linewidth=1.1)
    axes.plot([], [], color="grey", label="solid: of all steps")
    axes.plot([], [], ":", color="grey", label="dotted: of the steps that drafted so deep")
    axes.set_xticks(range(1, max(len(row["drafted_by_depth"]) for row in rows) + 1))
    axes.set_ylim(0, 1.03)
    axes.set_ylabel("share of steps that accepted so deep")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    return f"how deep drafts come true, {last}"


def _verify(axes: Axes, record: dict[str, Any]) -> str | None:
    """Each engine's forwards over its own of one row: a line that stays low is one whose drafts cost little."""
    cost = record["verify_cost"]
    rows: list[int] = []
    for place, (name, by_rows) in enumerate(cost["relative"].items()):
        rows = [int(n) for n in by_rows]
        one = next(iter(cost["ms"][name].values()))
        label = f"{name} (one row: {one:.2f} ms)"
        axes.plot(rows, list(by_rows.values()), color=COLOURS[place], marker=_MARKERS[place], label=label)
    axes.plot(rows, [n / rows[0] for n in rows], ":", color="grey", linewidth=1, label="every row as costly as the first")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(rows, [str(n) for n in rows])
    axes.set_yticks(rows, [str(n) for n in rows])
    axes.minorticks_off()
    axes.set_xlabel("rows of the forward (the root and its drafted nodes), logarithmic")
    axes.set_ylabel("times a forward of one row, logarithmic")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return f"cost of a verify behind {cost['context_tokens']} cached tokens, over one row of the same engine"


def _step(axes: Axes, record: dict[str, Any]) -> str | None:
    """Stacked bars, one per mode: where the time of a step goes, of the last group of rows."""
    last = record["rows"][-1]["task"]
    rows = [row for row in record["rows"] if "step_ms" in row and row["task"] == last]
    if not rows:
        return None
    names = _names(row["mode"] for row in rows).values()
    if len(rows) > len(COLOURS):
        tall_enough(axes, len(rows))
    else:
        names = [name if len(name) <= _WIDE else name.replace(",", ",\n") for name in names]
    left = [0.0] * len(rows)
    for place, part in enumerate(rows[0]["step_ms"]):
        widths = [row["step_ms"][part] for row in rows]
        axes.barh(range(len(rows)), widths, left=left, label=part, color=COLOURS[place])
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(rows)), list(names))
    for number, total in enumerate(left):
        axes.text(total, number, f" {total:.2f}", va="center", fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.tick_params(axis="y", labelsize=8)
    axes.set_xlabel("ms, mean of the steps behind the first tokens")
    axes.legend(fontsize=8, ncols=5, loc="upper center", bbox_to_anchor=(0.5, -0.18))
    return f"where the time of a step goes, {last}"
