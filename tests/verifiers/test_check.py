"""The statistical form of `check`: its false-alarm rate, its power, and what the command says and returns."""

from __future__ import annotations

import json
from functools import cache
from math import sqrt

import numpy as np
import pytest

from commandline import run, save_pair
from paceline import LLM, SamplingParams
from paceline.engine.check import examine, law_of, verdict
from paceline.engine.law import FALSE_ALARM, TURNS, Draws, Fit, draws, fit
from paceline.registry import VERIFIERS
from paceline.verifiers.base import NodeByNode
from paceline.verifiers.contrastive import Contrastive
from shared import CHECKPOINTS, WHY

TARGET, DRAFT = str(CHECKPOINTS / "stories260K"), str(CHECKPOINTS / "llama2xs_280k")
real = pytest.mark.skipif(not CHECKPOINTS.is_dir(), reason=WHY)
PROMPTS = (
    "Once upon a time",
    "Lily and Ben",
    "The little dog was very sad because",
    "One day, a boy named Tim went to the park.",
)
LAW = ["rejection", "multi-round", "multi-round:replacement=with", "k-seq", "spechub", "block"]
LOSSY = ["typical", "relaxed", "contrastive"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return save_pair(tmp_path_factory.mktemp("models"))


def test_the_distance_is_that_of_kolmogorov() -> None:
    assert fit([0.5]) == Fit(1, 0.5)
    assert fit([0.25, 0.75]) == Fit(2, 0.25)
    assert fit([0.9, 0.8]).distance == pytest.approx(0.8)
    uniform = np.random.default_rng(1).random(5000)
    assert fit(uniform).distance < 1.9 / sqrt(5000)
    assert fit(uniform).holds
    assert not fit(uniform**1.2).holds


def test_the_bound_is_met_as_rarely_as_is_stated() -> None:
    """Looser by a factor, the bound is passed about as often as its formula says: the rate itself is too small to be counted."""
    noise, runs, size = np.random.default_rng(2), 2000, 200
    loose = sqrt(np.log(2 / 0.05) / (2 * size))
    passed = sum(fit(noise.random(size)).distance > loose for _ in range(runs))
    assert 0.01 * runs < passed < 0.06 * runs
    assert Fit(size, 0.0).bound == pytest.approx(loose * sqrt(np.log(2 / FALSE_ALARM) / np.log(2 / 0.05)))


@cache
def judge(draft: str, rule: str) -> tuple[str, Fit]:
    llm = LLM(TARGET, draft, verify=rule, lossy=rule in LOSSY)
    rows = list(examine(llm, draft, PROMPTS, SamplingParams(max_tokens=100, temperature=1.0)))
    law = law_of(rows)
    assert law is not None
    assert law.tokens == TURNS * len(PROMPTS) * 100
    return verdict(rows), law


@real
@pytest.mark.parametrize("draft", [f"model:{DRAFT},depth=3,width=2", "ngram"])
@pytest.mark.parametrize("rule", LAW)
def test_rules_that_keep_the_law_pass(draft: str, rule: str) -> None:
    said, law = judge(draft, rule)
    assert said == "lossless"
    assert law.distance < 0.9 * law.bound


@real
@pytest.mark.parametrize("rule", LOSSY)
def test_lossy_rules_fail(rule: str) -> None:
    """The power of the test, on the distribution alone: nothing greedy is compared here."""
    said, law = judge(f"model:{DRAFT}", rule)
    assert said == "not lossless"
    assert law.distance > 1.2 * law.bound


@real
def test_ranks_are_uniform_under_plain_decoding_whatever_the_sampling() -> None:
    llm = LLM(TARGET, "none")
    for params in (
        SamplingParams(max_tokens=100, temperature=0.6, top_p=0.8),
        SamplingParams(max_tokens=100, temperature=1.3, top_k=20, repetition_penalty=1.2, frequency_penalty=0.3),
    ):
        found = list(draws(llm, PROMPTS, params))
        assert fit([rank for row in found for rank in row.ranks]).holds
        assert len({row.speculative.seed for row in found}) == len(found)
    off = SamplingParams(max_tokens=100, temperature=1.0)
    wrong = [Draws(row.prompt, 1.0, row.speculative, _ranks_under(llm, row, off)) for row in draws(llm, PROMPTS, params)]
    assert not fit([rank for row in wrong for rank in row.ranks]).holds


def _ranks_under(llm: LLM, row: Draws, params: SamplingParams) -> tuple[float, ...]:
    from paceline.engine.law import _ranks

    return tuple(_ranks(llm, row.prompt, params, row.speculative))


@pytest.mark.parametrize("rule", LAW)
def test_check_names_the_form_the_size_and_the_rate(monkeypatch, capsys, models, rule: str) -> None:
    target, draft = models
    call = ("check", target, "--draft", f"model:{draft}", "--verify", rule, "--max-tokens", "6")
    assert run(monkeypatch, *call, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["verdict"], report["form"], report["verifier"]) == ("lossless", "law", rule.partition(":")[0])
    assert report["law"]["distance"] < report["law"]["bound"]
    assert report["law"]["false_alarm"] == 1e-6
    assert report["law"]["tokens"] == TURNS * 11 * 6
    assert report["accepted_tokens"] > 0
    assert report["divergences"] == []


def test_check_says_so_in_words_too_and_3_where_nothing_was_accepted(monkeypatch, capsys, models) -> None:
    target, draft = models
    assert run(monkeypatch, "check", target, "--draft", f"model:{draft}", "--verify", "block", "--max-tokens", "6") == 0
    said = capsys.readouterr().out
    assert "lossless (law)" in said
    assert "false-alarm rate 1e-06" in said
    assert run(monkeypatch, "check", target, "--draft", "none", "--verify", "block", "--max-tokens", "3") == 3
    assert "inconclusive (law)" in capsys.readouterr().out


def test_greedy_alone_a_rule_of_the_law_is_compared_token_by_token(monkeypatch, capsys, models) -> None:
    target, draft = models
    call = ("check", target, "--draft", f"model:{draft}", "--verify", "multi-round", "--max-tokens", "12", "--temperature", "0")
    assert run(monkeypatch, *call, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["form"], report["law"], report["runs"]) == ("text", None, 11)


def test_check_exits_1_where_the_law_is_not_kept(monkeypatch, capsys, models) -> None:
    """A rule that takes the first child of every node, whatever the target says."""
    monkeypatch.setattr(NodeByNode, "trials", _gullible)
    target, draft = models
    call = ("check", target, "--draft", f"model:{draft}", "--verify", "rejection", "--max-tokens", "64", "--temperature", "1.5")
    assert run(monkeypatch, *call, "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert report["divergences"] == []
    assert report["law"]["distance"] > report["law"]["bound"]


def _gullible(self, target_probs, groups):
    for group in groups:
        yield group.nodes[0], 1.0
    return target_probs


@pytest.mark.parametrize("rule", LOSSY)
def test_lossy_rules_are_refused_unless_asked_for(monkeypatch, capsys, models, rule: str) -> None:
    target, draft = models
    call = (target, "--draft", f"model:{draft}", "--verify", rule, "--max-tokens", "4")
    for command in (
        ("check", *call),
        ("generate", *call, "-p", "the thin"),
        ("generate", *call, "-p", "x", "--temperature", "1"),
    ):
        assert run(monkeypatch, *command) == 2
        said = capsys.readouterr().err
        assert len(said.strip().splitlines()) == 1
        assert "allow it with lossy" in said
    assert run(monkeypatch, "generate", *call, "-p", "the thin", "--lossy", "--temperature", "1", "--json") == 0
    speculation = json.loads(capsys.readouterr().out)["speculation"]
    assert speculation["lossless"] is False
    assert speculation["law"] == ("contrastive" if rule == "contrastive" else "target")
    assert run(monkeypatch, "check", *call, "--lossy") in (0, 1)


def test_exact_rules_say_they_are_lossless(monkeypatch, capsys, models) -> None:
    target, draft = models
    for rule in [name for name in VERIFIERS if name not in LOSSY]:
        call = ("generate", target, "-p", "the thin", "--draft", f"model:{draft}", "--verify", rule, "--temperature", "1")
        assert run(monkeypatch, *call, "--max-tokens", "8", "--json") == 0
        speculation = json.loads(capsys.readouterr().out)["speculation"]
        assert (speculation["lossless"], speculation["verifier"], speculation["law"]) == (True, rule, "target")


def test_contrastive_needs_a_model_that_drafts(monkeypatch, capsys, models) -> None:
    assert run(monkeypatch, "generate", models[0], "-p", "x", "--draft", "ngram", "--verify", "contrastive", "--lossy") == 2
    assert "contrasts the target with a model that drafts" in capsys.readouterr().err
    assert Contrastive.amateur


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("mult-round", "the nearest is 'multi-round'"),
        ("typical:epsilom=1", "the nearest is 'epsilon'"),
        ("typical:epsilon=2", "less than or equal to 1"),
        ("relaxed:top=0", "greater than or equal to 1"),
        ("contrastive:alpha=0", "greater than 0"),
        ("multi-round:replacement=maybe", "'with' or 'without'"),
        ("rejection:x=1", "no option 'x'"),
        ("block+match", "a verifier is a single method"),
    ],
)
def test_mistakes_get_one_sentence(monkeypatch, capsys, models, rule: str, expected: str) -> None:
    assert run(monkeypatch, "generate", models[0], "-p", "x", "--draft", "none", "--verify", rule) == 2
    said = capsys.readouterr().err
    assert len(said.strip().splitlines()) == 1
    assert expected in said
