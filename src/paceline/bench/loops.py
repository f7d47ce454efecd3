"""Loops: how much of a text is one phrase repeated. Drafts predict it easily, and gain more there than on any other text."""

from __future__ import annotations

from collections.abc import Sequence as Many

LONGEST = 32
"""Tokens of the longest phrase that is searched for."""
_TIMES = 3


def looped_tokens(tokens: Many[int]) -> int:
    """Number of tokens at the end of a text that repeat a phrase of at most LONGEST tokens, three times or more."""
    most = 0
    for period in range(1, min(LONGEST, len(tokens) // _TIMES) + 1):
        same = period
        while same < len(tokens) and tokens[-1 - same] == tokens[-1 - same + period]:
            same += 1
        if same >= _TIMES * period:
            most = max(most, same)
    return most
