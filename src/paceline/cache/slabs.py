"""How large slabs are: what every cache of one slab per sequence has in common."""

from __future__ import annotations

FIRST_CAPACITY = 128
AHEAD = 64
"""Tokens that a fork can go on for before it must grow."""


def capacity_for(slots: int) -> int:
    """The capacity that holds so many slots: the first one, doubled as often as it takes."""
    capacity = FIRST_CAPACITY
    while capacity < slots:
        capacity *= 2
    return capacity
