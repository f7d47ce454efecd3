"""Drafts of tokens that a grammar forces."""

from __future__ import annotations

import json
from time import perf_counter

import pytest

from grammars import SENTENCE, VOCABULARY, Rule, answers, engine_of, model_of, tokenizer
from paceline.budget import Budget
from paceline.drafters.grammar import GrammarDrafter, Options
from paceline.models.grammar import Grammars
from paceline.params import Grammar, SamplingParams
from paceline.sequence import Sequence
from tiny import BOS, EOS


def sequence_of(grammar: Grammar | None) -> Sequence:
    sequence = Sequence(0, (BOS,), SamplingParams(grammar=grammar), 0, frozenset({EOS}))
    if grammar is not None:
        sequence.constraint = Grammars(tokenizer(), VOCABULARY, frozenset({EOS})).constraint(grammar, sequence.stop_ids)
    return sequence


def drafted(sequence: Sequence, nodes: int = 64, depth: int = 64) -> tuple[int, ...]:
    tree = GrammarDrafter(Options(depth=64)).propose([sequence], [Budget(nodes, depth)])[0]
    assert tree.is_chain
    assert set(tree.sources[1:]) <= {"grammar"}
    return tree.tokens[1:]


def spelled(text: str) -> tuple[int, ...]:
    return tuple(tokenizer().encode(text, add_special=False))


def test_forced_tokens_are_drafted_up_to_the_first_choice() -> None:
    sequence = sequence_of(Grammar(kind="regex", text="the inner (a|b)"))
    # the space could not be part of a longer token
    assert drafted(sequence) == spelled("the inner ")
    sequence.commit((*spelled("the inner "), *spelled("a")), ("",) * 20)
    assert drafted(sequence) == (EOS,)


def test_a_whole_answer_may_be_forced_with_its_end() -> None:
    schema = {"const": {"the": "thin"}}
    sequence = sequence_of(Grammar(kind="json_schema", text=json.dumps(schema)))
    sequence.commit(spelled("{"), ("",))
    assert sequence.constraint is not None
    path = drafted(sequence)
    for at, token in enumerate(path):
        assert sequence.constraint.allowed(path[:at])[token]


@pytest.mark.parametrize(("nodes", "depth", "count"), [(3, 64, 3), (64, 2, 2), (64, 64, 10)])
def test_a_draft_stays_within_its_budget(nodes: int, depth: int, count: int) -> None:
    sequence = sequence_of(Grammar(kind="regex", text="x{10}(a|b)"))
    assert drafted(sequence, nodes, depth) == spelled("x") * count


def test_a_request_without_a_grammar_is_not_drafted_for_and_costs_no_time() -> None:
    sequence, drafter = sequence_of(None), GrammarDrafter(Options())
    assert not drafter.suits(sequence)
    assert drafted(sequence) == ()
    budgets = [Budget(16, 16)]
    began = perf_counter()
    for _ in range(1000):
        drafter.propose([sequence], budgets)
    # seconds per 1,000 calls; the bound leaves room for a busy machine
    assert perf_counter() - began < 0.1


def test_where_the_answer_ended_nothing_is_drafted() -> None:
    sequence = sequence_of(Grammar(kind="regex", text="in"))
    sequence.commit((*spelled("in"), EOS), ("", ""))
    assert drafted(sequence) == ()


def test_a_constraint_that_forces_nothing_drafts_nothing() -> None:
    sequence = sequence_of(None)
    sequence.constraint = Rule(lambda tokens: None)  # pyright: ignore[reportArgumentType]
    assert drafted(sequence) == ()


def test_every_forced_token_is_accepted_and_saves_a_forward() -> None:
    model, asked = model_of(), SamplingParams(max_tokens=60, temperature=1.0, grammar=Grammar(kind="regex", text=SENTENCE))
    engine = engine_of(model, GrammarDrafter(Options()))
    for found in answers(engine, [([BOS, 70], asked.model_copy(update={"seed": seed})) for seed in range(6)]):
        count = found.speculation
        assert count.draft_tokens == count.accepted_tokens > 10
        assert count.tau > 1.5
