"""Ahead: which memory a walk over a panel prefetches."""

from __future__ import annotations

from typing import Any

from paceline.kernels.native.vectors import PAGES, constant

PAGE, LINE = 4096, 64
AHEAD = max(8192, PAGES * PAGE)
"""Prefetch distance within a panel in bytes: memory latency times read speed, measured (ADR 0004). All pages that are prefetched
in turn have arrived when the first of them is read.
"""

AHEAD_IN_PAIRS = 1024
"""As AHEAD, when two panels are walked at once: there the processor's own prefetchers do more of the work."""


def lines_in_turn(builder: Any, ahead: Any, reach: int) -> list[Any]:
    """The cache lines to prefetch in one turn of a walk that reads `reach` bytes per turn: `reach` bytes of lines near address
    `ahead`, spread over PAGES neighbouring pages. Successive turns take successive lines of these pages, so that over all turns
    each line is fetched once.
    """
    pages = max(min(PAGES, reach // LINE), 1)
    if pages == 1:
        return [builder.add(ahead, constant(line)) for line in range(0, reach, LINE)]
    assert pages * PAGE % reach == 0, "or some lines would be fetched twice and others never"
    part = builder.and_(builder.udiv(ahead, constant(reach)), constant(pages * PAGE // reach - 1))
    window = builder.and_(ahead, constant(-pages * PAGE))
    begin = builder.add(window, builder.mul(part, constant(reach // pages)))
    return [builder.add(begin, constant(page * PAGE + line)) for line in range(0, reach // pages, LINE) for page in range(pages)]
