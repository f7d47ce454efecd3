"""Beside compiled kernels torch runs on the calling thread alone, and gets its threads back afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence as Many
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from fakes import TableModel
from native import THREADS
from paceline.models.translated import TranslatedModel, Translation
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.torch_threads import alone, quiet, usable
from paceline.tree import DraftTree
from paceline.verifiers.match import Match
from serving import engine_of, served

pytestmark = pytest.mark.skipif(THREADS == (1,), reason="one core has one thread")


@pytest.fixture(autouse=True)
def many() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS[-1])
    yield
    torch.set_num_threads(before)


def test_torch_has_one_thread_inside_alone_and_its_threads_back_afterwards() -> None:
    many = torch.get_num_threads()
    with alone():
        assert torch.get_num_threads() == 1
        with alone():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == many
    for numbers in (10, 32_768):
        with quiet(numbers):
            assert torch.get_num_threads() == many
    with quiet(32_769):
        assert torch.get_num_threads() == 1
    with pytest.raises(KeyError), alone():
        raise KeyError
    assert torch.get_num_threads() == many


def computed_alone() -> None:
    with alone():
        assert torch.get_num_threads() == 1


@pytest.mark.parametrize("first", [usable, torch.get_num_threads, computed_alone])
def test_a_thread_that_begins_while_another_computes_alone_has_its_threads(first: Callable[[], object]) -> None:
    """torch's thread count is set per process, and a thread keeps the value that it first reads."""
    with ThreadPoolExecutor(1) as beginner:
        with alone():
            beginner.submit(first).result()
            assert beginner.submit(usable).result() == THREADS[-1]
            assert torch.get_num_threads() == 1
        assert beginner.submit(usable).result() == beginner.submit(torch.get_num_threads).result() == THREADS[-1]
    with ThreadPoolExecutor(1) as later:
        assert later.submit(usable).result() == usable() == THREADS[-1]


def test_a_thread_that_was_given_one_keeps_it_while_another_computes_alone() -> None:
    def one() -> int:
        usable()
        torch.set_num_threads(1)
        return usable()

    with ThreadPoolExecutor(1) as modest:
        assert modest.submit(one).result() == 1
        torch.set_num_threads(THREADS[-1])
        with alone():
            assert modest.submit(usable).result() == 1


@pytest.mark.parametrize("own", [False, True])
def test_verifying_uses_one_torch_thread_beside_a_model_with_threads_of_its_own(
    own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, scored, honest = set[int](), set[int](), TableModel.score

    class Watching(Match):
        def __call__(self, sequences: Many[Sequence], trees: Many[DraftTree], logits: Many[torch.Tensor]) -> list[Verdict]:
            seen.add(torch.get_num_threads())
            return super().__call__(sequences, trees, logits)

    def score(self: TableModel, *rest):
        scored.add(torch.get_num_threads())
        return honest(self, *rest)

    monkeypatch.setattr("paceline.torch_threads._SHARED", 6)
    monkeypatch.setattr(TableModel, "score", score)
    monkeypatch.setattr(TableModel, "threads_of_its_own", own)
    engine = engine_of(TableModel(7))
    engine.speculative.verifier = Watching()
    served(engine, [((1, 2, 3), SamplingParams(max_tokens=4))])
    assert seen == {1 if own else THREADS[-1]}
    assert scored == {THREADS[-1]}


class Same(Translation):
    """A translation of a vocabulary to itself."""

    def __init__(self) -> None:
        self.special, self.columns = {}, torch.arange(7)

    def spelled(self, token: int, opens: bool = False) -> tuple[int, ...]:
        return (token,)


@pytest.mark.parametrize("own", [False, True])
def test_translating_vocabularies_uses_one_torch_thread_beside_a_model_with_its_own(
    own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, scored, honest = set[int](), set[int](), TableModel.score

    def score(self: TableModel, *rest):
        scored.add(torch.get_num_threads())
        return honest(self, *rest)

    class Columns(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            if function is torch.Tensor.index_select:
                seen.add(torch.get_num_threads())
            return super().__torch_function__(function, types, args, kwargs or {})

    monkeypatch.setattr("paceline.torch_threads._SHARED", 6)
    monkeypatch.setattr(TableModel, "score", score)
    monkeypatch.setattr(TableModel, "threads_of_its_own", own)
    model = TranslatedModel(TableModel(7), Same())
    assert model.threads_of_its_own is own
    model._columns = model._columns.as_subclass(Columns)
    text = Sequence(0, (1, 2, 3), SamplingParams(), 0)
    model.logits_after([(text, (1, 2, 3))], model.new_cache())
    assert seen == {1 if own else THREADS[-1]}
    assert scored == {THREADS[-1]}
