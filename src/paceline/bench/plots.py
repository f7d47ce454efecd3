"""Plots of a record, as PNG files: speed-ups by task, acceptance by depth, verify cost by rows, the parts of a step.

The first colours are for this engine; each peer has its own hue, lighter or darker for its modes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence as Many
from math import nan
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from paceline.bench.files import threads, without_folders
from paceline.bench.grids import grid, tall_enough
from paceline.bench.machines import machine_name
from paceline.bench.ours import PLAIN
from paceline.bench.pictures import pyplot_for_files, saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
"""Okabe and Ito (2008): distinguishable for colour-blind readers too."""
_PEERS = {"transformers": "#5F5F5F", "llama.cpp": "#6A3D9A", "ctranslate2": "#6B6B00", "openvino": "#8B2F2F"}
_OTHER_PEER = "#2F4F4F"
_LIGHTEST = 0.6
"""Share of white in the lightest shade of a peer's hue."""
_MARKERS = "osD^vP*X"
_RATES = {
    "": ("tokens/s", "whole answers, prompt included"),
    "decode_": ("decoding tokens/s", "decoding alone, from each engine's first token without drafts"),
}
"""Prefix of a rate -> its unit, and a title."""
_MOST_BARS, _MOST_LETTERS = 12, 400
"""Most modes in one group of bars, and most characters of their names together."""
_WIDE, _MOST_PARTS = 24, 16
"""Most characters of a one-line name beside a bar; most parts of a path that are tried to distinguish names."""


def plot(record: dict[str, Any], stem: Path) -> list[Path]:
    """Write STEM-speedup.png, -acceptance.png, -verify.png and -step.png, as far as there is data for them.

    Raises BenchError if matplotlib is not installed.
    """
    pyplot = pyplot_for_files()
    written = _plot_speedups(pyplot, record, stem)
    for name, draw in (("acceptance", _acceptance), ("verify", _verify), ("step", _step)):
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
    return f"{name}, {model['weights']}, {threads(record)}, {machine_name(record['machine'])}"


def _names(modes: Iterable[str]) -> dict[str, str]:
    """Modes without quotes, with paths shortened to as many last parts as distinguish them."""
    names = every = list(dict.fromkeys(modes))
    for parts in range(1, _MOST_PARTS + 1):
        names = [without_folders(mode, parts).replace('"', "") for mode in every]
        if len(set(names)) == len(every):
            break
    return dict(zip(every, names, strict=True))


def _plot_speedups(pyplot: ModuleType, record: dict[str, Any], stem: Path) -> list[Path]:
    """Whole answers and decoding alone, each in its own panel: for long prompts they differ much."""
    modes = _compared(record)
    if not modes:
        return []
    if gridded := _too_many(modes):
        figure, panels = pyplot.subplots(1, 2, figsize=(13, 4.8), layout="constrained")
    else:
        figure, panels = pyplot.subplots(2, 1, figsize=(8.5, 8), layout="constrained", sharey=True)
    for axes, (kind, (_, title)) in zip(panels, _RATES.items(), strict=True):
        _speedup(axes, record, kind)
        axes.set_title(title, fontsize=10, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
    if gridded:
        panels[1].set_yticklabels([])
    else:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    told = "speed over our plain decoding, which is 1"
    if not gridded and any("range" in gain for task in record["speedup"].values() for gain in task.values()):
        told += "; lines: from the least to the most of the repeats"
    figure.suptitle(f"{_subject(record)}\n{told}", fontsize=10, x=0.01, ha="left")
    file = saved(figure, stem, "speedup")
    pyplot.close(figure)
    return [file]


def _compared(record: dict[str, Any]) -> list[str]:
    """Modes that are compared with plain decoding."""
    return list(dict.fromkeys(mode for task in record["speedup"].values() for mode in task))


def _too_many(modes: list[str]) -> bool:
    """Whether there are too many modes for bars."""
    return len(modes) > _MOST_BARS or sum(map(len, _names(modes).values())) > _MOST_LETTERS


def _colours(modes: Iterable[str], peers: dict[str, str | None]) -> dict[str, str]:
    """Mode -> colour: ours in order; a peer's modes from light to dark in its hue. peers: mode -> its peer, or None."""
    found: dict[str, str] = {}
    ours = 0
    modes = list(modes)
    for mode in modes:
        peer = peers.get(mode)
        if peer is None:
            found[mode] = COLOURS[ours % len(COLOURS)]
            ours += 1
        else:
            alike = [other for other in modes if peers.get(other) == peer]
            darkness = (alike.index(mode) + 1) / len(alike)
            found[mode] = _mixed(_PEERS.get(peer, _OTHER_PEER), _LIGHTEST * (1 - darkness))
    return found


def _mixed(colour: str, white: float) -> str:
    """A colour mixed with a share of white."""
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * white):02x}" for part in parts)


def _speedup(axes: Axes, record: dict[str, Any], kind: str) -> None:
    """Bars by task, one per mode, or a grid for very many modes; the speed of plain decoding is shown below each task."""
    gains, (unit, _) = record["speedup"], _RATES[kind]
    modes = _compared(record)
    plain = {row["task"]: row[f"{kind}tokens_per_s"] for row in record["rows"] if row["mode"] == PLAIN}
    labels = [f"{task}\n{plain[task]:.0f}/s" if plain[task] else task for task in gains]
    axes.set_xlabel(f"task, and {unit} of our plain decoding", fontsize=9)
    names = list(_names(modes).values())
    ratio = f"{kind}ratio"
    if _too_many(modes):
        grid(axes, names, labels, [[gains[task].get(mode, {}).get(ratio) for task in gains] for mode in modes])
        return
    colours = _colours(modes, {row["mode"]: row.get("peer") for row in record["rows"]})
    ours = 0
    width = 0.84 / len(modes)
    for place, mode in enumerate(modes):
        mine = {number: gain for number, task in enumerate(gains.values()) if ratio in (gain := task.get(mode, {}))}
        places = [number + (place - (len(modes) - 1) / 2) * width for number in mine]
        hatch = "//" if ours >= len(COLOURS) and colours[mode] in COLOURS else None
        ours += colours[mode] in COLOURS
        heights = [gain[ratio] for gain in mine.values()]
        ends = [gain.get(f"{kind}range") for gain in mine.values()]
        # from the minimum to the maximum of all repeats, if there are several
        spread = [_beside(heights, ends, end) for end in (0, 1)] if all(ends) else None
        whiskers = {"elinewidth": 0.8, "capsize": 1.5, "ecolor": "0.25"}
        bars = axes.bar(
            places, heights, width, yerr=spread, error_kw=whiskers, label=names[place], color=colours[mode], hatch=hatch
        )
        crowded = len(modes) > 4
        # a white background keeps the line at 1 out of the numbers
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
        size, turned = (7, 90) if crowded else (8, 0)
        axes.bar_label(bars, fmt="%.2f", fontsize=size, rotation=turned, padding=2.5, bbox=ground)
    # room for the labels of the tallest bars
    axes.margins(y=0.15)
    axes.set_xticks(range(len(gains)), labels, fontsize=8)
    axes.axhline(1.0, color="black", linewidth=0.8, zorder=0.5)
    axes.set_ylabel(f"{unit} over plain", fontsize=9)


def _beside(heights: Many[float], ends: Many[Many[float]], end: int) -> list[float]:
    """Distances of the heights to the lower (`end` 0) or upper (1) ends of their ranges."""
    return [max((height - ends[0], ends[1] - height)[end], 0.0) for height, ends in zip(heights, ends, strict=True)]


_TELLING = 10
"""Fewest steps for a meaningful share."""


def _acceptance(axes: Axes, record: dict[str, Any]) -> str | None:
    """Two lines per mode, for the last group of rows (all tasks, if there are several). A drafter that seldom drafts deep may
    then nearly always be right; only the share of all steps shows how much that is worth, and a grid shows only this one.
    """
    last = record["rows"][-1]["task"]
    rows = [row for row in record["rows"] if row["task"] == last and any(row.get("drafted_by_depth", ()))]
    if not rows:
        return None
    names = _names(row["mode"] for row in rows)
    axes.set_xlabel("depth in the draft (tokens after the root)")
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
        # nan is not plotted
        of_drafted = [
            a / d if d >= _TELLING else nan for a, d in zip(row["accepted_by_depth"], row["drafted_by_depth"], strict=True)
        ]
        axes.plot(depths, of_all, color=colour, marker=marker, label=names[row["mode"]])
        axes.plot(depths, of_drafted, ":", color=colour, marker=marker, markersize=4, markerfacecolor="white", linewidth=1.1)
    axes.plot([], [], color="grey", label="solid: of all steps")
    axes.plot([], [], ":", color="grey", label=f"dotted: of the steps that drafted so deep, if {_TELLING} did")
    axes.set_xticks(range(1, max(len(row["drafted_by_depth"]) for row in rows) + 1))
    axes.set_ylim(0, 1.03)
    axes.set_ylabel("share of steps that accepted so deep")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    return f"how deep drafts come true, {last}"


def _verify(axes: Axes, record: dict[str, Any]) -> str | None:
    """Each engine's forward passes relative to its own of one row: where a line stays low, drafts cost little."""
    cost = record["verify_cost"]
    rows: list[int] = []
    for place, (name, by_rows) in enumerate(cost["relative"].items()):
        rows = [int(n) for n in by_rows]
        one = next(iter(cost["ms"][name].values()))
        label = f"{name} (one row: {one:.2f} ms)"
        colour = COLOURS[0] if name == "paceline" else _PEERS.get(name, _OTHER_PEER)
        axes.plot(rows, list(by_rows.values()), color=colour, marker=_MARKERS[place], label=label)
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
    return f"cost of a verify after {cost['context_tokens']} cached tokens, over one row of the same engine"


def _step(axes: Axes, record: dict[str, Any]) -> str | None:
    """Stacked bars, one per mode: the time of a step by part, for the last group of rows."""
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
    axes.set_xlabel("ms, mean of the steps after the first tokens")
    axes.legend(fontsize=8, ncols=5, loc="upper center", bbox_to_anchor=(0.5, -0.18))
    return f"where the time of a step goes, {last}"
