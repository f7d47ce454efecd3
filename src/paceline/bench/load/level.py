"""Level: one load measured, with one body or with two in turns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence as Many
from dataclasses import dataclass, replace
from typing import Any

from paceline.bench.load.arrivals import poisson
from paceline.bench.load.comparison import compared
from paceline.bench.load.drive import Asker, Block, closed_loop, open_loop
from paceline.bench.load.measures import measured
from paceline.bench.load.outcome import Outcome
from paceline.bench.load.prompts import Asked
from paceline.bench.load.settings import Load, Settings

BODIES = ("body", "against")


@dataclass(frozen=True)
class Level:
    """Measures one load.

    words: makes the JSON body of a request, from an `Asked` and the name of the body. count: counts the tokens of texts, if the
    usage lacks them; returns None if the server cannot count.
    """

    asker: Asker
    settings: Settings
    asked: Many[Asked]
    words: Callable[[Asked, str], Mapping[str, Any]]
    count: Callable[[Many[str]], Awaitable[list[int] | None]]

    async def measure(self, load: Load, ended: Callable[[], None]) -> dict[str, Any]:
        """The record's entry for this load. ended: called as each request ends."""
        names = BODIES if self.settings.against is not None else BODIES[:1]
        size = self.settings.turn(load) if len(names) > 1 else len(self.asked)
        blocks: dict[str, list[Block]] = {name: [] for name in names}
        for number, start in enumerate(range(0, len(self.asked), size)):
            part = self.asked[start : start + size]
            # the order of the two bodies alternates, so that a drift of the machine's speed affects both
            for name in names if number % 2 == 0 else names[::-1]:
                blocks[name].append(await self._block(part, name, load, number, ended))
        counted_by, blocks = await self._counted(blocks)
        found = {
            name: measured(
                [outcome for block in blocks[name] for outcome in block.outcomes],
                sum(block.wall_s for block in blocks[name]),
                self.settings.objective,
            )
            for name in names
        }
        for name in names:
            found[name]["requests"] = [_row(outcome) for block in blocks[name] for outcome in block.outcomes]
        pairs = list(zip(*blocks.values(), strict=True))
        return {
            "load": {"kind": load.kind, "value": load.value},
            "counted_by": counted_by,
            "block": size,
            "bodies": found,
            "against": compared(found["body"], found["against"], pairs) if len(names) > 1 else None,
        }

    async def _block(self, part: Many[Asked], name: str, load: Load, number: int, ended: Callable[[], None]) -> Block:
        bodies = [(asked.index, self.words(asked, name)) for asked in part]
        if load.kind == "concurrency":
            return await closed_loop(self.asker, bodies, int(load.value), ended)
        if load.kind == "rate":
            due_s = poisson(load.value, len(part), self.settings.seed + number)
        else:
            moments = [self.settings.trace[asked.index].due_s / load.value for asked in part]
            due_s = [moment - moments[0] for moment in moments]
        return await open_loop(self.asker, bodies, due_s, ended)

    async def _counted(self, blocks: Mapping[str, list[Block]]) -> tuple[str, dict[str, list[Block]]]:
        """How tokens were counted, and the blocks with the tokens of every answer, as far as they can be counted."""
        untold = [o for many in blocks.values() for block in many for o in block.outcomes if o.answered and o.tokens is None]
        reported = any(o.tokens is not None for many in blocks.values() for block in many for o in block.outcomes)
        counts = await self.count([outcome.text for outcome in untold]) if untold else []
        by = [
            source for source, used in (("usage", reported), ("chunks" if counts is None else "tokenize", bool(untold))) if used
        ]
        if not untold or counts is None:
            return " and ".join(by) or "usage", dict(blocks)
        tokens = {id(outcome): count for outcome, count in zip(untold, counts, strict=True)}

        def whole(outcome: Outcome) -> Outcome:
            return replace(outcome, tokens=tokens[id(outcome)]) if id(outcome) in tokens else outcome

        return " and ".join(by), {
            name: [Block(tuple(map(whole, block.outcomes)), block.wall_s) for block in many] for name, many in blocks.items()
        }


def _row(outcome: Outcome) -> dict[str, Any]:
    """A request as stored in a record; times in seconds, rounded to microseconds."""
    times = {
        "due_s": outcome.due_s, "lag_s": outcome.lag_s, "ttft_s": outcome.first_s, "tpot_s": outcome.tpot_s,
        "e2e_s": outcome.ended_s,
    }  # fmt: skip
    return {
        "index": outcome.index,
        "error": outcome.error,
        **{name: None if value is None else round(value, 6) for name, value in times.items()},
        "prompt_tokens": outcome.prompt_tokens,
        "tokens": outcome.counted_tokens if outcome.answered else None,
        "chunks": outcome.chunks,
    }
