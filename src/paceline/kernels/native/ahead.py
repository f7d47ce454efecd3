"""Ahead: what a walk over a panel asks memory for before it needs it."""

from __future__ import annotations

from typing import Any

from paceline.kernels.native.vectors import PAGES, constant

PAGE, LINE = 4096, 64
AHEAD = max(8192, PAGES * PAGE)
"""Bytes by which a tile prefetches its panel: the latency of memory at the speed it is read, measured (ADR 0004). All pages that
are fetched in turn have arrived when the first of them is read.
"""

AHEAD_IN_PAIRS = 1024
"""The same where two panels are walked at once: there the processor's own prefetchers do more of it."""


def lines_in_turn(builder: Any, ahead: Any, reach: int) -> list[Any]:
    """What to fetch in a turn of a walk that takes `reach` bytes a turn and has `ahead` before it: as many lines, of PAGES
    neighbouring pages. Which lines of its pages a turn fetches counts up as its place does, so over all turns each is fetched
    once.
    """
    pages = max(min(PAGES, reach // LINE), 1)
    if pages == 1:
        return [builder.add(ahead, constant(line)) for line in range(0, reach, LINE)]
    assert pages * PAGE % reach == 0, "or some lines would be fetched twice and others never"
    part = builder.and_(builder.udiv(ahead, constant(reach)), constant(pages * PAGE // reach - 1))
    window = builder.and_(ahead, constant(-pages * PAGE))
    begin = builder.add(window, builder.mul(part, constant(reach // pages)))
    return [builder.add(begin, constant(page * PAGE + line)) for line in range(0, reach // pages, LINE) for page in range(pages)]
