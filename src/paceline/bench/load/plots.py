"""Plots of a record, as PNG files: distributions of latencies, and latencies and throughput by load."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.bench.load.settings import Load
from paceline.bench.machines import machine_name
from paceline.bench.pictures import pyplot_for_files, saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

_BODIES = {"body": ("#0072B2", "-", "o"), "against": ("#D55E00", "--", "s")}
"""Colour, line and marker: Okabe and Ito (2008), distinguishable for colour-blind readers and in print."""
_OFF = {"speculation": {"off": True}}
_SHOWN = {
    "ttft_s": "time to first token",
    "tpot_s": "time per output token after the first",
    "itl_s": "time between tokens",
    "e2e_s": "time of a whole answer",
}
_MOST_CURVES = 6
_GOOD = "#009E73"
_WIDEST = 300
"""Largest ratio of the two ends of a logarithmic time axis."""
_ENOUGH_TICKS, _MOST_TICKS = 4, 8
_TICKS = ((1,), (2, 5), (3, 7), (1.5, 4, 6, 8), tuple(n / 10 for n in range(10, 100)))
"""Ticks within a decade, the roundest first."""


def plot(record: dict[str, Any], stem: Path) -> list[Path]:
    """Write STEM-latencies.png and, for several loads, STEM-load.png.

    Raises BenchError if matplotlib is not installed.
    """
    pyplot, written = pyplot_for_files(), []
    for name, draw in (("latencies", _latencies), ("load", _load)):
        if name == "load" and len(record["levels"]) < 2:
            continue
        figure, grid = pyplot.subplots(2, 2, figsize=(10.5, 7.2), layout="constrained")
        for axes in grid.flat:
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25)
        draw(record, figure, grid.ravel().tolist())
        figure.suptitle(_title(record), fontsize=10, x=0.01, ha="left")
        written.append(saved(figure, stem, name))
        pyplot.close(figure)
    return written


def _title(record: dict[str, Any]) -> str:
    server, settings = record["server"], record["settings"]
    line = f"{server['model']}, {settings['endpoint']}, {settings['requests']} requests each, {machine_name(record['machine'])}"
    if settings["against"] is not None:
        labels = (f"{body_label(name, record)}: {_words(settings[name])}" for name in _BODIES)
        line += "\n" + "    ".join(labels)
    return line


def body_label(name: str, record: dict[str, Any]) -> str:
    """The label of a body: "drafting on" or "drafting off" if the other body only switches drafting off, else its name."""
    settings = record["settings"]
    if settings["against"] == _OFF and "speculation" not in settings["body"]:
        return {"body": "drafting on", "against": "drafting off"}[name]
    return name


def _words(fields: dict[str, Any]) -> str:
    text = json.dumps(fields, ensure_ascii=False) if fields else "as the server does it"
    return text if len(text) < 60 else f"{text[:57]}..."


def _latencies(record: dict[str, Any], figure: Figure, panels: list[Axes]) -> None:
    """Cumulative shares, one curve per load and body."""
    from matplotlib import colormaps

    levels = sorted(record["levels"], key=lambda level: level["load"]["value"])
    # a search tries many rates; plot a few of them
    chosen = [levels[i] for i in sorted({round(i) for i in np.linspace(0, len(levels) - 1, min(len(levels), _MOST_CURVES))})]
    shades = colormaps["viridis"](np.linspace(0, 0.85, len(chosen)))
    both = record["settings"]["against"] is not None
    limits = record["settings"]["objective"] or {}
    for axes, measure in zip(panels, _SHOWN, strict=True):
        for place, level in enumerate(chosen):
            for name, found in level["bodies"].items():
                points = np.array(found["distributions"][measure]) * 1e3
                if not len(points):
                    continue
                colour, line, _ = _BODIES[name]
                label = str(Load(**level["load"])) + (f", {body_label(name, record)}" if both else "")
                if found["answered"] < found["sent"]:
                    label += f": {found['answered']} of {found['sent']}, which were answered"
                shares = np.linspace(0, 1, len(points))
                axes.plot(
                    points,
                    shares,
                    line,
                    drawstyle="steps-post",
                    color=colour if len(chosen) == 1 else shades[place],
                    linewidth=1.6,
                    label=label,
                )
        if limit := limits.get(measure.removesuffix("_s")):
            axes.axvline(limit * 1e3, color="black", linewidth=1, linestyle=":", label="SLO")
        _time_axis(axes, _SHOWN[measure] + ("; tokens that came with another are 0 apart" if measure == "itl_s" else ""))
        axes.set_ylim(0, 1.02)
        axes.set_ylabel("share at most so long")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 6), fontsize=8, frameon=False)


def _time_axis(axes: Axes, title: str) -> None:
    """A logarithmic axis; linear near 0 if curves begin at 0 or far to the left, as for chunks that were read together."""
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel("ms")
    if not axes.lines:
        return
    ends = [float(end(line.get_xdata())) for line in axes.lines for end in (np.min, np.max)]
    least, most = min(ends), max(ends)
    if least * _WIDEST >= most:
        axes.set_xscale("log")
        axes.set_xlabel("ms, logarithmic")
        _plain_ticks(axes.xaxis, *axes.get_xlim())
        return
    straight = float(f"{most / _WIDEST:.0e}")
    axes.set_xscale("symlog", linthresh=straight, linscale=0.5)
    axes.set_xlim(-straight / 8, most * 1.1)
    axes.set_xlabel(f"ms, logarithmic from {straight:g} on")
    _plain_ticks(axes.xaxis, straight, most * 1.1, 0.0)


def _plain_ticks(axis: Axis, low: float, high: float, *more: float) -> None:
    """Round ticks with plain labels on a logarithmic axis of any span, not too close to each other. more: additional ticks."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    ticks: list[float] = []
    for steps in _TICKS:
        if len(ticks) >= _ENOUGH_TICKS:
            break
        for tick in (step * 10.0**power for power in range(-4, 8) for step in steps):
            apart = all(abs(log(tick / other)) > log(high / low) / _MOST_TICKS for other in ticks)
            if low <= tick <= high and apart and len(ticks) < _MOST_TICKS:
                ticks.append(tick)
    axis.set_major_locator(FixedLocator([*more, *ticks]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def _load(record: dict[str, Any], figure: Figure, panels: list[Axes]) -> None:
    """Throughput, requests and latencies over the load, one line per body."""
    both, good = record["settings"]["against"] is not None, record["settings"]["objective"] is not None
    for name, values, found in _by_body(record):
        colour, line, marker = _BODIES[name]
        look = {"color": colour, "linestyle": line, "marker": marker, "markersize": 5, "linewidth": 1.6}
        name_shown = body_label(name, record)
        label = name_shown if both else None
        panels[0].plot(values, [one["tokens_per_s"] for one in found], **look, label=label)
        answered = f"{name_shown}, answered" if both else "answered"
        panels[1].plot(values, [one["requests_per_s"] for one in found], **look, label=answered)
        if good:
            good_look = {**look, "color": _GOOD, "markerfacecolor": "white"}
            rates = [one["goodput"]["requests_per_s"] for one in found]
            panels[1].plot(values, rates, **good_look, label=f"{name_shown}, within SLO" if both else "within SLO")
            panels[3].plot(values, [one["goodput"]["share"] for one in found], **look, label=label)
        for axes, measure in ((panels[2], "ttft_s"), (panels[3], "tpot_s"))[: 1 if good else 2]:
            timed = [(value, one[measure]) for value, one in zip(values, found, strict=True) if one[measure]]
            for at, width in (("p50", 1.6), ("p99", 0.8)):
                times = [summary[at] * 1e3 for _, summary in timed]
                whose = f"{name_shown}, {at}" if both else at
                axes.plot(
                    [value for value, _ in timed],
                    times,
                    **{**look, "linewidth": width, "alpha": 1.6 / 3 + width / 3.5},
                    label=whose,
                )
    _finish_load(record, panels, good)


def _finish_load(record: dict[str, Any], panels: list[Axes], good: bool) -> None:
    kind = record["levels"][0]["load"]["kind"]
    values = sorted({level["load"]["value"] for level in record["levels"]})
    times = [f"{_SHOWN[measure]}, ms, logarithmic" for measure in ("ttft_s", "tpot_s")]
    titles = ["tokens per second", "requests per second", times[0], "share of requests within SLO" if good else times[1]]
    for axes, title in zip(panels, titles, strict=True):
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_xlabel("requests at once, logarithmic" if kind == "concurrency" else "requests per second offered")
        if kind == "concurrency":
            axes.set_xscale("log", base=2)
            axes.set_xticks(values, [f"{value:g}" for value in values])
            axes.minorticks_off()
            # room for labels at the first and the last point
            axes.margins(x=0.08)
        axes.margins(y=0.12)
        axes.set_ylim(bottom=0)
    for axes in panels[2 : 3 if good else 4]:
        axes.set_ylim(auto=True)
        axes.set_yscale("log")
        _plain_ticks(axes.yaxis, *axes.get_ylim())
    if kind == "rate":
        panels[1].plot(values, values, color="grey", linewidth=0.8, linestyle=":", label="offered")
    if good:
        panels[3].set_ylim(0, 1.05)
    if (found := record["find_rate"]) is not None:
        panels[3].axhline(
            found["needed_share"], color="black", linewidth=0.8, linestyle=":", label=f"{found['needed_share']:.0%} needed"
        )
        if found["held_per_s"]:
            for axes in panels[1::2]:
                axes.axvline(found["held_per_s"], color=_GOOD, linewidth=1, label=f"{found['held_per_s']:.3g}/s held")
    for level in record["levels"]:
        if level["against"] is not None and (terms := level["against"]["means"]["tokens_per_s"])["ratio"]:
            panels[0].annotate(
                f"x{terms['ratio']:.2f}", (level["load"]["value"], terms["body"]), xytext=(0, 7), textcoords="offset points",
                ha="center", fontsize=8,
            )  # fmt: skip
    for axes in panels:
        if axes.get_legend_handles_labels()[1]:
            axes.legend(fontsize=8, frameon=False)


def _by_body(record: dict[str, Any]) -> Iterator[tuple[str, list[float], list[dict[str, Any]]]]:
    """For each body its loads, ascending, and its results at each of them."""
    levels = sorted(record["levels"], key=lambda level: level["load"]["value"])
    for name in levels[0]["bodies"]:
        yield name, [level["load"]["value"] for level in levels], [level["bodies"][name] for level in levels]
