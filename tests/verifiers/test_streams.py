"""The rules with their real random draws, in the real loop: three tokens per seed against the target's enumerated law.

Joint chi-square and mean log-probability of 2,000 seeds a case (40,000 under the marker `full`), false-alarm rate 1e-6 each.
"""

from __future__ import annotations

import itertools
from collections import Counter
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import reference
from fakes import DrawnDrafter, TableModel, TrimmingPolicy, coupled
from laws import FALSE_ALARM, PROMPT, Outcome, bulk, chi_square, drawn, obeys
from paceline import draws
from paceline.cache.base import Branching
from paceline.compose import build_drafter, build_verifier
from paceline.drafters.base import Drafter, Surroundings
from paceline.drafters.merge import MergedDrafter
from paceline.drafters.model import ModelDrafter, Options
from paceline.draws import siblings
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.tree import DraftTree, Proposal

MODEL = TableModel(5, sharpness=1.3, seed=8)
PARAMS = SamplingParams(temperature=1.2, top_p=0.92, repetition_penalty=1.2, frequency_penalty=0.4)
WIDE = (2, 1)


def draft(kind: Proposal, widths: tuple[int, ...] = WIDE, name: str = "drawn", seed: int = 1) -> DrawnDrafter:
    return DrawnDrafter(MODEL.disturbed(1.0, seed), kind, widths, name)


def model(kind: Proposal, **shape: Any) -> ModelDrafter:
    """The engine's own drafter, on a disturbed table."""
    return ModelDrafter(MODEL.disturbed(1.0), MODEL.vocab_size, Options(path="fake", **shape), kind)


CASES: dict[str, tuple[str, Drafter]] = {
    "rejection": ("rejection", draft(Proposal.IID, (1, 1))),
    "multi-round without replacement": ("multi-round", draft(Proposal.WITHOUT_REPLACEMENT)),
    "multi-round with replacement": ("multi-round:replacement=with", draft(Proposal.IID)),
    "multi-round, two models": (
        "multi-round",
        MergedDrafter([draft(Proposal.WITHOUT_REPLACEMENT), draft(Proposal.WITHOUT_REPLACEMENT, (1, 1), "other", 2)]),
    ),
    "k-seq": ("k-seq", draft(Proposal.IID)),
    "k-seq, two models": ("k-seq", MergedDrafter([draft(Proposal.IID), draft(Proposal.IID, (1, 1), "other", 2)])),
    "spechub": ("spechub", draft(Proposal.HUB)),
    "block": ("block", draft(Proposal.IID, (1, 1))),
    "multi-round, point masses": ("multi-round", draft(Proposal.POINT)),
    "block, point masses": ("block", draft(Proposal.POINT, (1, 1))),
    "multi-round, drawn beside point masses": (
        "multi-round",
        MergedDrafter([draft(Proposal.IID), draft(Proposal.POINT, (1, 1), "other", 2)]),
    ),
    "rejection, a real drafter": ("rejection", model(Proposal.IID, depth=2)),
    "multi-round, a real drafter": ("multi-round", model(Proposal.WITHOUT_REPLACEMENT, tree="static", nodes=5, depth=2)),
    "k-seq, a real drafter": ("k-seq", model(Proposal.IID, samples=2, depth=2)),
    "spechub, a real drafter": ("spechub", model(Proposal.HUB, depth=2, width=2)),
    "block, a real drafter": ("block", model(Proposal.IID, depth=3)),
}
COUPLED = ["rejection", "multi-round", "k-seq", "spechub", "block"]
"""Rules tested with drafts made from the position's noise, at the same position in every step: no law may change."""


@cache
def wanted() -> dict[Outcome, float]:
    return reference.law(lambda tokens: MODEL.row(tokens).double().numpy(), PROMPT, PARAMS, 3)


def keeps_the_law(rule: str, drafter: Drafter, seeds: int) -> bool:
    with bulk():
        return obeys(drawn(MODEL, drafter, PARAMS, range(seeds), verifier=build_verifier(rule)), wanted())


@pytest.mark.parametrize("case", CASES)
def test_three_tokens_have_the_joint_law_of_the_target(case: str) -> None:
    assert keeps_the_law(*CASES[case], 2_000)


@pytest.mark.parametrize("rule", COUPLED)
def test_three_tokens_drafted_with_the_noise_of_match_have_the_joint_law_of_the_target(rule: str) -> None:
    assert keeps_the_law(rule, coupled(MODEL, depth=2, width=2), 2_000)


@pytest.mark.parametrize("branching", [Branching.CHAIN, Branching.TREE])
@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_choosing_between_a_drawn_chain_and_a_point_mass_keeps_the_law(rule: str, branching: Branching) -> None:
    """Where only one of both can be verified, the likelier is kept; a drawn draft's likelihood depends on its drawn tokens."""
    target = TableModel(5, sharpness=1.3, seed=8, branching=branching)
    drafter = MergedDrafter([draft(Proposal.POINT, (1, 1), "found", 2), model(Proposal.IID, depth=2)])
    with bulk():
        assert obeys(drawn(target, drafter, PARAMS, range(6_000), verifier=build_verifier(rule)), wanted())


@pytest.mark.parametrize("case", ["rejection", "multi-round without replacement", "block"])
def test_a_trimming_policy_does_not_change_the_law_of_drawn_drafts(case: str) -> None:
    rule, drafter = CASES[case]
    with bulk():
        found = drawn(MODEL, drafter, PARAMS, range(2_000), verifier=build_verifier(rule), policy=TrimmingPolicy())
    assert obeys(found, wanted())


@pytest.mark.parametrize("kind", [Proposal.IID, Proposal.WITHOUT_REPLACEMENT])
def test_contrastive_draws_from_its_own_law(kind: Proposal) -> None:
    """The first three tokens of six: near the end a step may have no draft, and then the law is the target's."""
    amateur, params, law = MODEL.disturbed(0.8), SamplingParams(temperature=0.8), dict[Outcome, float]()
    for outcome in itertools.product(range(5), repeat=3):
        law[outcome] = 1.0
        for at, token in enumerate(outcome):
            expert, other = (m.row([*PROMPT, *outcome[:at]]).double().softmax(-1) for m in (MODEL, amateur))
            weights = ((expert >= 0.1 * expert.max()) * expert**1.5 / other**0.5) ** (1 / 0.8)
            law[outcome] *= float(weights[token] / weights.sum())
    law = {outcome: chance for outcome, chance in law.items() if chance > 0}
    drafter = ModelDrafter(amateur, 5, Options(path="fake", depth=2, width=2), kind, amateur=True)
    with bulk():
        found = drawn(MODEL, drafter, params, range(2_000), 6, build_verifier("contrastive"))
    assert obeys([outcome[:3] for outcome in found], law)
    assert not obeys([outcome[:3] for outcome in found], wanted())


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_three_tokens_have_the_joint_law_of_the_target_at_length(case: str) -> None:
    assert keeps_the_law(*CASES[case], 40_000)


def test_a_token_of_thousands_is_drawn_by_its_probability() -> None:
    """Uneven probabilities, with runs of zeros in between and at the end."""
    probs = torch.randn(2_000, generator=torch.Generator().manual_seed(3)).abs().pow(4).double().numpy()
    probs[300:1100], probs[1900:] = 0.0, 0.0
    probs /= probs.sum()
    law = {(token,): chance for token, chance in enumerate(probs.tolist()) if chance > 0}
    found = [(draws.drawn(probs, Sequence(seed, (0,), SamplingParams(), seed), "residual", 0),) for seed in range(20_000)]
    assert obeys(found, law)


@pytest.mark.parametrize("kind", [kind for kind in Proposal if kind.drawn])
def test_siblings_have_the_joint_law_of_their_kind(kind: Proposal) -> None:
    """In the order of their draws, 10,000 seeds."""
    probs = torch.tensor([0.45, 0.3, 0.05, 0.2])
    law: dict[Outcome, float] = {}
    for first, chance in enumerate(probs.double().tolist()):
        for second, other in enumerate(probs.double().tolist()):
            if kind is Proposal.IID:
                law[first, second] = chance * other
            elif first != second and (kind is Proposal.WITHOUT_REPLACEMENT or first == 0):
                law[first, second] = chance * other / (1 - chance)
            elif kind is Proposal.HUB and first != 0 and second == 0:
                law[first, second] = chance
    assert sum(law.values()) == pytest.approx(1, abs=1e-6)
    found = []
    for seed in range(10_000):
        sequence = Sequence(seed, (0,), SamplingParams(), seed)
        found.append(tuple(siblings(probs, kind, 2, sequence, "draft one", 0)))
    assert chi_square(found, law) > FALSE_ALARM


@pytest.mark.parametrize("rule", ["rejection", "multi-round", "k-seq", "block"])
def test_an_earlier_answer_of_the_same_seed_is_no_better_a_draft_than_another(rule: str) -> None:
    """Draws of the first answer must be independent of draws of the second."""
    verifier, found = build_verifier(rule), []
    for seed in range(3_000):
        asked = [Sequence(key, (1, 2), SamplingParams(temperature=1.0), seed) for key in (0, 1)]
        (first,) = verifier([asked[0]], [DraftTree.root(2)], [torch.zeros(1, 3)])
        (second,) = verifier([asked[1]], [DraftTree.chain(2, [first.tokens[0]], "suffix")], [torch.zeros(2, 3)])
        found.append((first.tokens[0], second.tokens[0]))
    assert obeys(found, dict.fromkeys(itertools.product(range(3), repeat=2), 1 / 9))


def test_requests_draw_apart_by_their_seed_and_by_their_number() -> None:
    def seeds() -> list[int]:
        asked = itertools.product(range(3), repeat=2)
        return [Sequence(key, (0,), SamplingParams(), seed).draws_seed for key, seed in asked]

    assert len(set(seeds())) == 9
    assert seeds() == seeds(), "and a request draws the same again"


def test_names_alike_in_their_beginning_have_streams_of_their_own() -> None:
    probs, pairs = torch.tensor([0.5, 0.5]), Counter()
    for seed in range(2_000):
        sequence = Sequence(seed, (0,), SamplingParams(), seed)
        pairs[tuple(siblings(probs, Proposal.IID, 1, sequence, f"draft model:PATH{end}", 0)[0] for end in ("", " 2"))] += 1
    law = dict.fromkeys([(0, 0), (0, 1), (1, 0), (1, 1)], 0.25)
    assert chi_square(list(pairs.elements()), law) > FALSE_ALARM


def test_equal_seeds_draw_equal_tokens_again() -> None:
    drafter = draft(Proposal.WITHOUT_REPLACEMENT)
    with bulk():
        once, again = (drawn(MODEL, drafter, PARAMS, range(50), verifier=build_verifier("multi-round")) for _ in range(2))
    assert once == again
    assert len(set(once)) > 10


@pytest.mark.parametrize("rule", ["rejection", "multi-round", "k-seq", "block"])
@pytest.mark.parametrize("brought", [{"reference": True}, {"read_texts": 7}, {"prompt": (2, 2)}])
def test_an_earlier_answer_of_another_engine_is_no_better_a_draft_than_another(rule: str, brought: dict[str, Any]) -> None:
    """There the request had the same number; here its answer is drafted from a reference, a file, or the prompt."""
    verifier, found = build_verifier(rule), []
    for seed in range(3_000):
        (first,) = verifier([Sequence(0, (1, 2), PARAMS, seed)], [DraftTree.root(2)], [torch.zeros(1, 3)])
        known = {"prompt": (1, 2), **brought}
        if "reference" in brought:
            known["reference"] = first.tokens
        asked = Sequence(0, params=PARAMS, seed=seed, **known)
        (second,) = verifier([asked], [DraftTree.chain(2, [first.tokens[0]], "reference")], [torch.zeros(2, 3)])
        found.append((first.tokens[0], second.tokens[0]))
    assert obeys(found, dict.fromkeys(itertools.product(range(3), repeat=2), 1 / 9))


def test_drafters_that_have_read_other_texts_are_told_apart(tmp_path: Path) -> None:
    tokenizer: Any = SimpleNamespace(encode=lambda text, special: [ord(letter) % 5 for letter in text])
    surroundings = Surroundings(MODEL, tokenizer, lambda path: (MODEL, tokenizer))

    def told(method: str, text: str) -> int:
        file = tmp_path / "text"
        file.write_text(text)
        return build_drafter(method.format(file=file), surroundings).read_texts

    for method in ("unigram:file={file}", "bigram:file={file}", "reference:file={file}", "ngram+reference:file={file}"):
        assert 0 < told(method, "abab") == told(method, "abab") != told(method, "abba")
    assert told("ngram", "") == 0, "it reads only requests"
