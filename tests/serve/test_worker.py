"""The engine's process, from inside: what is done before the engine hears of an ask."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event, current_thread, main_thread

import pytest

from paceline.constraint import GrammarError
from paceline.engine.llm import LLM
from paceline.params import Grammar, SamplingParams
from paceline.serve.asking import Ask
from paceline.serve.pipe import Line, Order
from paceline.serve.worker import Orders, prepared


def ask(grammar: Grammar | None = None) -> Ask:
    return Ask(prompt=(1,), params=SamplingParams(grammar=grammar))


def test_asks_are_prepared_beside_the_engine_s_steps_and_come_in_order() -> None:
    line, began, through, for_ever = Line(Order), Event(), Event(), Event()
    seen: list[Ask] = []

    def lines() -> Iterator[bytes]:
        yield line.write(Order(1, ask()))
        yield line.write(Order(1))
        # the end of the input would end the process
        for_ever.wait()

    def prepare(one: Ask) -> None:
        assert current_thread() is not main_thread()
        seen.append(one)
        began.set()
        through.wait()

    orders = Orders(lines(), prepare)
    began.wait()
    assert list(orders.taken(wait=False)) == [], "the engine does not wait for it"
    through.set()
    taken: list[Order] = []
    while len(taken) < 2:
        taken += orders.taken(wait=True)
    assert [order.ask is not None for order in taken] == [True, False]
    assert seen == [taken[0].ask]


def test_the_engine_finds_a_grammar_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = LLM(draft="none").engine
    good, bad = Grammar(kind="regex", text="(yes|no)"), Grammar(kind="regex", text="(")
    for one in (ask(), ask(good), ask(bad)):
        prepared(engine, one)

    def compiled_again(grammar: Grammar) -> None:
        raise AssertionError(grammar)

    monkeypatch.setattr(engine.grammars, "_compile", compiled_again)
    assert engine.add((1,), SamplingParams(grammar=good)).constraint is not None
    monkeypatch.undo()
    with pytest.raises(GrammarError):
        engine.grammars.check(bad)
