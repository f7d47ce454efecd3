"""Rotary positions in Triton: values written to pages stay finite, so that a weight of zero cancels them."""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("triton", reason="there is no Triton for this platform")

from paceline.kernels.rotary import Heads, turned

DEVICE = torch.device("cuda" if os.environ["TRITON_INTERPRET"] == "0" else "cpu")


# the interpreter also converts values that a mask keeps from being stored
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_keys_and_values_that_overflow_are_the_largest_there_are(dtype: torch.dtype) -> None:
    heads, rows, most = Heads(queries=2, keys=1, size=16, rotary=8), 3, torch.finfo(dtype).max
    torch.manual_seed(0)
    parts = torch.randn(1, rows, 4 * 16, device=DEVICE)
    plain, spoilt = parts.clone(), parts.clone()
    spoilt[:, 1, 32:] = 3.4e38
    spoilt[:, 1, 40:] = -3.4e38
    places = torch.arange(rows, dtype=torch.int32, device=DEVICE)
    tables = torch.ones(8, 4, device=DEVICE), torch.zeros(8, 4, device=DEVICE)
    found = []
    for numbers in (plain, spoilt):
        keys, values = torch.zeros(2, rows, 1, 16, dtype=dtype, device=DEVICE)
        turned(numbers, heads, tables, places, places, keys, values)
        found.append((keys, values))
    for clean, harmed in zip(*found, strict=True):
        assert torch.equal(clean[::2], harmed[::2]), "other rows are unchanged"
    keys, values = found[1]
    assert keys[1, 0].tolist() == [most] * 8 + [-most] * 8
    assert values[1, 0].tolist() == [-most] * 16


def test_a_value_that_is_not_a_number_is_stored_as_0_with_a_key_of_nan() -> None:
    heads, places = Heads(queries=2, keys=1, size=16, rotary=8), torch.arange(2, dtype=torch.int32, device=DEVICE)
    parts = torch.ones(1, 2, 4 * 16, device=DEVICE)
    parts[:, 1] = torch.nan
    tables = torch.ones(8, 4, device=DEVICE), torch.zeros(8, 4, device=DEVICE)
    keys, values = torch.zeros(2, 2, 1, 16, device=DEVICE)
    queries = turned(parts, heads, tables, places, places, keys, values)
    assert values.flatten(1).tolist() == [[1.0] * 16, [0.0] * 16]
    assert keys[0].isfinite().all()
    assert keys[1].isnan().all()
    assert queries[1].isnan().all()
