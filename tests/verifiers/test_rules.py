"""Properties of each rule beyond its law: greedy requests, acceptance, lossy thresholds, and the law of `contrastive`."""

from __future__ import annotations

import sys
from dataclasses import replace
from random import Random
from types import ModuleType

import numpy as np
import pytest
import torch

from enumeration import PROMPT, Source, blocks, contrastive_law, error, every_draw, node_law
from fakes import TableModel
from paceline.compose import build_verifier
from paceline.kernels import device
from paceline.params import SamplingParams
from paceline.registry import VERIFIERS
from paceline.sampling import LogitsError
from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.tree import DraftTree, Proposal
from paceline.trials import Group, ProposalError, recorded
from paceline.verifiers import k_seq
from paceline.verifiers.base import Exactness, Verifier
from paceline.verifiers.contrastive import Contrastive
from paceline.verifiers.lenient import Lenient
from paceline.verifiers.relaxed import Options as RelaxedOptions, Relaxed

EXACT = [row.example for row in VERIFIERS.values() if build_verifier(row.example).exactness]
PLAIN = SamplingParams(temperature=1.0)
GREEDY = SamplingParams(frequency_penalty=0.8, min_tokens=3, stop_token_ids=frozenset({1}))


def judged(rule: str | Verifier, sequence: Sequence, tree: DraftTree, logits: torch.Tensor) -> Verdict:
    return (build_verifier(rule) if isinstance(rule, str) else rule)([sequence], [tree], [logits])[0]


def sequence_of(params: SamplingParams, seed: int = 0) -> Sequence:
    return Sequence(seed, PROMPT, params, seed, params.stop_token_ids)


def rows(model: TableModel, tree: DraftTree) -> torch.Tensor:
    return torch.stack([model.row([*PROMPT, *(tree.tokens[n] for n in tree.path(at))]) for at in range(len(tree))])


def random_tree(size: int, stream: Random, kind: Proposal = Proposal.POINT) -> DraftTree:
    """A tree of up to a dozen nodes; if drawn, with uniform proposals."""
    tokens, parents = [PROMPT[-1]], [-1]
    for _ in range(stream.randrange(12)):
        parent, token = stream.randrange(len(tokens)), stream.randrange(size)
        taken = [tokens[node] for node, up in enumerate(parents) if up == parent]
        if token not in taken or kind is Proposal.IID:
            tokens.append(token)
            parents.append(parent)
    proposals = {(node, "one"): torch.full((size,), 1 / size) for node in range(len(tokens))} if kind.drawn else {}
    return DraftTree(tuple(tokens), tuple(parents), kind, proposals, ("", *["one"] * (len(tokens) - 1)))


@pytest.mark.parametrize("kind", [Proposal.POINT, Proposal.COUPLED, Proposal.IID, Proposal.WITHOUT_REPLACEMENT])
@pytest.mark.parametrize("rule", EXACT)
def test_greedy_every_exact_rule_gives_the_verdict_of_match(rule: str, kind: Proposal) -> None:
    """Also beside sampled requests in the same batch, whose verdicts are the same as alone."""
    model, stream, verifier = TableModel(4, seed=2), Random(1), build_verifier(rule)
    for seed in range(60):
        params = [SamplingParams(), GREEDY, PLAIN][seed % 3 :]
        sequences = [sequence_of(one, seed + place) for place, one in enumerate(params)]
        trees = [random_tree(4, stream, kind) for _ in params]
        logits = [rows(model, tree) for tree in trees]
        verdicts = verifier(sequences, trees, logits)
        for sequence, tree, row, verdict in zip(sequences, trees, logits, verdicts, strict=True):
            assert verdict == judged(verifier, sequence, tree, row)
            if sequence.params.temperature == 0:
                assert verdict == judged("match", sequence, tree, row)


@pytest.mark.parametrize("seed", range(4))
def test_block_accepts_at_least_as_much_as_rejection(seed: int) -> None:
    target = TableModel(4, sharpness=1.0, seed=seed)
    source = Source(target.disturbed(1.0, seed + 50), Proposal.IID, (1, 1, 1))
    block, token = (blocks(build_verifier(rule), target, [source], PLAIN).accepted for rule in ("block", "rejection"))
    assert block > token + 1e-3
    short = Source(source.model, Proposal.IID, (1,))
    block, token = (blocks(build_verifier(rule), target, [short], PLAIN).accepted for rule in ("block", "rejection"))
    assert block == pytest.approx(token, abs=1e-12)
    point = Source(source.model, Proposal.POINT, (1, 1, 1))
    block, token = (blocks(build_verifier(rule), target, [point], PLAIN).accepted for rule in ("block", "rejection"))
    assert block == pytest.approx(token, abs=1e-12), "point masses gain nothing"


@pytest.mark.parametrize("rule", EXACT[1:])
def test_a_draft_that_is_the_target_is_always_accepted(rule: str) -> None:
    target = TableModel(4, sharpness=1.0, seed=3)
    kind = build_verifier(rule).prefers[0]
    found = blocks(build_verifier(rule), target, [Source(target, kind, (1, 1, 1))], PLAIN)
    assert found.accepted == pytest.approx(3, abs=1e-6), "a proposal is float32"


def test_equal_siblings_share_their_continuations() -> None:
    """Of two equal siblings only the second has a child, which counts for both."""
    proposal = torch.tensor([0.0, 0.0, 1.0])
    tree = DraftTree((2, 2, 2, 2), (-1, 0, 0, 2), Proposal.IID, {(0, "one"): proposal, (2, "one"): proposal}, ("", *["one"] * 3))
    logits = torch.full((4, 3), -torch.inf)
    logits[:, 2] = 0.0
    for rule in ("multi-round", "k-seq", "rejection"):
        assert judged(rule, sequence_of(PLAIN), tree, logits).path == (2, 3)


@pytest.mark.parametrize("rule", [row.example for row in VERIFIERS.values()])
def test_logits_that_are_not_numbers_are_one_sentence(rule: str) -> None:
    tree = DraftTree.chain(PROMPT[-1], [1, 1], "one")
    with pytest.raises(LogitsError, match="not numbers"):
        judged(rule, sequence_of(PLAIN), tree, torch.full((3, 4), torch.nan))


@pytest.mark.parametrize("rule", ["rejection", "multi-round", "k-seq", "spechub", "block", "contrastive"])
def test_a_drawn_token_without_its_proposal_is_a_fault(rule: str) -> None:
    tree = DraftTree((2, 1), (-1, 0), Proposal.IID, sources=("", "one"))
    with pytest.raises(ProposalError, match="does not say from what"):
        judged(rule, sequence_of(PLAIN), tree, torch.zeros(2, 4))
    impossible = DraftTree((2, 1), (-1, 0), Proposal.IID, {(0, "one"): torch.tensor([0.5, 0.0, 0.5, 0.0])}, ("", "one"))
    with pytest.raises(ProposalError, match="no probability"):
        judged(rule, sequence_of(PLAIN), impossible, torch.zeros(2, 4))


# typical: accepts above the smaller of epsilon and delta * exp(-entropy)


def test_typical_accepts_what_is_probable_for_how_uncertain_the_target_is() -> None:
    probs = torch.tensor([0.5, 0.25, 0.13, 0.08, 0.04])
    entropy = -float((probs * probs.log()).sum())
    logits = probs.log().expand(2, 5)

    def accepts(rule: str, token: int) -> bool:
        return bool(judged(rule, sequence_of(PLAIN), DraftTree.chain(0, [token], "one"), logits).path)

    for epsilon, delta in [(0.09, 0.3), (0.2, 1.0), (0.3, 0.9), (0.05, 0.05)]:
        threshold = min(epsilon, delta * np.exp(-entropy))
        rule = f"typical:epsilon={epsilon},delta={delta}"
        assert [accepts(rule, token) for token in range(5)] == [bool(p > threshold) for p in probs]
    assert all(accepts("typical:epsilon=0", token) for token in range(5)), "epsilon 0 accepts the support"


def test_typical_with_epsilon_0_accepts_the_support_and_nothing_else() -> None:
    params = SamplingParams(temperature=1.0, top_k=2)
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]] * 2)
    for token in range(4):
        verdict = judged("typical:epsilon=0", sequence_of(params), DraftTree.chain(0, [token], "one"), logits)
        assert bool(verdict.path) == (token < 2)


@pytest.mark.parametrize("rule", ["typical", "relaxed:top=1"])
def test_the_lossy_rules_are_greedy_in_their_limit(rule: str) -> None:
    """Typical as the temperature goes to 0, relaxed with one token at temperature 0."""
    model, stream = TableModel(4, seed=2), Random(1)
    cold = SamplingParams(temperature=1e-3) if rule == "typical" else SamplingParams()
    for seed in range(100):
        tree = random_tree(4, stream)
        logits = rows(model, tree)
        assert judged(rule, sequence_of(cold, seed), tree, logits) == judged("match", sequence_of(SamplingParams()), tree, logits)
        for params in (SamplingParams(), GREEDY):
            sequence = sequence_of(params)
            assert judged(rule, sequence, tree, logits) == judged("match", sequence, tree, logits)


@pytest.mark.parametrize("rule", ["multi-round", "k-seq", "spechub"])
@pytest.mark.parametrize("kind", Proposal)
def test_of_one_child_per_node_every_rule_for_siblings_is_rejection(rule: str, kind: Proposal) -> None:
    """As their docstrings state; the whole verdict is equal."""
    model, stream = TableModel(4, sharpness=0.5, seed=3), Random(4)
    for seed in range(60):
        tokens = [PROMPT[-1], *[stream.randrange(4) for _ in range(3)]]
        shown = {(node, "one"): torch.full((4,), 0.25) for node in range(3)} if kind.drawn else {}
        tree = DraftTree(tuple(tokens), (-1, 0, 1, 2), kind, shown, ("", *["one"] * 3))
        one, other = (judged(name, sequence_of(PLAIN, seed), tree, rows(model, tree)) for name in (rule, "rejection"))
        assert one == other


# relaxed: among the best tokens, and not far below the best


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_relaxed_accepts_the_best_within_the_gap(temperature: float) -> None:
    logits = torch.tensor([2.0, 1.5, 0.9, 0.8, -3.0]).expand(2, 5)
    params = SamplingParams(temperature=temperature)
    for top, gap, kept in [(3, 1.0, {0: 2, 1: 2, 2: 3}), (3, 9.0, {0: 3, 1: 3, 2: 3}), (1, 9.0, {0: 1, 1: 1, 2: 1})]:
        accepted = [
            token
            for token in range(5)
            if judged(f"relaxed:top={top},gap={gap}", sequence_of(params), DraftTree.chain(0, [token], "one"), logits).path
        ]
        assert accepted == list(range(kept[int(temperature)]))


def test_of_paths_that_are_good_enough_the_longest_is_taken_and_then_the_likeliest() -> None:
    logits = torch.tensor([2.0, 1.9, 1.8, -5.0]).expand(6, 4)
    tree = DraftTree((0, 0, 1, 2, 2, 0), (-1, 0, 0, 1, 2, 2))
    for rule in ("relaxed", "typical:epsilon=0.05"):
        assert judged(rule, sequence_of(PLAIN), tree, logits).path == (2, 5)
        assert judged(rule, sequence_of(PLAIN), tree.first(2), logits[:3]).path == (1,)


def test_a_path_that_ends_the_text_wins_over_a_longer_less_likely_one() -> None:
    """Nothing is drafted behind such a token; a less likely one with children must not win because of them."""
    logits = torch.tensor([2.0, 1.9, 1.8, -5.0]).expand(5, 4)
    tree, sequence = DraftTree((0, 0, 1, 2, 0), (-1, 0, 0, 2, 2)), sequence_of(PLAIN)
    for rule in ("relaxed", "typical:epsilon=0.05"):
        sequence.stop_ids = frozenset[int]()
        assert judged(rule, sequence, tree, logits).path == (2, 4)
        sequence.stop_ids = frozenset({0})
        assert judged(rule, sequence, tree, logits).path == (1,)


@pytest.mark.parametrize("rule", ["relaxed", "typical:epsilon=0.05"])
def test_an_end_that_is_merely_good_enough_ends_no_answer_before_a_longer_path(rule: str) -> None:
    """An end token that was drafted beside longer paths used to win, because it counted as one of the longest."""
    logits = torch.tensor([2.0, 1.9, 1.2, -5.0]).expand(5, 4)
    tree, sequence = DraftTree((0, 2, 1, 0, 1), (-1, 0, 0, 2, 3)), sequence_of(PLAIN)
    sequence.stop_ids = frozenset({2})
    assert judged(rule, sequence, tree, logits).path == (2, 3, 4)


# lenient: rejection with scaled-down proposals


@pytest.mark.parametrize("lenience", [1.0, 0.5, 0.1])
@pytest.mark.parametrize("seed", range(6))
def test_lenient_accepts_more_and_makes_nothing_likelier_than_its_bound(seed: int, lenience: float) -> None:
    target, draft = (np.random.default_rng([seed, which]).dirichlet([0.3] * 5) for which in range(2))
    rule = build_verifier(f"lenient:lenience={lenience}")
    assert isinstance(rule, Lenient)
    found = node_law(rule, target, every_draw(draft, Proposal.IID, 2))
    accepted, residual = np.minimum(draft, target / lenience), np.maximum(target - draft, 0.0)
    assert found.accepted == pytest.approx(accepted.sum(), abs=1e-12)
    assert np.allclose(found.emitted, accepted + (1 - accepted.sum()) * residual / residual.sum(), rtol=0, atol=1e-12)
    assert (found.emitted <= target / lenience + 1e-12).all()
    point = node_law(rule, target, [(1.0, [Group((1, 2), (3, 4))])])
    assert point.accepted == pytest.approx(min(target[3] / lenience, 1.0), abs=1e-12)
    assert (point.emitted <= target / lenience + 1e-12).all()


def test_lenient_greedy_is_match_and_with_lenience_1_rejection() -> None:
    model, stream = TableModel(4, seed=5), Random(2)
    for seed in range(60):
        tree = random_tree(4, stream, Proposal.IID)
        logits = rows(model, tree)
        greedy, sampled = sequence_of(GREEDY, seed), sequence_of(PLAIN, seed)
        assert judged("lenient:lenience=0.1", greedy, tree, logits) == judged("match", greedy, tree, logits)
        assert judged("lenient:lenience=1", sampled, tree, logits) == judged("rejection", sampled, tree, logits)


@pytest.mark.parametrize(("rule", "params"), [("relaxed:gap=4", SamplingParams()), ("typical:epsilon=0.02,delta=0.1", PLAIN)])
def test_a_path_that_ends_is_taken_whether_or_not_its_end_is_drafted(rule: str, params: SamplingParams) -> None:
    """Policies trim end tokens, since the row before chooses them as well; here they are the likeliest tokens."""
    model, stream, ended = TableModel(4, sharpness=0.5, seed=3), Random(5), 0
    for seed in range(300):
        tree, sequence = random_tree(4, stream).until(frozenset({3})), sequence_of(params, seed)
        sequence.stop_ids = frozenset({3})
        best = rows(model, tree).argmax(-1).tolist()
        tree = tree.only(n for n in range(1, len(tree)) if tree.tokens[n] != 3 or best[tree.parents[n]] == 3)
        trimmed = tree.only(n for n in range(1, len(tree)) if tree.tokens[n] != 3)
        texts = [judged(rule, sequence, one, rows(model, one)).tokens for one in (tree, trimmed)]
        texts = [text[: text.index(3) + 1] if 3 in text else text for text in texts]
        assert texts[0] == texts[1]
        ended += len(trimmed) < len(tree) and texts[0][-1] == 3
    assert ended > 20


def test_without_drafts_relaxed_is_plain_decoding_and_typical_is_greedy() -> None:
    model = TableModel(6, seed=4)
    for seed in range(40):
        sequence, tree = sequence_of(PLAIN, seed), DraftTree.root(PROMPT[-1])
        assert judged("relaxed", sequence, tree, rows(model, tree)) == judged("match", sequence, tree, rows(model, tree))
        assert judged("typical", sequence, tree, rows(model, tree)).tokens == (int(rows(model, tree)[0].argmax()),)


# contrastive: a law of its own


@pytest.mark.parametrize(("alpha", "beta", "temperature"), [(0.1, 0.5, 1.0), (0.3, 1.0, 0.5), (0.05, 0.0, 2.0)])
@pytest.mark.parametrize("kind", [Proposal.IID, Proposal.WITHOUT_REPLACEMENT, Proposal.POINT])
def test_contrastive_keeps_its_own_law(kind: Proposal, alpha: float, beta: float, temperature: float) -> None:
    target, verifier = TableModel(4, sharpness=1.0, seed=1), build_verifier(f"contrastive:alpha={alpha},beta={beta}")
    amateur, params = target.disturbed(0.7), SamplingParams(temperature=temperature)
    for widths in [(1, 1), (2, 1)]:
        found = blocks(verifier, target, [Source(amateur, kind, widths, amateur=True)], params)
        assert error(found, contrastive_law(target, amateur, alpha, beta, temperature), 4, 3) < 1e-12
        assert found.accepted > 0.3


def test_contrastive_without_an_amateur_is_the_target() -> None:
    target, verifier = TableModel(4, seed=1), build_verifier("contrastive")
    sequence, tree = sequence_of(PLAIN), DraftTree.root(PROMPT[-1])
    row = rows(target, tree)[0]
    assert isinstance(verifier, Contrastive)
    assert np.allclose(verifier.target_probs(sequence, (), row, None), row.double().softmax(-1).numpy(), atol=1e-15)


def test_contrastive_is_greedy_over_its_scores() -> None:
    stream, differs = Random(2), 0
    for seed in range(100):
        target = TableModel(5, sharpness=1.0, seed=seed)
        amateur = target.disturbed(1.5)
        law, tree = contrastive_law(target, amateur), random_tree(5, stream)
        shown = {(node, "one"): row.softmax(-1) for node, row in enumerate(rows(amateur, tree))}
        tree = DraftTree(tree.tokens, tree.parents, tree.kind, shown, tree.sources)
        verdict = judged("contrastive", sequence_of(SamplingParams()), tree, rows(target, tree))
        node, text = 0, ()
        while True:
            text = (*text, int(law(text).argmax()))
            if (child := tree.children[node].get(text[-1])) is None:
                break
            node = child
        assert verdict.tokens == text
        differs += verdict.tokens != judged("match", sequence_of(SamplingParams()), tree, rows(target, tree)).tokens
    assert differs > 10


def test_contrastive_bans_before_it_contrasts() -> None:
    """If the only plausible token is banned by min_tokens, the next ones are plausible."""
    params = SamplingParams(temperature=1.0, min_tokens=5, stop_token_ids=frozenset({0}))
    shown = {(0, "one"): torch.tensor([0.1, 0.3, 0.6])}
    tree = DraftTree((2,), (-1,), Proposal.POINT, shown, ("",))
    for seed in range(20):
        assert judged("contrastive", sequence_of(params, seed), tree, torch.tensor([[9.0, 0.0, 0.0]])).tokens[0] in (1, 2)


def test_a_token_the_amateur_cannot_give_is_not_contrasted() -> None:
    """The amateur may lack the token, and then says nothing about it: a likelier token used to lose to it, ending an answer."""
    rule = build_verifier("contrastive")
    assert isinstance(rule, Contrastive)
    target, amateur = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.5, 0.5, 0.0])
    law = torch.tensor([0.6**1.5 / 0.5**0.5, 0.3**1.5 / 0.5**0.5, 0.1]).double()
    assert np.allclose(rule.target_probs(sequence_of(PLAIN), (), target.log(), amateur), law / law.sum(), atol=1e-6)
    tree = DraftTree((2,), (-1,), Proposal.POINT, {(0, "one"): amateur}, ("",))
    assert judged(rule, sequence_of(SamplingParams()), tree, target.log()[None]).tokens == (0,)


def test_a_token_impossible_for_target_and_amateur_has_probability_0_under_contrastive() -> None:
    rule = build_verifier("contrastive")
    assert isinstance(rule, Contrastive)
    target, amateur = torch.tensor([0.0, 2.0, -torch.inf]), torch.tensor([1.0, 0.0, 0.0])
    assert rule.target_probs(sequence_of(PLAIN), (), target, amateur)[2] == 0.0


def test_the_acceleration_of_speculative_contrastive_decoding() -> None:
    """Tokens per cycle and the probability of the amateur's extra forward, by enumeration, against the formula (METHODS 10.10).

    All contexts are equal, so acceptance is one number: the share of the contrastive law that the amateur covers.
    """
    target, amateur = TableModel(4, sharpness=0.8, seed=1), TableModel(4, sharpness=0.8, seed=2)
    for model in (target, amateur):
        model.table = model.table[:1].expand_as(model.table)
    law = contrastive_law(target, amateur)(())
    rate = float(np.minimum(law, recorded(amateur.row(PROMPT).softmax(-1))).sum())
    assert 0.2 < rate < 0.9
    for length in (1, 2, 3):
        found = blocks(build_verifier("contrastive"), target, [Source(amateur, Proposal.IID, (1,) * length, amateur=True)], PLAIN)
        cost = 0.1
        tokens, extra = found.accepted + 1, found.all_accepted
        formula = (1 - rate ** (length + 1)) / ((1 - rate) * (1 + cost * length + cost * rate**length))
        assert tokens / (1 + cost * length + cost * extra) == pytest.approx(formula, abs=1e-9)


def test_every_rule_says_whose_law_it_keeps() -> None:
    laws = {name: build_verifier(row.example).law for name, row in VERIFIERS.items()}
    assert laws.pop("contrastive") == "contrastive"
    assert set(laws.values()) == {"target"}


def test_every_rule_declares_its_exactness_by_kind() -> None:
    declared = {name: build_verifier(row.example).exactness for name, row in VERIFIERS.items()}
    assert {name for name, kept in declared.items() if not kept} == {"lenient", "typical", "relaxed", "contrastive"}
    assert set(declared.pop("match").values()) == {Exactness.TEXT}
    assert all(set(kept) == set(Proposal) and set(kept.values()) == {Exactness.LAW} for kept in declared.values() if kept)
    assert build_verifier("multi-round").prefers[0] is Proposal.WITHOUT_REPLACEMENT
    assert build_verifier("multi-round:replacement=with").prefers[0] is Proposal.IID


@pytest.mark.parametrize("error", [OSError("no C compiler\nat 1:0"), torch.OutOfMemoryError("full")])
def test_the_host_chooses_where_the_device_kernel_fails(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A failure is logged once, and the kernel is not tried again; out of memory may be temporary."""

    class Choices:
        def __init__(self, *_: object) -> None:
            tried.append(1)
            raise error

    kernels, tried = ModuleType("paceline.kernels.fused_sampling"), list[int]()
    kernels.__dict__["Choices"] = Choices
    model, tree = TableModel(4, seed=2), random_tree(4, Random(3))
    expected = judged("match", sequence_of(PLAIN), tree, rows(model, tree))
    monkeypatch.setitem(sys.modules, kernels.__name__, kernels)
    monkeypatch.setattr(device, "SERVED", {"cpu"})
    monkeypatch.setattr(device, "find_spec", lambda _: kernels)
    for _ in range(3):
        assert judged("match", sequence_of(PLAIN), tree, rows(model, tree)) == expected
    if isinstance(error, torch.OutOfMemoryError):
        assert len(tried) == 3
        assert not caplog.messages
    else:
        assert len(tried) == 1
        assert caplog.messages == ["the kernels for this device do not run: no C compiler"]


def test_a_block_does_not_ask_what_follows_a_token_that_cannot_pass() -> None:
    """The target's logits there may be NaN, and plain decoding would never compute them."""
    logits = torch.zeros(3, 4)
    logits[0, 2], logits[1:] = -torch.inf, torch.nan
    tree = DraftTree.chain(0, [2, 1], "drawn", Proposal.POINT)
    verdict = judged("block", sequence_of(PLAIN), tree, logits)
    assert verdict.path == ()
    assert verdict.tokens[0] != 2


@pytest.mark.parametrize("top", [1, 3])
@pytest.mark.parametrize("size", [20, 100, 1000])
def test_of_equal_scores_relaxed_takes_the_first(size: int, top: int) -> None:
    """With one it is the greedy choice."""
    worth = Relaxed(RelaxedOptions(top=top)).worth(np.full(size, 1 / size))
    assert np.flatnonzero(worth > -np.inf).tolist() == [*range(top)]


def test_only_draws_of_one_source_from_one_proposal_are_tested_together() -> None:
    probs = np.array([0.25, 0.75])
    one = Group((1,), (0,), Proposal.IID, probs, source="a")
    alike = (replace(one, nodes=(2,)), True), (replace(one, source="b"), False), (replace(one, proposal_probs=probs[::-1]), False)
    for other, together in alike:
        assert k_seq._alike(one, other) is together
