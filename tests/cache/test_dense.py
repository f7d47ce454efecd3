"""Dense slabs when memory runs out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cache.test_cache import Dense, grow, mark
from paceline.cache import dense
from stepping import sequence


def test_a_slab_that_found_no_memory_to_grow_is_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    store, owner, copied, calls = Dense(), sequence(0, [token % 6 for token in range(100)]), dense._copied, []
    grow(store, owner)
    owner.commit(tuple(range(5)) * 20, ())

    def cramped(*given: Any) -> torch.Tensor:
        calls.append(True)
        if len(calls) == 3:
            raise torch.OutOfMemoryError
        return copied(*given)

    monkeypatch.setattr(dense, "_copied", cramped)
    with pytest.raises(torch.OutOfMemoryError):
        grow(store, owner)
    grow(store, owner)
    fresh = [mark(tuple(owner.tokens[: slot + 1])) for slot in range(200)]
    assert all(held == fresh for held in store.contents(0))
    assert store.cache.held_bytes == store.counted_bytes()
