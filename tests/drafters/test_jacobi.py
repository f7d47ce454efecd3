"""Jacobi: the next block is the target's choices at the rows of this block; with the noise of the position it converges."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st

from fakes import TableModel, truth
from paceline.budget import Budget
from paceline.drafters.jacobi import JacobiDrafter, Options
from paceline.models.base import Scores
from paceline.params import SamplingParams
from paceline.sampling import Context, choose
from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.tree import DraftTree, Proposal
from scored import GREEDY, SAMPLED, Run, request

settings.register_profile("still", derandomize=True, deadline=None, max_examples=150, database=None)
settings.load_profile("still")

PROMPT = [4, 1, 2, 7, 7, 3]


def drafter(block: int = 4, coupled: bool = True) -> JacobiDrafter:
    return JacobiDrafter(Options(block=block), coupled)


def constant(vocab_size: int = 12) -> TableModel:
    """A target that ignores its context: its choices depend only on the noise of the position."""
    model = TableModel(vocab_size)
    model.table[:] = model.table[0]
    return model


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_next_block_is_what_the_target_chose_behind_what_was_emitted(params: SamplingParams) -> None:
    model = TableModel(9, memory=2)
    run = Run(drafter(), model, request(PROMPT, params))
    for _ in range(60):
        before = list(run.owner.tokens)
        taken = run.step()
        block, emitted = list(taken.proposed.tokens[1:]), len(taken.verdict.tokens)
        expected = [
            choose(model.row([*before, *block[:row]])[None], [Context(run.owner, tuple(block[emitted:row]))])[0]
            for row in range(emitted, len(block) + 1)
        ]
        following = list(run.drafter.propose([run.owner], [run.drafter.budget])[0].tokens[1:])
        assert following[: len(expected)] == expected
        assert set(following[len(expected) :]) <= set(PROMPT), "tokens not chosen yet are drawn from the prompt"


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_jacobi_converges_in_one_step_on_a_target_without_memory(params: SamplingParams) -> None:
    """At a temperature only with the noise of each token's own position. After a fully accepted block no choices are left."""
    model = constant()
    never = [int(model.table[0].argmin())]
    coupled = Run(drafter(), model, request(never, params))
    assert [len(coupled.step().verdict.tokens) for _ in range(6)] == [1, 5, 1, 5, 1, 5]
    apart = Run(drafter(coupled=False), model, request(never, params))
    emitted = [len(apart.step().verdict.tokens) for _ in range(6)]
    assert (emitted == [1, 5, 1, 5, 1, 5]) == (params is GREEDY)


def test_jacobi_marks_its_drafts_as_coupled_where_they_use_the_noise() -> None:
    """Rules that test tokens with random numbers independent of the noise must be able to refuse such drafts."""
    for coupled, params, kind in (
        (True, GREEDY, Proposal.POINT), (True, SAMPLED, Proposal.COUPLED), (False, SAMPLED, Proposal.POINT),
    ):  # fmt: skip
        one = drafter(coupled=coupled)
        tree = one.propose([request(PROMPT, params)], [one.budget])[0]
        assert tree.kind is kind
        assert kind in one.kinds
        assert (Proposal.COUPLED in one.kinds) == coupled


def test_a_token_that_is_chosen_again_is_held_likelier() -> None:
    run = Run(drafter(), TableModel(9, memory=2), request(PROMPT))
    drawn = max(drafter().propose([run.owner], [run.drafter.budget])[0].confidences[1:])
    held: dict[bool, list[float]] = {True: [], False: []}
    old: list[tuple[int, float]] = []
    for _ in range(60):
        taken = run.step()
        new = list(zip(taken.proposed.tokens, taken.proposed.confidences, strict=True))[1:]
        for (token, confidence), (before, known) in list(zip(new, old, strict=False))[1:]:
            if known > drawn:
                held[token == before].append(confidence)
        old = new[len(taken.verdict.tokens) :]
    assert min(held[True]) > max(held[False]) > drawn


@given(st.data())
def test_a_jacobi_block_trimmed_beside_other_drafts_keeps_the_text_of_plain_decoding(data: st.DataObject) -> None:
    model = TableModel(6, memory=1)
    run = Run(drafter(), model, request([1, 2, 3], data.draw(st.sampled_from([GREEDY, SAMPLED]))))
    plain = Run(drafter(block=1), model, request([1, 2, 3], run.owner.params))
    for _ in range(6):
        tokens = data.draw(st.lists(st.integers(0, 5), max_size=3))
        if data.draw(st.booleans()):
            tokens = [truth(model, run.owner), *tokens]
        budget = Budget(data.draw(st.integers(0, 5)), data.draw(st.integers(0, 5)))
        proposed = run.step(budget, DraftTree.chain(run.owner.root, tokens, "other"), data.draw(st.integers(0, 6))).proposed
        assert proposed.is_chain
        assert len(proposed) - 1 <= min(budget.nodes, budget.depth)
    while len(plain.owner.tokens) < len(run.owner.tokens):
        plain.step(Budget(0, 0))
    assert plain.owner.tokens[: len(run.owner.tokens)] == run.owner.tokens


def test_a_text_without_a_prompt_is_guessed_from_its_answer() -> None:
    """As inside a cascade with bridge=text, for a tokenizer that puts no token in front."""
    owner = Sequence(0, (), SamplingParams(), 0)
    owner.commit((5,), ())
    assert drafter().propose([owner], [Budget(3, 3)])[0].tokens == (5, 5, 5, 5)


def test_logits_that_are_not_numbers_end_no_request() -> None:
    one, owner = drafter(), request(PROMPT, SAMPLED)
    tree = one.propose([owner], [one.budget])[0]
    owner.commit((1,), ("",))
    one.observe([owner], [tree], [Verdict((), (1,))], Scores(torch.full((len(tree), 9), torch.nan)))
    assert set(one.propose([owner], [one.budget])[0].tokens[1:]) <= set(PROMPT)


def test_a_released_or_truncated_sequence_starts_anew_from_its_tokens() -> None:
    run = Run(drafter(), TableModel(9), request(PROMPT))
    run.step()
    assert run.drafter.sequence_bytes > 0
    run.drafter.release(0)
    assert run.drafter.sequence_bytes == 0
    fresh = drafter()
    assert run.drafter.propose([run.owner], [fresh.budget]) == fresh.propose([run.owner], [fresh.budget])
    run.step()
    run.drafter.truncate(0, 4)
    assert run.drafter.sequence_bytes == 0
    run.step()
    run.owner.finish_reason = "stop"
    run.step()
    assert run.drafter.sequence_bytes == 0, "nothing is stored for a request that has ended"
