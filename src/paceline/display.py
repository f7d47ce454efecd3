"""What the terminal shows: summary lines, coloured traces, tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from paceline.engine.engine import Progress
from paceline.engine.llm import Completion
from paceline.engine.text import TextStream
from paceline.learning.costs import Spent
from paceline.methods import default_of
from paceline.models.tokenizer import Tokenizer
from paceline.sequence import Speculation

_COLOURS = ("green", "cyan", "magenta", "yellow", "blue", "bright_red")


class Trace:
    """Colours every token by the drafter that proposed it; rejected tokens follow, struck out, or in brackets where no styles are
    shown, as in a file."""

    def __init__(self, console: Console, tokenizer: Tokenizer) -> None:
        self._console, self._tokenizer = console, tokenizer
        self._colours: dict[str, str] = {}
        self._text: TextStream | None = None
        """What was emitted so far: it holds back a character that further tokens complete."""

    def show(self, progress: Progress) -> None:
        """Print one step."""
        tree, verdict = progress.outcome.tree, progress.outcome.verdict
        if tree is None:
            return
        line = Text()
        text = self._text = self._text or TextStream(self._tokenizer, prompt=progress.sequence.prompt)
        for index, token in enumerate(verdict.tokens):
            source = tree.sources[verdict.path[index]] if index < len(verdict.path) else ""
            shown = len(text.text)
            text.append(token)
            line.append(text.text[shown:], style=self._colour(source))
        if progress.finished:
            shown = len(text.text)
            text.finish()
            line.append(text.text[shown:])
        accepted = set(verdict.path)
        for node in range(1, tree.candidates):
            if node not in accepted:
                piece = self._piece(tree.tokens[tree.parents[node]], tree.tokens[node]).replace("\n", "⏎")
                line.append(self._in_vain(piece), style=f"dim strike {self._colour(tree.sources[node])}")
        self._console.print(line, end="", soft_wrap=True, highlight=False)

    def _in_vain(self, piece: str) -> str:
        return piece if self._console.color_system else f"[-{piece}-]"

    def _piece(self, before: int, token: int) -> str:
        """A drafted token's text behind another: some tokenizers drop the space of a token decoded alone."""
        return self._tokenizer.decode([before, token])[len(self._tokenizer.decode([before])) :]

    def legend(self) -> None:
        """Print the colour of each drafter; the target's own tokens are plain."""
        line = Text("\ntarget", style="bold")
        for source, colour in self._colours.items():
            line.append(f"  {source}", style=f"bold {colour}")
        line.append("  ").append(self._in_vain("drafted in vain"), style="dim strike")
        self._console.print(line)

    def _colour(self, source: str) -> str:
        if not source:
            return "default"
        return self._colours.setdefault(source, _COLOURS[len(self._colours) % len(_COLOURS)])


def summary(completion: Completion, drafter: str, wall_s: float) -> str:
    """One line: speed, tau, acceptance. It does not claim that the text equals plain decoding's, which is not checked here."""
    count = completion.speculation
    rate = len(completion.token_ids) / wall_s if wall_s else 0.0
    line = f"{len(completion.token_ids)} tokens, {rate:.1f} tokens/s, tau {count.tau:.2f}"
    if count.draft_tokens:
        line += f", acceptance {count.accepted_tokens / count.draft_tokens:.2f}"
    # keeping the text of plain decoding is the normal case, which needs no mention
    guarantee = {"law": "; in distribution", "nothing": "; not lossless"}.get(completion.keeps, "")
    return f"{line} ({drafter}){guarantee}"


def speculation_json(count: Speculation) -> dict[str, Any]:
    """The counts of one answer, for `--json`."""
    return {
        "steps": count.steps,
        "draft_tokens": count.draft_tokens,
        "accepted_tokens": count.accepted_tokens,
        "tau": round(count.tau, 4),
        "predicted_tau": round(count.predicted_tau, 4),
        "acceptance_by_depth": [round(share, 4) for share in count.acceptance_by_depth],
        "drafted_by_depth": count.drafted_by_depth,
        "accepted_by_depth": count.accepted_by_depth,
        "target_forwards": count.target_forwards,
    }


def profile_table(parts: Mapping[str, Spent], steps: int) -> Table:
    """Where the time of an answer went: draft, forward, verify, commit and what is around them."""
    table = Table(title=f"{steps} steps", title_justify="left", header_style="dim", box=box.SIMPLE)
    table.add_column("part")
    for name in ("ms per step", "share"):
        table.add_column(name, justify="right")
    for name, part in parts.items():
        table.add_row(name, f"{part.ms_per_step:.3f}", f"{part.share:.1%}")
    return table


def method_entry(row: Mapping[str, Any]) -> Group:
    """One method in full. row: as `methods.listed` has it."""
    parts: list[RenderableType] = [Text(row["name"], style="bold"), Text(row["summary"])]
    if row.get("description"):
        parts.append(Text("\n" + row["description"]))
    if row.get("options"):
        table = Table(header_style="dim", box=box.SIMPLE)
        for column in ("option", "default", "values", "meaning"):
            table.add_column(column, ratio=1 if column == "meaning" else None)
        for option in row["options"]:
            table.add_row(option["name"], default_of(option), option["values"], option["meaning"])
        parts.append(table)
    else:
        parts.append(Text())
    told = {field: row[field] for field in _FIELDS if isinstance(row.get(field), str)}
    parts += [Text.assemble((f"{field}: ", "dim"), said) for field, said in told.items()]
    return Group(*parts)


_FIELDS = ("source", "proposals", "exactness", "lossless", "taps", "branching", "trained", "cost")
_WIDE = 120
"""Line width in characters from which a table has room for more than names and summaries."""
_COLUMNS = ("name", "summary", "proposals", "exactness", "branching", "trained")


def methods_table(family: str, rows: list[dict[str, str]], width: int) -> Table:
    """One registry as a table: the short fields, as far as they fit; `--json` and docs/methods.md have them all."""
    table = Table(title=family, title_justify="left", title_style="bold", header_style="dim", box=box.SIMPLE)
    shown = _COLUMNS if width >= _WIDE else _COLUMNS[:2]
    columns = [name for name in shown if any(name in row for row in rows)]
    for name in columns:
        table.add_column(name, ratio=4 if name == "summary" else 1)
    for row in rows:
        table.add_row(*(row.get(name, "") for name in columns))
    return table
