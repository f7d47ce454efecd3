"""An LLM in a forked process: the copy works, or says in a sentence why not, and never waits for a thread that is not there."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import pytest
import torch

from commandline import save_pair
from paceline import LLM, PacelineError, SamplingParams
from tiny import save_tiny

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system forks no processes"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]
PARAMS = SamplingParams(max_tokens=8, ignore_eos=True)
WAITS_S = 20


def in_child(said: Callable[[], bytes]) -> bytes:
    """What a forked process says. Fails if it does not end."""
    ear, mouth = os.pipe()
    child = os.fork()
    if not child:
        # whatever happens, it may not go on with the tests
        try:
            signal.alarm(WAITS_S)
            os.write(mouth, said())
        finally:
            os._exit(0)
    os.close(mouth)
    with open(ear, "rb") as heard:
        found = heard.read()
    assert os.waitpid(child, 0)[1] == 0, "it waits for a thread that is not there"
    return found


@pytest.fixture
def llm(tmp_path: Path) -> LLM:
    return LLM(save_pair(tmp_path)[0], "ngram")


def test_a_process_that_is_forked_between_steps_generates_the_same_text(llm: LLM) -> None:
    wanted = llm.generate("the thin", PARAMS)[0].token_ids
    stream = llm.stream("this", PARAMS)
    next(stream)
    assert in_child(lambda: bytes(llm.generate("the thin", PARAMS)[0].token_ids)) == bytes(wanted)
    assert llm.generate("the thin", PARAMS)[0].token_ids == wanted
    stream.close()


def test_requests_of_threads_that_are_not_there_take_no_room(llm: LLM) -> None:
    """A stream can be closed; an answer that is not streamed is waited for by another thread."""
    stream = llm.stream("this", PARAMS)
    next(stream)
    begun = llm._begun("the", PARAMS, None, streamed=False)

    def left() -> bytes:
        llm.generate("the thin", PARAMS)
        waited_for = begun.sequence in llm._inboxes
        stream.close()
        return bytes([waited_for, len(llm._inboxes), len(llm.engine.scheduler.running)])

    with llm._next, llm._lock:
        assert in_child(left) == bytes([False, 0, 0])
    stream.close()
    llm._close([begun])


def test_torchs_threads_are_not_waited_for(tmp_path: Path) -> None:
    """Those of a model that transformers runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        hub = LLM(str(save_tiny(tmp_path / "hub", 3, kind="gpt2", n_embd=512)), "none")
        wanted = hub.generate("the thin", PARAMS)[0].token_ids
        assert in_child(lambda: bytes(hub.generate("the thin", PARAMS)[0].token_ids)) == bytes(wanted)
    finally:
        torch.set_num_threads(before)


def test_a_process_that_is_forked_in_another_threads_step_is_told_so(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    began, goes_on, step, texts = Event(), Event(), llm.engine.step, list[list[int]]()
    wanted = llm.generate("the thin", PARAMS)[0].token_ids

    def slow() -> object:
        began.set()
        goes_on.wait(WAITS_S)
        return step()

    def said() -> bytes:
        try:
            llm.generate("the thin", PARAMS)
        except PacelineError as error:
            return str(error).encode()
        return b""

    monkeypatch.setattr(llm.engine, "step", slow)
    thread = Thread(target=lambda: texts.append(llm.generate("the thin", PARAMS)[0].token_ids))
    thread.start()
    began.wait(WAITS_S)
    try:
        assert b"forked while another thread was using its LLM" in in_child(said)
    finally:
        goes_on.set()
        thread.join()
    assert texts == [wanted]
