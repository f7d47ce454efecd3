"""Measured costs: available before the first step, kept on disk, and never a cause of failure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path

import pytest
import torch

from fakes import DenseTableCache, RecordingCache, TableModel, coupled
from paceline.cache.base import KVCache
from paceline.cache.pages import OutOfPages
from paceline.drafters.base import Drafter
from paceline.drafters.model import ModelDrafter, Options as ModelOptions
from paceline.drafters.ngram import NgramDrafter, Options
from paceline.engine import measure
from paceline.models.base import ModelError, Scores
from paceline.policies import adaptive
from paceline.speculative import Speculative
from paceline.step import Step
from paceline.verifiers.match import Match


class Machine:
    """Simulated times of forwards: 1 s, and `row_s` per further row, all times `pace`. drift: factor on `row_s` per forward."""

    def __init__(self) -> None:
        self.row_s, self.pace, self.drift = 0.02, 1.0, 1.0
        self.measured_rows: set[int] = set()

    def forward(self, rows: int, batch: int = 1) -> float:
        self.measured_rows.add(rows)
        self.row_s *= self.drift
        return self.pace * (1.0 + self.row_s * (rows * batch - 1))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(measure.ModelForward, "__call__", lambda _, *shape: machine.forward(*shape))
    return machine


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "paceline" / "costs"


def pair(drafter: Drafter | None = None, cache: type[RecordingCache] | type[DenseTableCache] = RecordingCache) -> Speculative:
    model = TableModel(6, cache=cache)
    return Speculative(model, drafter or coupled(model), Match(), adaptive.build(adaptive.Options()))


def test_forwards_by_rows_and_costly_drafts_are_measured(folder: Path) -> None:
    speculative = pair()
    measure.measure(speculative, 4096, "model:fake")
    points = speculative.costs.curve.points
    assert {1, 2, 4, 8, 16} <= points.keys()
    assert all(seconds > 0 for seconds in points.values())
    assert {depth for depth, _ in speculative.costs.drafts["model"].points} == {1, 3}
    assert {batch for _, batch in speculative.costs.drafts["model"].points} == {1, 4, 16}
    # the measurement leaves nothing in the caches
    assert speculative.cache.held_bytes == 0
    assert speculative.drafter.sequence_bytes == 0


def test_what_was_measured_is_read_at_the_next_start(folder: Path, machine: Machine) -> None:
    first, second, other = pair(), pair(), pair()
    for speculative, spec in ((first, "model:a"), (second, "model:a"), (other, "model:b")):
        machine.measured_rows.clear()
        measure.measure(speculative, 4096, spec)
        if speculative is second:
            assert machine.measured_rows == {1, 16}
        else:
            assert {1, 2, 3, 16, 48} <= machine.measured_rows
    assert second.costs.sequence_s == first.costs.sequence_s
    assert second.costs.curve.points == pytest.approx(first.costs.curve.points)
    assert second.costs.drafts["model"].points == pytest.approx(first.costs.drafts["model"].points)


def test_costs_measured_on_a_busy_machine_are_corrected_at_the_next_starts(folder: Path, machine: Machine) -> None:
    """While the machine was busy, each further row cost 0.3 of the first one, and was measured so."""
    machine.row_s = 0.3
    measure.measure(pair(), 4096, "a")
    machine.row_s, machine.pace = 0.02, 5.0
    speculative = pair()
    measure.measure(speculative, 4096, "a")
    assert speculative.costs.curve(16) == pytest.approx(5.0 * 1.3)
    # the machine as a whole may have become faster or slower
    machine.pace = 1.0
    machine.measured_rows.clear()
    speculative = pair()
    measure.measure(speculative, 4096, "a")
    assert machine.measured_rows == {1, 16}
    assert speculative.costs.curve(16) == pytest.approx(1.3)


def test_a_start_on_a_busy_machine_keeps_the_costs_on_disk(folder: Path, machine: Machine) -> None:
    measure.measure(pair(), 4096, "a")
    (file,) = folder.iterdir()
    kept = file.read_text()
    machine.drift = 1.1
    speculative = pair()
    measure.measure(speculative, 4096, "a")
    assert file.read_text() == kept
    assert speculative.costs.curve(16) / speculative.costs.curve(1) == pytest.approx(1.3)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "curve []",
        "curve [[0, 1.0]]",
        "curve [[1, -1]]",
        "sequence_s NaN",
        "key_s -1",
        "look [1, 2]",
        "look [0, 1, 2]",
    ],
)
def test_a_damaged_file_is_measured_anew(folder: Path, text: str) -> None:
    measure.measure(pair(), 4096, "a")
    (file,) = folder.iterdir()
    part, _, value = text.partition(" ")
    file.write_text(json.dumps({**json.loads(file.read_text()), part: json.loads(value)}) if value else text)
    speculative = pair()
    measure.measure(speculative, 4096, "a")
    assert speculative.costs.curve
    assert json.loads(file.read_text())["curve"]


def test_where_nothing_can_be_written_it_is_measured_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    speculative = pair()
    measure.measure(speculative, 4096, "a")
    assert speculative.costs.curve


def test_costs_are_measured_within_a_short_context(folder: Path) -> None:
    model = TableModel(6, context_length=20)
    speculative = Speculative(model, NgramDrafter(Options()), Match(), adaptive.build(adaptive.Options()))
    measure.measure(speculative, 20, "ngram")
    assert max(speculative.costs.curve.points) <= 20
    assert speculative.costs.drafts == {}


def test_a_context_of_one_token_is_measured_at_nothing_and_does_not_fail(folder: Path) -> None:
    speculative = pair()
    measure.measure(speculative, 1, "model:a")
    assert not speculative.costs.curve.points


def test_other_lengths_and_other_drafters_have_costs_of_their_own(folder: Path) -> None:
    larger = TableModel(6)
    larger.weights_bytes = 7
    for model, longest in ((TableModel(6), 4096), (TableModel(6), 256), (larger, 4096), (TableModel(6), 4096)):
        measure.measure(pair(ModelDrafter(model, 6, ModelOptions(path="fake"))), longest, "model:a")
    assert len(list(folder.iterdir())) == 3


def test_a_draft_model_of_a_smaller_vocabulary_is_measured_on_tokens_it_has(folder: Path) -> None:
    fed: list[int] = []

    class Smaller(TableModel):
        def score(self, step: Step, cache: KVCache, taps: Iterable[int] = ()) -> Scores:
            fed.extend(step.tokens)
            return super().score(step, cache, taps)

    measure.measure(pair(ModelDrafter(Smaller(3), 6, ModelOptions(path="fake"))), 4096, "model:a")
    assert len(fed) > 127
    assert max(fed) < 3


def test_the_costs_per_token_of_context_are_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1 s, and 20 ms per further row; per token of context 1 microsecond, and 10 more per row that attends to it."""

    def forward(self: measure.ModelForward, rows: int, batch: int = 1) -> float:
        tokens = self._context
        return 1.0 + 0.02 * (rows * batch - 1) + 1e-6 * batch * tokens + 1e-5 * rows * batch * tokens

    monkeypatch.setattr(measure.ModelForward, "__call__", forward)
    for _ in range(2):
        # measured the first time, then read from disk
        speculative = pair(cache=DenseTableCache)
        measure.measure(speculative, 4096, "a")
        curve = speculative.costs.curve
        assert curve.context == 127
        assert curve.key_s == pytest.approx(1e-6, rel=1e-3)
        assert curve.row_key_s == pytest.approx(1e-5, rel=1e-3)
        curve.behind(3000, 1)
        assert curve(8) == pytest.approx(1.14 + 3e-3 + 0.24, rel=1e-3)


@pytest.mark.parametrize(("share", "tokens"), [(1 / 16, 4096 - 16), (1.0, 4 * 175), (3.0, None)])
def test_a_far_context_takes_little_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch, share: float, tokens: int | None
) -> None:
    """share: bytes of a near context of 127 + 48 tokens, as a share of four times the limit of a far one."""
    held: list[int] = []
    honest = measure.FarForward.__init__

    def noted(self: measure.FarForward, model: TableModel, context: int, rows: int) -> None:
        held.append(context)
        honest(self, model, context, rows)

    monkeypatch.setattr(measure.FarForward, "__init__", noted)
    monkeypatch.setattr(measure.ModelForward, "token_bytes", measure._FAR_BYTES * share / (4 * 175))
    measure.measure(pair(), 4096, "ngram")
    assert held == ([] if tokens is None else [tokens])


def test_a_slow_machine_is_not_kept_waiting(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_PATIENCE_S", 0.0)
    speculative = pair()
    measure.measure(speculative, 4096, "a")
    assert list(speculative.costs.curve.points) == [1, 2]
    assert {(depth, batch) for curve in speculative.costs.drafts.values() for depth, batch in curve.points} == {(1, 1), (3, 1)}, (
        "but the cost of a draft alone is measured, or it would count as free"
    )


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure everything, once, however busy the machine is."""
    monkeypatch.setattr(measure, "_REPEATS", 1)
    monkeypatch.setattr(measure, "_PATIENCE_S", inf)


SHORT = [torch.OutOfMemoryError, MemoryError, lambda: OutOfPages(2, 1, 16)]


class Small(TableModel):
    """Runs out of memory above `most` rows of a step, or above `sequences` sequences."""

    def __init__(self, most: float, error: Callable[[], BaseException], sequences: float = inf) -> None:
        super().__init__(6)
        self.most, self._error, self._sequences = most, error, sequences

    def score(self, step: Step, cache: KVCache, taps: Iterable[int] = ()) -> Scores:
        if len(step.tokens) > self.most or len(step.segments) > self._sequences:
            raise self._error()
        return super().score(step, cache, taps)


@pytest.mark.parametrize("error", SHORT)
@pytest.mark.parametrize(("most", "rows"), [(2, 2), (10, 10), (127, 96)])
def test_what_there_is_no_memory_for_is_left_out(
    folder: Path, once: None, error: Callable[[], BaseException], most: int, rows: int
) -> None:
    model = Small(most, error)
    speculative = Speculative(model, coupled(model.disturbed(0.1)), Match(), adaptive.build(adaptive.Options()))
    measure.measure(speculative, 4096, "a")
    assert max(speculative.costs.curve.points) == rows
    assert speculative.costs.drafts["model"].points
    assert speculative.drafter.sequence_bytes == 0
    # incomplete costs are not saved: another start may have more memory
    assert folder.exists() == (most == 127)
    model.most = inf
    measure.measure(speculative, 4096, "a")
    assert max(speculative.costs.curve.points) == 96
    assert folder.exists()


@pytest.mark.parametrize("error", SHORT)
def test_drafts_that_there_is_no_memory_for_are_left_out(folder: Path, once: None, error: Callable[[], BaseException]) -> None:
    model, drafter = TableModel(6), ModelDrafter(Small(inf, error, sequences=3), 6, ModelOptions(path="fake"))
    speculative = Speculative(model, drafter, Match(), adaptive.build(adaptive.Options()))
    measure.measure(speculative, 4096, "a")
    assert {batch for _, batch in speculative.costs.drafts["model"].points} == {1}
    assert speculative.costs.reading["model"] >= 0.0
    assert max(speculative.costs.curve.points) == 96
    assert speculative.drafter.sequence_bytes == 0
    assert not folder.exists()


@pytest.mark.parametrize("error", SHORT)
def test_no_memory_for_any_forward_is_one_sentence(folder: Path, error: Callable[[], BaseException]) -> None:
    model = Small(0, error)
    speculative = Speculative(model, coupled(TableModel(6)), Match(), adaptive.build(adaptive.Options()))
    with pytest.raises(ModelError, match="too little memory for a forward of 'table'"):
        measure.measure(speculative, 4096, "a")


def test_an_error_other_than_out_of_memory_is_raised_by_measuring(folder: Path) -> None:
    model = Small(10, lambda: RuntimeError("shapes do not fit"))
    speculative = Speculative(model, coupled(TableModel(6)), Match(), adaptive.build(adaptive.Options()))
    with pytest.raises(RuntimeError, match="shapes"):
        measure.measure(speculative, 4096, "a")


def test_disturbed_timings_leave_a_curve_of_fastest_turns_that_never_falls() -> None:
    """Every size is slow in some turns, one size in all of them: the fastest turn counts, and more rows never take less time."""
    seen: dict[int, int] = {}

    def forward(rows: int) -> float:
        seen[rows] = seen.get(rows, 0) + 1
        return 0.1 * rows * (3.0 if rows == 2 or seen[rows] % 4 else 1.0)

    assert measure._forwards(forward, (1, 2, 3, 4), measure._Spared()) == pytest.approx({1: 0.1, 2: 0.3, 3: 0.3, 4: 0.4})
    assert len(set(seen.values())) == 1
