"""The engine's process: preparation before a request reaches the engine, the report at its end, and how it exits."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from threading import Event, current_thread, main_thread
from time import monotonic, sleep
from typing import IO

import pytest

from paceline.constraint import GrammarError
from paceline.drafters.suffix import SuffixDrafter
from paceline.engine.llm import LLM
from paceline.methods import described
from paceline.models import grammar as rooms
from paceline.params import Grammar, SamplingParams
from paceline.registry import DRAFTERS
from paceline.sampling import LogitsError
from paceline.serve.asking import Ask
from paceline.serve.choices import Answer
from paceline.serve.errors import APIError
from paceline.serve.pipe import Line, News, Order
from paceline.serve.running import Running
from paceline.serve.serving import worker_settings
from paceline.serve.settings import Settings
from paceline.serve.worker import Orders, Worker, loaded, prepared
from paceline.spec import SpecError


def ask(grammar: Grammar | None = None) -> Ask:
    return Ask(prompt=(1,), params=SamplingParams(grammar=grammar))


def test_asks_are_prepared_beside_the_engine_s_steps_and_come_in_order() -> None:
    line, began, through, for_ever = Line(Order), Event(), Event(), Event()
    seen: list[Ask] = []

    def lines() -> Iterator[bytes]:
        yield line.write(Order(1, ask(Grammar(kind="regex", text="(yes|no)"))))
        yield line.write(Order(1))
        yield line.write(Order(2, ask()))
        # the end of the input would end the process
        for_ever.wait()

    found = GrammarError("not this one")

    def prepare(one: Ask) -> GrammarError:
        assert current_thread() is not main_thread()
        seen.append(one)
        began.set()
        through.wait()
        return found

    orders = Orders(lines(), prepare)
    began.wait()
    (plain,) = orders.taken(wait=True)
    assert plain[0].number == 2, "neither the engine nor a request without a grammar waits for it"
    through.set()
    taken: list[tuple[Order, object]] = []
    while len(taken) < 2:
        taken += orders.taken(wait=True)
    assert [(order.ask is not None, told) for order, told in taken] == [(True, found), (False, None)]
    assert seen == [taken[0][0].ask]


def test_choices_of_one_prompt_share_it() -> None:
    line, for_ever = Line(Order), Event()

    def lines() -> Iterator[bytes]:
        for number, prompt in enumerate([(1, 2), (1, 2), (3,), (3,)]):
            yield line.write(Order(number, Ask(prompt, SamplingParams(seed=number))))
            yield line.write(Order(number))
        for_ever.wait()

    orders, asked = Orders(lines()), list[Ask]()
    while len(asked) < 4:
        asked += [order.ask for order, _ in orders.taken(wait=True) if order.ask is not None]
    assert [(one.prompt, one.params.seed) for one in asked] == [((1, 2), 0), ((1, 2), 1), ((3,), 2), ((3,), 3)]
    assert asked[0].prompt is asked[1].prompt
    assert asked[2].prompt is asked[3].prompt


def test_the_engine_loop_uses_prepared_grammars_and_compiles_none(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = fresh()
    grammars, honest, compiled = worker._engine.grammars, worker._engine.grammars._compile, list[Grammar]()

    def slow(grammar: Grammar) -> object:
        compiled.append(grammar)
        return sleep(0.4) if grammar.text == "slow" else honest(grammar)

    monkeypatch.setattr(grammars, "_compile", slow)
    monkeypatch.setattr(rooms, "_GIVEN_UP", [])
    asks = [ask(), *(ask(Grammar(kind="regex", text=text)) for text in ("(yes|no)", "(", "slow", "never seen"))]
    found = [prepared(worker._engine, one) for one in asks[:3]]
    monkeypatch.setattr(rooms, "_SECONDS", 0.05)
    monkeypatch.setattr(rooms, "_MOST_GIVEN_UP", 1)
    found += [prepared(worker._engine, one) for one in asks[3:]]
    news, began_s = News(), monotonic()
    for number, (one, told) in enumerate(zip(asks, found, strict=True)):
        worker._begin(number, one, news, told)
    assert monotonic() - began_s < 0.3
    assert [grammar.text for grammar in compiled] == ["(yes|no)", "(", "slow"]
    assert [running.sequence.constraint for running in worker._running.values()] == found[:2]
    assert {number: sentence.split(":")[1][:9] for number, sentence in news.refused.items()} == {2: " unclosed", 3: " it takes"}
    assert news.busy == {4: "no grammar can be compiled now; try again later"}


@contextmanager
def process(patch: str, settings: Settings) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes], IO[bytes]]]:
    """The engine's process with `patch` applied, its input, its output and its errors."""
    program = f"import paceline.serve.worker as worker; {patch}; worker.main()"
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-P", "-c", program], **pipes) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        assert started.stderr is not None
        started.stdin.write(worker_settings(settings) + b"\n")
        started.stdin.flush()
        try:
            yield started, started.stdin, started.stdout, started.stderr
        finally:
            started.kill()


def test_an_engine_that_cannot_read_its_orders_ends() -> None:
    patch = "worker.prepared = lambda engine, ask: int('a secret')"
    line: Line[News] = Line(News)
    with process(patch, Settings(draft="none", offer=(), log_json=True, log_level="error")) as (running, orders, out, err):
        assert line.read(out.readline()).ready is not None
        orders.write(Line(Order).write(Order(1, ask(Grammar(kind="regex", text="a")))))
        orders.flush()
        assert running.wait(30) == 1
        assert "cannot read its orders" in err.read().decode()


def test_an_engine_that_fails_ends_and_says_so_as_the_server_logs() -> None:
    patch = "worker.Engine.step = lambda self: int('a secret')"
    line: Line[News] = Line(News)
    with process(patch, Settings(draft="none", offer=(), log_json=True, log_level="error")) as (running, orders, out, err):
        assert line.read(out.readline()).ready is not None
        orders.write(Line(Order).write(Order(1, ask())))
        orders.flush()
        # its input stays open, with a thread waiting for it
        while (news := line.read(out.readline())).failure is None:
            pass
        assert news.failure == "the engine failed: ValueError"
        assert running.wait(30) == 1
        logged = [json.loads(one) for one in err.read().decode().splitlines()]
    assert [one["message"] for one in logged] == ["the engine failed"]
    assert "ValueError (message withheld)" in logged[0]["exception"]


def test_a_rule_under_which_every_request_would_be_refused_is_refused_at_once() -> None:
    with pytest.raises(SpecError, match=r"'typical' keeps neither the text nor its distribution .*allow it by --lossy"):
        loaded(Settings(draft="ngram", verify="typical"))
    assert loaded(Settings(draft="ngram", verify="typical", lossy=True)).lossy
    # the guarantee depends on the request
    assert loaded(Settings(draft="ngram", verify="rejection")).keeps(SamplingParams()) == "text"


def test_an_engine_whose_input_closes_while_it_loads_ends() -> None:
    with process("worker.loaded = lambda settings: __import__('time').sleep(600)", Settings()) as (running, orders, _out, _err):
        orders.close()
        assert running.wait(60) == 0


def test_the_engine_reports_each_drafters_summary_and_source(tmp_path: Path) -> None:
    """Those in the registry, two of one method, a drafter inside a cascade, and a user's own one."""
    page = (Path(__file__).parents[2] / "docs" / "drafters.md").read_text(encoding="utf-8")
    source = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert source is not None
    (tmp_path / "latest.py").write_text(source[1], encoding="utf-8")
    spec = f"ngram+suffix+lookahead+recycle+jacobi+bigram+unigram+grammar+reference+model+model+ngram^model+{tmp_path}/latest.py"
    notes = fresh(spec)._ready().drafter_notes
    tables = {row["name"]: (row["summary"], row["source"]) for row in described(DRAFTERS)}
    assert set(notes) == {*tables, "model 2", "ngram^model", "latest"} - {"none", "datastore"}
    assert all(notes[name] == tables[name] for name in {*notes} & {*tables})
    assert notes["model 2"] == notes["ngram^model"] == notes["model"]
    summary, source = notes["latest"]
    assert summary == "Latest: what followed the last token where it stood last before."
    assert source.startswith("Saxena, Prompt Lookup Decoding")


def fresh(draft: str = "none") -> Worker:
    """A worker of the embedded model before any request."""
    for_ever = Event()

    def lines() -> Iterator[bytes]:
        for_ever.wait()
        yield b""

    return Worker(LLM(draft=draft), Orders(lines()), BytesIO())


@pytest.mark.parametrize(
    ("settings", "remembers"),
    [(Settings(draft="none"), False), (Settings(draft="suffix"), True), (Settings(draft="none", offer=("suffix",)), True)],
)
def test_past_answers_are_remembered_only_where_the_settings_name_suffix(settings: Settings, remembers: bool) -> None:
    llm = loaded(settings)
    llm.generate("Once upon a time", SamplingParams(max_tokens=8))
    (suffix,) = (part for part in llm.engine.speculative.drafter.parts if part.name == "suffix")
    assert isinstance(suffix, SuffixDrafter)
    assert bool(suffix._past) == remembers


def test_an_answer_whose_time_is_up_ends_with_all_that_it_has() -> None:
    """Text held back as a possible beginning of a stop string is sent too."""
    worker = fresh()
    params = SamplingParams(max_tokens=64, stop=("a" * 40 + "b",), grammar=Grammar(kind="regex", text="a{64}"))
    whole = News()
    worker._begin(1, Ask(prompt=(1,), params=params), whole)
    shown = ""
    for _ in range(12):
        step = News()
        worker._step(step)
        shown += "".join(delta.text for delta in step.deltas.values())
    sequence = next(iter(worker._running.values())).sequence
    written = worker._engine.tokenizer.decode(sequence.generated)
    worker._end(Order(1, late=True), whole)
    assert whole.deltas[1].ending is not None
    assert whole.deltas[1].ending.reason == "timeout"
    assert shown != written
    assert shown + whole.deltas[1].text == written
    assert not worker._engine.has_work


def test_logits_that_are_no_numbers_end_an_answer_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = fresh()
    worker._begin(1, ask(), News())
    (running,) = worker._running.values()

    def broken(self: object, work: object, stops: object) -> None:
        raise LogitsError(running.sequence)

    monkeypatch.setattr(type(worker._engine.speculative), "step", broken)
    news = News()
    worker._step(news)
    ending = news.deltas[1].ending
    assert isinstance(running, Running)
    assert ending is not None
    assert (ending.reason, ending.error) == ("error", str(LogitsError()))
    with pytest.raises(APIError, match="try --weights fp32") as found:
        Answer().add(news.deltas[1])
    assert found.value.status == 500
    assert found.value.retry_after_s is None
