"""Interrupts of the main thread while it runs the engine, for its own requests and for those of other threads."""

from __future__ import annotations

import os
import signal
from threading import Thread, current_thread, main_thread

import pytest

from commandline import save_pair
from paceline import LLM, SamplingParams
from paceline.interrupts import Deferred

pytestmark = pytest.mark.usefixtures("ctrl_c_is_heard")
PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)


def test_an_interrupt_within_deferred_is_raised_at_its_end() -> None:
    passed = list[str]()

    def interrupted() -> None:
        with Deferred():
            os.kill(os.getpid(), signal.SIGINT)
            passed.append("the end")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert passed
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_interrupt_within_deferred_does_not_wait() -> None:
    """What runs may never end, such as a drafter of a user's own with an endless loop."""
    passed = list[str]()

    def interrupted() -> None:
        with Deferred():
            os.kill(os.getpid(), signal.SIGINT)
            passed.append("the first")
            os.kill(os.getpid(), signal.SIGINT)
            passed.append("the second")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert passed == ["the first"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_interrupt_reaches_the_outer_of_two_and_a_handler_that_returns() -> None:
    told = list[int]()
    before = signal.signal(signal.SIGINT, lambda number, _: told.append(number))
    try:
        with Deferred(), Deferred():
            os.kill(os.getpid(), signal.SIGINT)
            assert not told
            os.kill(os.getpid(), signal.SIGINT)
            assert len(told) == 2
        assert len(told) == 2, "none is handled twice"
    finally:
        signal.signal(signal.SIGINT, before)


def test_loading_another_drafter_is_interrupted_at_once(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may fetch a model. The drafter that was in use still is."""
    llm, passed = LLM(save_pair(tmp_path)[0], "ngram"), list[str]()
    engine, wanted = llm.engine, llm.generate("the thin thin", PARAMS)[0].token_ids

    def loading(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        passed.append("it went on")

    monkeypatch.setattr(llm, "_engine", loading)
    with pytest.raises(KeyboardInterrupt):
        llm.use("suffix")
    assert not passed
    assert llm.engine is engine
    assert llm.generate("the thin thin", PARAMS)[0].token_ids == wanted


def test_a_custom_sigint_handler_is_called_at_the_end_of_deferred() -> None:
    told = list[int]()
    before = signal.signal(signal.SIGINT, lambda number, _: told.append(number))
    try:
        with Deferred():
            os.kill(os.getpid(), signal.SIGINT)
            assert not told
        assert told == [signal.SIGINT]
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with Deferred():
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("where", ["_commit", "_drafting.draft", "cache.commit", "policy.observe"])
def test_an_interrupt_in_a_step_is_raised_after_it_and_changes_no_text(
    where: str, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request of another thread goes on, and so does the next request of the interrupted thread."""
    llm = LLM(save_pair(tmp_path)[0], "ngram")
    alone = [llm.generate(prompt, PARAMS)[0].token_ids for prompt in ("the thin thin", "this")]
    owner, _, name = where.rpartition(".")
    owner = getattr(llm.engine.speculative, owner) if owner else llm.engine.speculative
    method, steps, others = getattr(owner, name), [], []

    def interrupted(*given, **named):
        found = method(*given, **named)
        steps.append(where)
        # an interrupt outside a step of this thread would end the test
        if current_thread() is main_thread() and len(steps) % 3 == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return found

    monkeypatch.setattr(owner, name, interrupted)
    beside = Thread(target=lambda: others.append(llm.generate("this", PARAMS)[0].token_ids))
    beside.start()
    raised = 0
    while beside.is_alive() or not raised:
        try:
            assert llm.generate("the thin thin", PARAMS)[0].token_ids == alone[0]
        except KeyboardInterrupt:
            raised += 1
    beside.join()
    monkeypatch.undo()
    assert others == [alone[1]]
    assert llm.generate("the thin thin", PARAMS)[0].token_ids == alone[0]
    assert not llm._inboxes


def test_an_interrupt_as_requests_are_closed_leaves_none_of_them(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM(save_pair(tmp_path)[0], "ngram")
    abort = llm.engine.abort

    def interrupted(sequence) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        abort(sequence)

    monkeypatch.setattr(llm.engine, "abort", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["the thin thin", "this"], PARAMS)
    assert not llm._inboxes
