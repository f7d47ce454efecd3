"""Drawn siblings are never withheld, however close another token came: selecting among draws would change the law."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
import pytest

from paceline import noise
from paceline.kernels.compiled import SOURCES
from paceline.kernels.native.layout import (
    COUPLED,
    INDEPENDENT,
    MOST_KEPT,
    OWNER,
    PAIRED,
    REPLACED,
)
from paceline.kernels.native.memory import carray, pointer
from paceline.kernels.native.siblings import siblings

import numba  # isort: skip  (after `vectors`)
from numba import types  # isort: skip

SEED, LENGTH = 7, 12


def _compiled(sources: str) -> Any:
    def call(line, count, owner, choice, wanted, streams, held, floats, numbers):
        _ = sources
        one, table = carray(pointer(owner), 1, OWNER)[0], carray(pointer(numbers), (3, wanted), np.int64)
        values, shares = carray(pointer(floats), wanted, np.float64), carray(pointer(held + 4 * MOST_KEPT), wanted, np.float32)
        own = carray(pointer(streams), wanted, np.int64)
        table[2, 0] = siblings(
            line, count, one, 0, choice, wanted, own, held, values, table[0], table[1], shares, 0, count
        )  # fmt: skip

    return numba.cfunc(types.void(*[types.int64] * 9), cache=True, nogil=True, error_model="numpy")(call)


@cache
def _called() -> Any:
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 9)(_compiled(SOURCES).address)


def chosen(row: np.ndarray, choice: int, wanted: int) -> list[int]:
    """Children of a root; all noise comes from one seed."""
    owner, streams = np.zeros(1, OWNER), np.full(wanted, SEED)
    for name, value in (("temperature", 1.0), ("top_p", 1.0), ("log_min_p", -np.inf), ("seed", SEED), ("length", LENGTH)):
        owner[name] = value
    held, values, numbers = np.zeros(MOST_KEPT + wanted, np.int32), np.zeros(wanted), np.zeros((3, wanted), np.int64)
    _called()(
        row.ctypes.data, len(row), owner.ctypes.data, choice, wanted, streams.ctypes.data, held.ctypes.data, values.ctypes.data,
        numbers.ctypes.data,
    )  # fmt: skip
    return numbers[0, : numbers[2, 0]].tolist()


@pytest.mark.parametrize("wanted", [1, 2])
def test_drawn_siblings_are_not_withheld_where_two_tokens_nearly_tie(wanted: int) -> None:
    first, second, _ = noise.gumbel(SEED, LENGTH, np.arange(3)).tolist()
    tied, apart = (np.array([0.0, first - second + lead, -30.0], np.float32) for lead in (0.0, 0.5))
    for choice in (COUPLED, INDEPENDENT, REPLACED, PAIRED):
        assert len(chosen(apart, choice, wanted)) == wanted
        # a coupled choice in a near tie is left undecided, for exact sums
        assert len(chosen(tied, choice, wanted)) == (0 if choice == COUPLED else wanted)
