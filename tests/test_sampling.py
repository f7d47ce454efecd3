"""Sampling: every transform against a naive version in plain Python, in the documented order, per node with its ancestors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from pydantic import ValidationError

import reference
from paceline.params import SamplingParams
from paceline.sampling import Context, choose, target_scores
from paceline.sequence import Sequence

settings.register_profile("still", derandomize=True, deadline=None, max_examples=150, database=None)
settings.load_profile("still")

SIZE = 12


def context(params: SamplingParams, prompt=(0, 1, 1), generated=(), ancestors=(), seed: int = 5, stop_ids=()) -> Context:
    sequence = Sequence(0, tuple(prompt), params, seed, frozenset(stop_ids))
    sequence.commit(tuple(generated), ("",) * len(generated))
    return Context(sequence, tuple(ancestors))


def logits_of(seed: int, size: int = SIZE, sharpness: float = 2.0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * sharpness


def test_a_row_may_lack_tokens_that_a_request_names() -> None:
    """Draft models of a family may pad their vocabulary less than the target."""
    params = SamplingParams(logit_bias={1: 2.0, SIZE + 3: 5.0}, min_tokens=4, repetition_penalty=1.3, frequency_penalty=0.4)
    full, short = logits_of(1, SIZE + 8), logits_of(1, SIZE + 8)[:SIZE]
    where = context(params, (0, 1, SIZE + 1), (4, SIZE + 2), (SIZE + 2, SIZE + 4, 1), stop_ids=(2, SIZE + 5))
    assert torch.equal(target_scores(short, where), target_scores(full, where)[:SIZE])


def agree(got: torch.Tensor, wanted: np.ndarray) -> bool:
    """The same tokens survive, with the same probabilities."""
    same_support = np.array_equal(np.isneginf(got.numpy()), np.isneginf(wanted))
    return same_support and np.allclose(got.double().softmax(-1).numpy(), reference.softmax(wanted), atol=1e-6)


RANGES: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.floats(0.05, 4.0),
    "top_k": st.integers(1, SIZE + 3),
    "top_p": st.floats(0.01, 1.0),
    "min_p": st.floats(0.0, 1.0),
    "repetition_penalty": st.floats(0.2, 3.0),
    "presence_penalty": st.floats(-2.0, 2.0),
    "frequency_penalty": st.floats(-2.0, 2.0),
    "logit_bias": st.dictionaries(st.integers(0, SIZE - 1), st.floats(-100.0, 100.0), max_size=4),
    "min_tokens": st.integers(0, 6),
}
TOKENS = st.lists(st.integers(0, SIZE - 1), max_size=5)


@pytest.mark.parametrize("name", RANGES)
@given(data=st.data(), seed=st.integers(0, 999), generated=TOKENS, ancestors=TOKENS)
@settings(max_examples=30)
def test_each_transform_alone_equals_its_naive_reference(name: str, data: st.DataObject, seed: int, generated, ancestors) -> None:
    params = SamplingParams(**{"temperature": 1.0, name: data.draw(RANGES[name])})
    one = context(params, generated=generated, ancestors=ancestors, stop_ids=(3, 4))
    wanted = reference.scores(logits_of(seed).tolist(), (0, 1), [*generated, *ancestors], params, (3, 4))
    assert agree(target_scores(logits_of(seed), one), wanted)


@given(
    params=st.fixed_dictionaries(RANGES),
    seed=st.integers(0, 999),
    generated=TOKENS,
    ancestors=TOKENS,
)
def test_all_transforms_together_come_in_the_documented_order(params, seed: int, generated, ancestors) -> None:
    chosen = SamplingParams(**params)
    one = context(chosen, generated=generated, ancestors=ancestors, stop_ids=(3, 4))
    wanted = reference.scores(logits_of(seed).tolist(), (0, 1), [*generated, *ancestors], chosen, (3, 4))
    assert agree(target_scores(logits_of(seed), one), wanted)


@given(seed=st.integers(0, 999), generated=TOKENS, ancestors=TOKENS)
def test_ancestors_weigh_as_if_they_were_committed(seed: int, generated, ancestors) -> None:
    params = SamplingParams(
        temperature=0.8, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.7, min_tokens=4, top_p=0.9
    )
    drafted = context(params, generated=generated, ancestors=ancestors, stop_ids=(3,))
    committed = context(params, generated=[*generated, *ancestors], stop_ids=(3,))
    assert torch.equal(target_scores(logits_of(seed), drafted), target_scores(logits_of(seed), committed))
    assert drafted.position == committed.position
    assert choose(logits_of(seed)[None], [drafted]) == choose(logits_of(seed)[None], [committed])


def test_the_logits_handed_in_stay_as_they_were() -> None:
    row = logits_of(1)
    kept = row.clone()
    params = SamplingParams(temperature=0.5, logit_bias={1: 5.0}, repetition_penalty=2.0, presence_penalty=1.0, min_tokens=9)
    target_scores(row, context(params, generated=[1, 2], stop_ids=(3,)))
    assert torch.equal(row, kept)


@pytest.mark.parametrize(
    ("first", "second", "row", "survivors"),
    [
        # temperature before top-p: at 0.25 the first token alone holds 0.9, at 1 it takes two tokens
        ({"temperature": 0.25}, {"top_p": 0.9}, [2.0, 1.0, 0.0], {0}),
        ({"temperature": 1.0}, {"top_p": 0.9}, [2.0, 1.0, 0.0], {0, 1}),
        # top-k before top-p: of the two tokens left by top-k, the first holds 0.6 of the mass
        ({"temperature": 1.0, "top_k": 2}, {"top_p": 0.55}, [0.5, 0.1, 0.0, 0.0], {0}),
        # top-p before min-p: both use the same maximum, and the smaller set remains
        ({"temperature": 1.0, "top_p": 0.99}, {"min_p": 0.5}, [2.0, 1.5, 0.0], {0, 1}),
        # bias before penalty: a token biased above zero is divided, not multiplied
        ({"temperature": 1.0, "logit_bias": {0: 4.0}}, {"repetition_penalty": 4.0, "top_k": 1}, [-1.0, 0.5, 0.0], {0}),
        # temperature before min-p
        ({"temperature": 0.5}, {"min_p": 0.3}, [1.0, 0.5, 0.0], {0, 1}),
    ],
)
def test_each_transform_is_applied_to_the_result_of_the_one_before(first, second, row, survivors: set[int]) -> None:
    params = SamplingParams(**first, **second)
    scores = target_scores(torch.tensor(row), context(params, prompt=(0,)))
    assert {token for token, score in enumerate(scores.tolist()) if score > -math.inf} == survivors


def test_penalties_count_drafted_tokens_one_by_one() -> None:
    params = SamplingParams(temperature=1.0, frequency_penalty=0.5, presence_penalty=0.25)
    scores = target_scores(torch.zeros(SIZE), context(params, generated=[2, 2], ancestors=[2, 7]))
    assert scores[2] == pytest.approx(-0.25 - 0.5 * 3)
    assert scores[7] == pytest.approx(-0.25 - 0.5)
    assert scores[0] == 0  # prompt tokens count for repetition only


def test_nothing_may_stop_the_text_before_min_tokens_not_even_inside_a_draft() -> None:
    params = SamplingParams(min_tokens=3, logit_bias={4: 100.0})
    for generated, ancestors, stopped in [
        ((), (), False),
        ((1,), (1,), False),
        ((1,), (1, 1), True),
        ((1, 1, 1), (), True),
    ]:
        one = context(params, generated=generated, ancestors=ancestors, stop_ids=(4,))
        assert (choose(torch.zeros(1, SIZE), [one]) == [4]) == stopped


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999, 0.9999999])
@pytest.mark.parametrize("sharpness", [0.0, 0.01, 1.0, 6.0])
@pytest.mark.parametrize("size", [1_000, 1_025, 20_000])
def test_top_p_keeps_the_smallest_set_however_long_it_must_look(top_p: float, sharpness: float, size: int) -> None:
    """A flat row needs more than the 1,024 tokens that are sorted first."""
    row = logits_of(7, size, sharpness)
    kept = target_scores(row, context(SamplingParams(temperature=1.0, top_p=top_p))) > -torch.inf
    ordered = row.double().softmax(-1).sort(descending=True).values
    needed = min(int((ordered.cumsum(-1) < top_p).sum()) + 1, size)
    edge = row.sort(descending=True).values[needed - 1]
    assert torch.equal(kept, row >= edge)
    assert float(row.double().softmax(-1)[kept].sum()) >= top_p - 1e-9


def test_tokens_tied_at_an_edge_stay_or_go_together() -> None:
    row = torch.tensor([1.0, 0.0, 1.0, 0.0, -3.0, 1.0])
    for params, survivors in [
        (SamplingParams(temperature=1.0, top_k=1), {0, 2, 5}),
        (SamplingParams(temperature=1.0, top_k=4), {0, 1, 2, 3, 5}),
        (SamplingParams(temperature=1.0, top_p=0.2), {0, 2, 5}),
        (SamplingParams(temperature=1.0, top_p=0.9), {0, 1, 2, 3, 5}),
        (SamplingParams(temperature=1.0, min_p=1.0), {0, 2, 5}),
    ]:
        scores = target_scores(row, context(params))
        assert {token for token, score in enumerate(scores.tolist()) if score > -math.inf} == survivors


def test_a_greedy_tie_goes_to_the_first_token_in_any_batch() -> None:
    row = torch.tensor([0.0, 3.0, 1.0, 3.0])
    plain, shaped = context(SamplingParams()), context(SamplingParams(logit_bias={0: 0.5}))
    warm = context(SamplingParams(temperature=1.0))
    for batch in ([plain], [shaped], [plain, shaped], [plain, warm, shaped]):
        chosen = choose(row.repeat(len(batch), 1), batch)
        assert [token for token, one in zip(chosen, batch, strict=True) if one is not warm] == [1] * (
            len(batch) - (warm in batch)
        )


@given(seed=st.integers(0, 999), temperature=st.sampled_from([0.0, 0.7, 1.0, 2.0]), generated=TOKENS, ancestors=TOKENS)
def test_the_chosen_token_is_that_of_the_reference(seed: int, temperature: float, generated, ancestors) -> None:
    params = SamplingParams(temperature=temperature, top_p=0.95, repetition_penalty=1.1)
    one = context(params, generated=generated, ancestors=ancestors, seed=seed)
    emitted = [*generated, *ancestors]
    wanted = reference.pick(
        reference.scores(logits_of(seed).tolist(), (0, 1, 1), emitted, params), temperature, seed, 3 + len(emitted)
    )
    assert choose(logits_of(seed)[None], [one]) == [wanted]


def test_a_row_is_chosen_alike_alone_and_in_a_batch() -> None:
    contexts = [
        context(SamplingParams(temperature=t, top_k=k), generated=[k], seed=s)
        for s, (t, k) in enumerate([(0.0, 0), (1.0, 0), (0.7, 3), (0.0, 2), (1.5, 5)])
    ]
    rows = torch.stack([logits_of(seed) for seed in range(len(contexts))])
    assert choose(rows, contexts) == [choose(row[None], [one])[0] for row, one in zip(rows, contexts, strict=True)]


def test_switched_off_transforms_leave_the_distribution_alone() -> None:
    off = SamplingParams(
        temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, presence_penalty=0, frequency_penalty=0
    )
    assert torch.equal(target_scores(logits_of(3), context(off, generated=[1])), logits_of(3))
    assert not off.shapes_logits
    assert SamplingParams().plain_greedy
    assert not SamplingParams(min_tokens=1).plain_greedy


@pytest.mark.parametrize("temperature", [1e-6, 1e-3, 0.01])
def test_a_very_low_temperature_is_nearly_greedy_and_never_overflows(temperature: float) -> None:
    row = torch.tensor([50.0, 80.0, -90.0, 79.0])
    for seed in range(50):
        assert choose(row[None], [context(SamplingParams(temperature=temperature, top_p=0.9), seed=seed)]) == [1]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1), ("temperature", math.nan), ("temperature", math.inf), ("temperature", 101),
        ("temperature", 1e-40), ("temperature", 9e-7), ("temperature", "hot"), ("top_k", -1), ("top_k", 1.5),
        ("top_p", 0), ("top_p", 1.1), ("top_p", math.nan), ("min_p", -0.1), ("min_p", 1.1),
        ("repetition_penalty", 0), ("repetition_penalty", math.inf), ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1), ("logit_bias", {-1: 1}), ("logit_bias", {1: 101}), ("logit_bias", {1: math.nan}),
        ("logit_bias", dict.fromkeys(range(4097), 1)), ("min_tokens", -1), ("max_tokens", 0), ("max_tokens", 2**40),
        ("stop", ("",)), ("stop", ("x",) * 65), ("stop", ("x" * 1025,)), ("stop_token_ids", {-1}),
        ("seed", -1), ("seed", 2**64), ("best_of", 3),
    ],
)  # fmt: skip
def test_a_parameter_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        SamplingParams(**{name: value})
    (error,) = caught.value.errors()
    assert name in (str(error["loc"][0]) if error["loc"] else error["msg"])


def test_parameters_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        SamplingParams().temperature = 1.0  # pyright: ignore[reportAttributeAccessIssue]
