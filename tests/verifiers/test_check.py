"""The statistical form of `check`: its false-alarm rate, its power, its output and its exit codes."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from math import sqrt

import numpy as np
import pytest

from commandline import run, save_pair
from paceline import LLM, SamplingParams
from paceline.drafters.ngram import NgramDrafter
from paceline.engine import check, law
from paceline.engine.check import doubt, examine, law_of, verdict
from paceline.engine.engine import Engine, RequestError
from paceline.engine.law import FALSE_ALARM, MOST, TURNS, Fit, distance, draws, fit, placed, tokens_drawn
from paceline.models.embedded import DEFAULT, embedded_models
from paceline.models.native import runs_here
from paceline.registry import VERIFIERS
from paceline.tree import DraftTree, Proposal
from paceline.verifiers.base import Exactness, NodeByNode
from paceline.verifiers.contrastive import Contrastive
from shared import CHECKPOINTS, WHY
from tiny import tiny_hub

TARGET, DRAFT = str(CHECKPOINTS / "stories260K"), str(CHECKPOINTS / "llama2xs_280k")
real = pytest.mark.skipif(not CHECKPOINTS.is_dir(), reason=WHY)
PROMPTS = (
    "Once upon a time",
    "Lily and Ben",
    "The little dog was very sad because",
    "One day, a boy named Tim went to the park.",
)
LAW = ["rejection", "multi-round", "multi-round:replacement=with", "k-seq", "spechub", "block"]
LOSSY = ["lenient", "typical", "relaxed", "contrastive"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return save_pair(tmp_path_factory.mktemp("models"))


def test_the_distance_is_that_of_kolmogorov() -> None:
    assert distance([0.5]) == 0.5
    assert distance([0.25, 0.75]) == 0.25
    assert distance([0.9, 0.8]) == pytest.approx(0.8)
    uniform = np.random.default_rng(1).random(5000)
    assert distance(uniform) < 1.9 / sqrt(5000)
    assert Fit(5000, distance(uniform)).holds
    assert not Fit(5000, distance(uniform**1.2)).holds


def test_the_false_alarm_rate_of_the_bound_is_the_stated_one() -> None:
    """A looser bound is exceeded about as often as its formula says; the stated rate is too small to be counted."""
    noise, runs, size = np.random.default_rng(2), 2000, 200
    loose = sqrt(np.log(2 / 0.05) / (2 * size))
    passed = sum(distance(noise.random(size)) > loose for _ in range(runs))
    assert 0.01 * runs < passed < 0.06 * runs
    assert Fit(size, 0.0).bound == pytest.approx(loose * sqrt(np.log(6 / FALSE_ALARM) / np.log(2 / 0.05)))


def test_the_likeliest_token_passes_its_bound_no_more_often_than_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probabilities differ from token to token, as in texts; and a rule that takes the likeliest token too often is detected."""
    noise, runs, size = np.random.default_rng(3), 4000, 300
    chances = noise.beta(6, 1, (runs, size))
    variances = (chances * (1 - chances)).sum(1)
    excesses = ((noise.random((runs, size)) < chances) - chances).sum(1)
    monkeypatch.setattr(law, "FALSE_ALARM", 1.0)
    passed = sum(not Fit(size, 0.0, *one).holds for one in zip(excesses, variances, strict=True))
    assert 0 < passed < 0.5 * runs
    monkeypatch.undo()
    assert all(Fit(size, 0.0, *one).holds for one in zip(excesses, variances, strict=True))
    always = Fit(8 * size, 0.0, float(8 * size - chances[:8].sum()), float(variances[:8].sum()))
    assert not always.holds
    assert not Fit(always.tokens, 0.0, -always.excess, always.variance).holds


def test_one_impossible_token_refutes_a_rule() -> None:
    assert Fit(5000, 0.0).holds
    assert not Fit(5000, 0.0, impossible=1).holds


@cache
def judge(draft: str, rule: str) -> tuple[str, Fit]:
    llm = LLM(TARGET, draft, verify=rule, lossy=rule.partition(":")[0] in LOSSY)
    rows = list(examine(llm, draft, PROMPTS, [SamplingParams(max_tokens=100, temperature=1.0)]))
    found = law_of(rows)
    assert found is not None
    assert found.tokens == TURNS * len(PROMPTS) * 100
    return verdict(rows), found


@real
@pytest.mark.parametrize("draft", [f"model:{DRAFT},depth=3,width=2", "ngram"])
@pytest.mark.parametrize("rule", LAW)
def test_rules_that_keep_the_law_pass(draft: str, rule: str) -> None:
    said, found = judge(draft, rule)
    assert said == "lossless"
    assert found.distance < 0.9 * found.bound
    assert abs(found.excess) < 0.9 * found.excess_bound
    assert found.impossible == 0


@real
@pytest.mark.parametrize("rule", ["lenient:lenience=0.1", *LOSSY[1:]])
def test_lossy_rules_fail(rule: str) -> None:
    """The power of the test on the distribution alone, without greedy comparisons."""
    said, found = judge(f"model:{DRAFT}", rule)
    assert said == "not lossless"
    assert found.distance > 1.2 * found.bound


@real
def test_ranks_are_uniform_under_plain_decoding_whatever_the_sampling() -> None:
    llm = LLM(TARGET, "none")
    for params in (
        SamplingParams(max_tokens=100, temperature=0.6, top_p=0.8),
        SamplingParams(max_tokens=100, temperature=1.3, top_k=20, repetition_penalty=1.2, frequency_penalty=0.3),
    ):
        found = list(draws(llm, PROMPTS, params))
        assert fit(found).holds
        assert len({row.speculative.seed for row in found}) == len(found)
    off = SamplingParams(max_tokens=100, temperature=1.0)
    wrong = [placed(llm, row.prompt, off, row.speculative) for row in draws(llm, PROMPTS, params)]
    assert not fit(wrong).holds


@real
def test_tokens_outside_top_p_count_as_impossible_only_on_batch_invariant_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM(TARGET, "none")
    wide = SamplingParams(max_tokens=100, temperature=1.2, seed=1)
    for cut in ({"top_p": 0.7}, {"min_p": 0.1}, {"top_k": 5}):
        narrow = wide.model_copy(update=cut)
        answers = [llm.generate(PROMPTS[0], params)[0] for params in (wide, narrow)]
        assert [placed(llm, PROMPTS[0], narrow, one).impossible > 3 for one in answers] == [llm.target.batch_invariant, False]
    monkeypatch.setattr(llm.target, "batch_invariant", False)
    assert placed(llm, PROMPTS[0], narrow, answers[0]).impossible == 0


@real
def test_an_answer_is_ranked_in_few_forwards_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM(TARGET, "none")
    params = SamplingParams(max_tokens=150, temperature=1.0, top_p=0.9, repetition_penalty=1.2, seed=1)
    answer, (score, steps) = llm.generate(PROMPTS[3], params)[0], (llm.target.score, [])
    monkeypatch.setattr(llm.target, "score", lambda step, cache: steps.append(step) or score(step, cache))
    together = placed(llm, PROMPTS[3], params, answer)
    forwards, same_bits = len(steps), llm.target.batch_invariant
    monkeypatch.setattr(llm.target, "batch_invariant", False)
    assert placed(llm, PROMPTS[3], params, answer) == together
    assert len(steps) - forwards == len(answer.token_ids) + 1
    assert forwards < 6 or not same_bits


def test_only_backends_of_our_own_have_the_same_bits(models) -> None:
    assert LLM(models[0], "none").target.batch_invariant == runs_here()
    assert not tiny_hub().batch_invariant


def test_the_number_of_drawn_tokens_is_bounded() -> None:
    assert tokens_drawn(11, 64) == TURNS * 11 * 64
    assert tokens_drawn(1000, 64) == MOST


@pytest.mark.parametrize("rule", LAW)
def test_check_names_the_form_the_size_and_the_rate(monkeypatch, capsys, models, rule: str) -> None:
    target, draft = models
    call = ("check", target, "--draft", f"model:{draft}", "--verify", rule, "--max-tokens", "24")
    assert run(monkeypatch, *call, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["verdict"], report["form"], report["verifier"]) == ("lossless", "law", rule.partition(":")[0])
    assert report["reason"] is None
    assert report["law"]["false_alarm"] == 1e-6
    assert report["law"]["tokens"] == TURNS * 11 * 24
    assert report["accepted_tokens"] > 0
    assert report["divergences"] == []


def test_check_prints_its_verdict_and_exits_with_3_where_nothing_was_accepted(monkeypatch, capsys, models) -> None:
    target, draft = models
    assert run(monkeypatch, "check", target, "--draft", f"model:{draft}", "--verify", "block", "--max-tokens", "24") == 0
    said = capsys.readouterr().out
    assert "lossless (distribution)" in said
    assert "false-alarm rate 1e-06" in said
    assert run(monkeypatch, "check", target, "--draft", "grammar", "--verify", "block", "--max-tokens", "3") == 3
    said = capsys.readouterr().out
    assert "inconclusive (distribution)" in said
    assert "nothing that was drafted was accepted" in said


def test_too_few_tokens_show_nothing_and_it_is_said_what_to_raise(monkeypatch, capsys, models) -> None:
    target, draft = models
    call = ("check", target, "--draft", f"model:{draft}", "--verify", "rejection", "--max-tokens", "6")
    assert run(monkeypatch, *call) == 3
    said = capsys.readouterr().out
    assert "inconclusive (distribution)" in said
    assert f"{TURNS * 11 * 6} drawn tokens refuse hardly any verifier: raise max-tokens, or give more prompts" in said
    assert run(monkeypatch, *call, "--json") == 3
    assert "raise max-tokens" in json.loads(capsys.readouterr().out)["reason"]


def test_check_is_inconclusive_where_nothing_is_drafted_at_one_temperature(models, monkeypatch: pytest.MonkeyPatch) -> None:
    propose = NgramDrafter.propose

    def when_greedy(self, sequences, budgets):
        trees = zip(sequences, propose(self, sequences, budgets), strict=True)
        return [DraftTree.root(one.root) if one.params.temperature else tree for one, tree in trees]

    monkeypatch.setattr(NgramDrafter, "propose", when_greedy)
    llm = LLM(models[0], "ngram", verify="rejection")
    settings = [SamplingParams(max_tokens=80), SamplingParams(max_tokens=80, temperature=1.0)]
    rows = list(examine(llm, "ngram", PROMPTS, settings))
    assert verdict(rows) == "inconclusive"
    assert doubt(rows) == "at temperature 1 nothing was drafted, so nothing was put to the test there"


@real
@pytest.mark.parametrize("temperature", [0.3, 0.5])
@pytest.mark.parametrize("rule", ["typical", "relaxed"])
def test_a_rule_that_promises_nothing_is_never_found_lossless(rule: str, temperature: float) -> None:
    llm = LLM(TARGET, f"model:{DRAFT}", verify=rule, lossy=True)
    for settings in ([SamplingParams(max_tokens=64)], [SamplingParams(max_tokens=64, temperature=temperature)]):
        rows = list(examine(llm, f"model:{DRAFT}", PROMPTS, settings))
        assert verdict(rows) != "lossless"
        assert "promises nothing" in (doubt(rows) or "")


@real
def test_a_rule_that_takes_the_likeliest_too_often_is_seen_where_ranks_do_not_tell() -> None:
    llm = LLM(TARGET, f"model:{DRAFT}", verify="typical", lossy=True)
    rows = list(examine(llm, f"model:{DRAFT}", PROMPTS, [SamplingParams(max_tokens=340, temperature=0.2)]))
    found = law_of(rows)
    assert found is not None
    assert (found.distance < found.bound, verdict(rows)) == (True, "not lossless")


@pytest.mark.parametrize(
    ("draft", "rule", "said"),
    [
        ("none", "match", "prompt 2 of 2, 'the thin the thin the thin the': the prompt has"),
        ("ngram", "typical", "'typical' keeps neither"),
        ("ngram", "spechub", "'spechub' keeps neither"),
    ],
)
def test_what_cannot_be_checked_is_refused_before_a_token_is_decoded(
    monkeypatch: pytest.MonkeyPatch, models, draft: str, rule: str, said: str
) -> None:
    llm = LLM(models[0], draft, verify=rule)
    monkeypatch.setattr(VERIFIERS["spechub"].load().SpecHub, "exactness", {Proposal.HUB: Exactness.LAW})
    monkeypatch.setattr(Engine, "step", lambda self: pytest.fail("a token was decoded"))
    settings = [SamplingParams(max_tokens=8), SamplingParams(max_tokens=8, temperature=1.0)]
    with pytest.raises(RequestError, match=said):
        list(examine(llm, draft, ["the thin", "the thin " * 2000], settings))


def test_greedy_alone_a_rule_of_the_law_is_compared_token_by_token(monkeypatch, capsys, models) -> None:
    target, draft = models
    call = ("check", target, "--draft", f"model:{draft}", "--verify", "multi-round", "--max-tokens", "12", "--temperature", "0")
    assert run(monkeypatch, *call, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["form"], report["law"], report["runs"]) == ("text", None, 11)


def test_check_exits_1_where_the_law_is_not_kept(monkeypatch, capsys, models) -> None:
    """A rule that takes the first child of every node, whatever the target's distribution."""
    monkeypatch.setattr(NodeByNode, "trials", _gullible)
    target, draft = models
    call = ("check", target, "--draft", f"model:{draft}", "--verify", "rejection", "--max-tokens", "64", "--temperature", "1.5")
    assert run(monkeypatch, *call, "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert report["divergences"] == []
    assert report["law"]["distance"] > report["law"]["bound"]


@pytest.mark.skipif(not embedded_models(), reason="the embedded weights are not part of this checkout")
@pytest.mark.parametrize(("rule", "code"), [("typical", 1), ("rejection", 0)])
def test_check_tells_rules_apart_that_differ_by_little(monkeypatch, capsys, rule: str, code: int) -> None:
    """On trained models: a rule that accepts tokens above a threshold is refused, and one that keeps the law is not."""
    lossy = ("--lossy",) if code else ()
    call = ("check", "--draft", f"model:{DEFAULT}-draft,depth=3", "--verify", rule, "--max-tokens", "24", "--temperature", "1")
    assert run(monkeypatch, *call, *lossy, "--json") == code
    report = json.loads(capsys.readouterr().out)
    assert (report["form"], report["accepted_tokens"] > 100) == ("law", True)
    if code:
        assert report["law"]["distance"] > 1.2 * report["law"]["bound"]
    else:
        assert report["law"]["distance"] < 0.9 * report["law"]["bound"]


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
        assert "allow it by --lossy, in Python by lossy=True" in said
    assert run(monkeypatch, "generate", *call, "-p", "the thin", "--lossy", "--temperature", "1", "--json") == 0
    speculation = json.loads(capsys.readouterr().out)["speculation"]
    assert speculation["lossless"] is False
    assert speculation["law"] == ("contrastive" if rule == "contrastive" else "target")
    assert run(monkeypatch, "check", *call, "--lossy") in (1, 3)


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


@pytest.mark.parametrize("invariant", [True, False])
def test_a_near_tie_excuses_another_token_only_where_a_rows_bits_may_differ(monkeypatch, models, invariant: bool) -> None:
    """A kernel that loses its invariance would part texts at near ties first."""
    llm, params = LLM(models[0], draft="none"), SamplingParams(max_tokens=4)
    (plain,) = llm.generate("the", params)
    other = replace(plain, token_ids=[*plain.token_ids[:2], plain.token_ids[2] ^ 1, *plain.token_ids[3:]])
    monkeypatch.setattr(check, "NEAR_TIE", float("inf"))
    monkeypatch.setattr(llm.target, "batch_invariant", invariant)
    found = check._divergence(llm, "the", params, plain, other)
    assert found is not None
    assert found.position == 2
    assert found.near_tie is not invariant
