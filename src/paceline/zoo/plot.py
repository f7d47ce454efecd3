"""The loss curves as a picture."""

from __future__ import annotations

from pathlib import Path

from paceline.zoo.checkpoint import Progress

PICTURES = (".png", ".pdf", ".svg")
"""Supported file suffixes of a picture, which determine its format."""
_HIGHEST = 6.0
"""Upper limit of the loss axis, as losses of the first steps would compress the rest of a curve."""


def plot_losses(runs: dict[str, tuple[Progress, int]], path: Path) -> None:
    """One curve per run (name to progress and tokens per step), raw and smoothed, over tokens seen."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.5, 4.2), layout="constrained")
    for index, (name, (progress, step_tokens)) in enumerate(runs.items()):
        seen = [(step + 1) * step_tokens / 1e6 for step in range(len(progress.losses))]
        axes.plot(seen, progress.losses, color=f"C{index}", alpha=0.2, linewidth=0.7)
        axes.plot(seen, smoothed(progress.losses), color=f"C{index}", label=name)
    axes.set_xlabel("tokens seen (millions)")
    axes.set_ylabel("training loss (nats per token)")
    if min(min(progress.losses) for progress, _ in runs.values()) < _HIGHEST:
        axes.set_ylim(top=min(axes.get_ylim()[1], _HIGHEST))
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.stem}.tmp{path.suffix}")
    figure.savefig(part, dpi=120)
    part.rename(path)
    pyplot.close(figure)


def smoothed(values: list[float], keep: float = 0.95) -> list[float]:
    """Exponential moving average, corrected for its start."""
    result, mean, weight = [], 0.0, 0.0
    for value in values:
        mean = keep * mean + (1 - keep) * value
        weight = keep * weight + (1 - keep)
        result.append(mean / weight)
    return result
