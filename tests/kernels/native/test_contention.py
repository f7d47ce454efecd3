"""Fewer threads while threads mostly wait for cores, all of them once they no longer do, and the same bits throughout."""

from __future__ import annotations

import pytest

from native import THREADS, threads
from paceline import LLM
from paceline.kernels.native.contention import Contention
from paceline.kernels.native.threads import CONTENTION
from paceline.params import SamplingParams


class Machine:
    """A clock, and steps of a millisecond. cores: threads that get a core; with more threads a step takes five times as long,
    four fifths of it lost.
    """  # fmt: skip

    def __init__(self, cores: int) -> None:
        self.cores, self.seconds = cores, 0.0
        self.contention = Contention(lambda: self.seconds)

    def ran(self, threads: int, seconds: float) -> list[int]:
        """The thread count of each step during `seconds` seconds."""
        counts, end = [], self.seconds + seconds
        while self.seconds < end:
            count = self.contention.allowed(threads)
            took, lost = (0.001, 0.0) if count <= self.cores else (0.005, 0.004)
            self.seconds += took
            if count > 1:
                self.contention.observe(count, took, lost)
            counts.append(count)
        return counts


@pytest.mark.parametrize("threads", [2, 3, 6, 8, 16])
def test_with_a_core_for_each_all_threads_run(threads: int) -> None:
    machine = Machine(threads)
    assert set(machine.ran(threads, 5)) == {threads}
    assert machine.contention.times == 0


@pytest.mark.parametrize(("threads", "cores", "left"), [(2, 1, 1), (8, 7, 4), (8, 3, 2), (12, 8, 8), (16, 1, 1), (3, 2, 2)])
def test_without_a_core_for_each_fewer_run_most_of_the_time(threads: int, cores: int, left: int) -> None:
    machine = Machine(cores)
    machine.ran(threads, 2)
    counts = machine.ran(threads, 10)
    assert counts.count(left) > 0.99 * len(counts)
    assert left < max(counts) <= threads


def test_all_threads_run_again_when_the_machine_is_free() -> None:
    machine = Machine(1)
    machine.ran(16, 3)
    machine.cores = 16
    machine.ran(16, 10)
    assert set(machine.ran(16, 1)) == {16}
    # what was learnt while the machine was busy is forgotten
    machine.cores = 8
    machine.ran(16, 0.1)
    machine.cores = 16
    machine.ran(16, 0.3)
    assert set(machine.ran(16, 1)) == {16}


def test_a_core_that_is_gone_for_a_moment_changes_nothing() -> None:
    contention = Contention(lambda: 0.0)
    for _ in range(20):
        contention.observe(2, 0.006, 0.005)
        for _ in range(100):
            contention.observe(2, 0.0005, 0.00001)
    assert (contention.times, contention.allowed(2)) == (0, 2)


def test_contention_does_not_lower_a_thread_count_that_is_low_already() -> None:
    contention = Contention(lambda: 0.0)
    contention.observe(8, 1.0, 0.9)
    assert [contention.allowed(threads) for threads in (8, 6, 4, 2, 1)] == [4, 4, 4, 2, 1]


@pytest.mark.skipif(THREADS[-1] == 1, reason="one core")
@pytest.mark.parametrize("draft", ["none", "model"])
def test_the_text_is_the_same_however_often_the_number_changes(monkeypatch: pytest.MonkeyPatch, draft: str) -> None:
    llm, params = LLM(draft=draft), SamplingParams(max_tokens=40, temperature=0.8, seed=3)
    expected = llm.generate(["The Eagle is"], params)[0].token_ids
    counts: list[int] = []

    def moody(threads: int) -> int:
        counts.append(min(threads, 1 + len(counts) % 3 % 2))
        return counts[-1]

    with threads(2):
        monkeypatch.setattr(CONTENTION, "allowed", moody)
        assert llm.generate(["The Eagle is"], params)[0].token_ids == expected
    assert set(counts) == {1, 2}
