"""Loops: how much of a text says the same over and over. Drafts follow it for nothing, and gain there as nowhere else."""

from __future__ import annotations

from collections.abc import Sequence as Many

LONGEST = 32
"""Tokens of the longest phrase that is looked for."""
_TIMES = 3


def looped_tokens(tokens: Many[int]) -> int:
    """Tokens at the end of a text in which a phrase of at most LONGEST tokens stands three times or more."""
    most = 0
    for period in range(1, min(LONGEST, len(tokens) // _TIMES) + 1):
        same = period
        while same < len(tokens) and tokens[-1 - same] == tokens[-1 - same + period]:
            same += 1
        if same >= _TIMES * period:
            most = max(most, same)
    return most
