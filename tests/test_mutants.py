"""Every lossy behaviour known to us must be caught by a named check.

Each check passes on the unchanged code and must fail on the mutants listed for it; a check that cannot see a fault proves
nothing by passing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

import native_mutants  # noqa: F401  (lists its own)
import reference
from fakes import BlindTreeDrafter, ChainDrafter, DenseTableCache, FakeTokenizer, MixedDrafter, TableModel, TreeDrafter
from grammars import grammar
from laws import PROMPT, Outcome, bulk, drawn, obeys
from lossy_mutants import good_enough
from mutants import MUTANTS, Mutant
from native_checks import native_branches, native_drafts, native_families, native_trees, prepare
from paceline.engine.scheduler import Limits
from paceline.params import SamplingParams
from serving import engine_of, served, wanted
from verifier_mutants import dice, rules

TOKENIZER = FakeTokenizer([*(bytes([97 + token]) for token in range(5)), b""], special=(5,))
REQUESTS = [
    SamplingParams(max_tokens=16, ignore_eos=True),
    SamplingParams(max_tokens=16, temperature=1.0, seed=11, ignore_eos=True),
    SamplingParams(max_tokens=16, temperature=1.3, top_p=0.75, seed=12, ignore_eos=True),
    SamplingParams(max_tokens=16, temperature=0.8, repetition_penalty=1.6, frequency_penalty=0.9, seed=13, ignore_eos=True),
    SamplingParams(max_tokens=16, frequency_penalty=1.5, presence_penalty=0.5, ignore_eos=True),
    SamplingParams(max_tokens=16, temperature=1.0, min_tokens=8, stop_token_ids=frozenset({2}), seed=14),
    SamplingParams(max_tokens=16, temperature=1.0, stop=("ab", "cc", "dae"), seed=15, ignore_eos=True),
    SamplingParams(max_tokens=16, temperature=1.0, seed=16),
    SamplingParams(max_tokens=3, temperature=1.0, seed=17, ignore_eos=True),
    SamplingParams(max_tokens=16, temperature=1.5, top_k=3, top_p=0.9, seed=18, ignore_eos=True),
    SamplingParams(max_tokens=16, temperature=1.5, min_p=0.3, seed=19, ignore_eos=True),
]
PROMPTS = [[1, 2, 3, 4, 0, 1, 2], [3, 3, 1], [4]]


def equality() -> bool:
    """Texts, tokens and finish reasons of a crowded engine equal the oracle's, for chains and trees, in both caches."""
    try:
        return _equality()
    except (AssertionError, IndexError, ValueError):
        # the code's own guards, or a run that does not end
        return False


def _equality() -> bool:
    for make, store in [
        (ChainDrafter, DenseTableCache),
        (TreeDrafter, DenseTableCache),
        (MixedDrafter, None),
        (TreeDrafter, None),
    ]:
        options: dict[str, Any] = {} if store is None else {"cache": store}
        model = TableModel(6, eos=(5,), sharpness=1.5, context_length=60, **options)
        limits = Limits(batch=4, chunk=5, cache_tokens=60)
        requests = [(prompt, params) for prompt in PROMPTS for params in REQUESTS]
        for (prompt, params), (sequence, views) in zip(
            requests, served(engine_of(model, make(model), limits, TOKENIZER), requests), strict=True
        ):
            if (sequence.generated, views[-1], sequence.finish_reason) != oracle(tuple(prompt), params, sequence.seed):
                return False
    return True


@cache
def _answer(prompt: tuple[int, ...], params: str, seed: int) -> tuple[list[int], str, str]:
    model = TableModel(6, eos=(5,), sharpness=1.5, context_length=60)
    answer = wanted(model, TOKENIZER, prompt, SamplingParams.model_validate_json(params), seed, 60)
    return answer.tokens, answer.text, answer.finish


def oracle(prompt: tuple[int, ...], params: SamplingParams, seed: int) -> tuple[list[int], str, str]:
    # a greedy answer does not depend on its seed, which is random
    return _answer(prompt, params.model_dump_json(), seed if params.temperature else 0)


LAW_PARAMS = SamplingParams(temperature=1.4, top_p=0.85, frequency_penalty=0.5)
LAW_MODEL = TableModel(5, sharpness=1.5, seed=3)


@cache
def law_wanted() -> dict[Outcome, float]:
    return reference.law(lambda tokens: LAW_MODEL.row(tokens).double().numpy(), PROMPT, LAW_PARAMS, 3)


def law() -> bool:
    """Joint law of three tokens behind random trees, 4,000 seeds, false-alarm rate 1e-6."""
    with bulk():
        return obeys(drawn(LAW_MODEL, BlindTreeDrafter(LAW_MODEL), LAW_PARAMS, range(4_000)), law_wanted())


NATIVE = {
    "native trees": native_trees,
    "native families": native_families,
    "native drafts": native_drafts,
    "native branches": native_branches,
}
CHECKS: dict[str, Callable[[], bool]] = {
    "equality": equality,
    "law": law,
    "rules": rules,
    "dice": dice,
    "good enough": good_enough,
    "grammar": grammar,
    **NATIVE,
}


@pytest.mark.parametrize("check", CHECKS)
def test_the_code_as_it_is_passes(check: str) -> None:
    assert CHECKS[check]()


@pytest.mark.parametrize(
    ("one", "check"),
    [(one, check) for one in MUTANTS for check in one.caught_by],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_mutant_is_caught(one: Mutant, check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if check in NATIVE:
        prepare()
    one.apply(monkeypatch)
    assert not CHECKS[check]()


def test_every_check_has_mutants_enough() -> None:
    """Mutants of compiled code are listed only by an import; nothing else would show that they are missing."""
    assert len({one.name for one in MUTANTS}) == len(MUTANTS) >= 100
    found = Counter(check for one in MUTANTS for check in one.caught_by)
    assert found.keys() == CHECKS.keys()
    assert min(found.values()) >= 5
