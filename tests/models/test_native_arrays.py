"""Scratch, rotation tables and threads of a step: if creating them is interrupted, the next step creates them again."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from native import THREADS, checkpoint, native, threads
from paceline.kernels.native import layout, threads as native_threads
from paceline.models.native import NativeModel
from paceline.models.native_arrays import Scratch
from paceline.models.rotation import Rotation
from paceline.tree import DraftTree
from stepping import missing, score, sequence

SHORT, LONG = [5, 6, 7], [3 + n % 50 for n in range(40)]


def read(model: NativeModel, tokens: list[int]) -> torch.Tensor:
    """float32 [1, V]: the logits behind a text."""
    cache, owner = model.new_cache(), sequence(1, tokens)
    return score(model, cache, [missing(cache, owner, DraftTree.root(owner.root))]).logits


def failing_at(monkeypatch: pytest.MonkeyPatch, kind: type, name: str, number: int) -> list[bool]:
    """Interrupts a method after its `number`-th call from now on; the returned list is filled when that happens."""
    method, calls, failed = getattr(kind, name), [0], []

    def interrupted(*given, **named):
        result = method(*given, **named)
        calls[0] += 1
        if calls[0] == number:
            failed.append(True)
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(kind, name, interrupted)
    return failed


@pytest.mark.skipif(sys.platform != "linux", reason="memory is told by Linux")
def test_room_that_nobody_writes_to_takes_no_memory(tmp_path: Path) -> None:
    """A long text on many threads reserves gigabytes."""
    scratch, call = Scratch(native(checkpoint(tmp_path)[0]).packed), np.zeros(1, layout.CALL)[0]
    before = resident_bytes()
    # how much depends on the tile height, which is lower on processors with fewer registers
    scratch.reserve(call, threads=64, rows=8, longest=262_144)
    assert 64 * int(call["scratch"]["attention_bytes"]) > 200 << 20
    assert resident_bytes() - before < 100 << 20
    for name in ("residual", "gated", "inner", "tiles", "row", "attention"):
        assert call["scratch"][name] % 64 == 0


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("number", range(1, 8))
def test_room_that_was_not_made_in_full_is_made_anew(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = checkpoint(tmp_path)
    expected = read(native(folder), LONG)
    model = native(folder)
    read(model, SHORT)
    failed = failing_at(monkeypatch, Scratch, "_point", number)
    with pytest.raises(KeyboardInterrupt):
        read(model, LONG)
    assert failed
    assert torch.equal(read(model, LONG), expected)


def test_where_no_thread_can_be_started_a_step_runs_on_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Thread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    model = native(checkpoint(tmp_path)[0])
    expected = read(model, LONG)
    monkeypatch.setattr(native_threads, "_pools", {})
    monkeypatch.setattr(native_threads, "Thread", Thread)
    with threads(THREADS[-1]):
        assert torch.equal(read(model, LONG), expected)
    assert model._call["threads"] == 1


def test_rotations_that_were_not_made_in_full_are_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = checkpoint(tmp_path)
    expected = read(native(folder), LONG)
    model = native(folder)
    model.packed._positions = 8
    failed = failing_at(monkeypatch, Rotation, "tables", 1)
    with pytest.raises(KeyboardInterrupt):
        read(model, LONG)
    assert failed
    assert torch.equal(read(model, LONG), expected)
