"""The drafter `model`: the meaning of its options, the kinds of draft that rules get, and what it learns."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from fakes import FakeTokenizer, TableModel
from foreign import save_pieced, save_shuffled
from paceline import LLM, SamplingParams
from paceline.budget import Budget
from paceline.cache.base import Branching
from paceline.compose import build_drafter, build_policy, build_verifier
from paceline.drafters.base import Surroundings
from paceline.drafters.merge import MergedDrafter
from paceline.drafters.model import ModelDrafter, Options, TextDrafter, build
from paceline.models.base import Scores
from paceline.models.load import load_model
from paceline.models.tokenizer import Tokenizer
from paceline.sequence import Sequence
from paceline.spec import SpecError, bind, parse
from paceline.step import Verdict
from paceline.tree import DraftTree, Proposal
from shared import CHECKPOINTS, WHY
from tiny import save_tiny

SAMPLED = SamplingParams(temperature=1.0)


def surroundings(
    prefers: tuple[Proposal, ...] = (Proposal.COUPLED, Proposal.POINT),
    amateur: bool = False,
    branching: Branching = Branching.TREE,
) -> Surroundings:
    tokenizer = FakeTokenizer.of_letters(7)
    draft = TableModel(7, seed=1, branching=branching)
    return Surroundings(
        TableModel(7), tokenizer, lambda path: (draft, tokenizer), prefers, amateur  # pyright: ignore[reportArgumentType, reportReturnType]
    )  # fmt: skip


def drafter_of(spec: str, around: Surroundings | None = None) -> ModelDrafter:
    made = build_drafter(spec, around or surroundings())
    assert isinstance(made, ModelDrafter)
    return made


def owners_of(count: int, params: SamplingParams = SAMPLED) -> list[Sequence]:
    return [Sequence(key, (key % 7, 1, 2), params, seed=key) for key in range(count)]


def committed(drafter: ModelDrafter, owner: Sequence, tree: DraftTree, tokens: tuple[int, ...]) -> None:
    owner.commit(tokens, ())
    drafter.observe([owner], [tree], [Verdict((), tokens)], Scores(torch.empty(0)))


@pytest.mark.parametrize(
    "rule", ["match", "rejection", "multi-round:replacement=without", "k-seq", "spechub", "block", "typical"]
)
@pytest.mark.parametrize("spec", ["model:x,width=2", "model:x,tree=static", "model:x,samples=3"])
def test_a_rule_gets_the_kind_it_wants(spec: str, rule: str) -> None:
    verifier = build_verifier(rule)
    drafter = drafter_of(spec, surroundings(verifier.prefers, verifier.amateur))
    assert drafter.kinds == {Proposal.POINT, verifier.prefers[0]}
    for params, kind in ((SAMPLED, verifier.prefers[0]), (SamplingParams(), Proposal.POINT)):
        trees = drafter.propose(owners_of(2, params), [drafter.budget] * 2)
        assert {tree.kind for tree in trees} == {kind}
        assert all(bool(tree.proposals) == kind.drawn for tree in trees)


def test_an_amateur_shows_its_distribution_at_every_node() -> None:
    rule = build_verifier("contrastive")
    drafter = drafter_of("model:x,width=2,depth=3", surroundings(rule.prefers, rule.amateur))
    assert drafter.amateur
    for params in (SAMPLED, SamplingParams()):
        for tree in drafter.propose(owners_of(3, params), [Budget(6, 3), Budget(3, 2), Budget(1, 1)]):
            assert {node for node, _ in tree.proposals} == set(range(len(tree)))


@pytest.mark.parametrize(
    ("spec", "nodes", "depth", "parents"),
    [
        ("model:x", 4, 4, (-1, 0, 1, 2, 3)),
        ("model:x,depth=2,width=3", 6, 2, (-1, 0, 0, 0, 1, 1, 1)),
        ("model:x,depth=2,samples=3", 6, 2, (-1, 0, 0, 0, 1, 2, 3)),
        ("model:x,tree=static,nodes=5,depth=9", 5, 9, (-1, 0, 1, 2, 0, 3)),
        ("model:x,tree=dynamic,nodes=6,depth=3", 6, 3, None),
    ],
)
def test_options_are_a_budget_and_a_shape(spec: str, nodes: int, depth: int, parents: tuple[int, ...] | None) -> None:
    drafter = drafter_of(spec)
    assert drafter.budget == Budget(nodes, depth)
    (tree,) = drafter.propose(owners_of(1), [drafter.budget])
    assert len(tree) - 1 == nodes
    assert parents is None or tree.parents == parents


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("model:x,nodes=3", "nodes needs tree=static or tree=dynamic"),
        ("model:x,tree=static,width=2", "width is that of a chain"),
        ("model:x,samples=2,width=2", "width is that of a chain"),
        ("model:x,samples=2,tree=dynamic", "leave tree out"),
        ("model:x,bridge=text,tree=static", "through text is a chain"),
        ("model:x,bridge=text,width=2", "through text is a chain"),
        ("model:x,tree=bush", "'chain', 'static' or 'dynamic'"),
        ("model:x,depth=0", "depth='0'"),
    ],
)
def test_options_that_do_not_go_together_are_refused_in_a_sentence(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as refusal:
        bind(parse(spec), Options)  # pyright: ignore[reportArgumentType]
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("kind", [kind for kind in Proposal if kind.drawn])
def test_a_dynamic_tree_is_refused_where_draws_are_wanted(kind: Proposal) -> None:
    with pytest.raises(SpecError, match="tree=static"):
        drafter_of("model:x,tree=dynamic", surroundings((kind, Proposal.POINT)))
    assert drafter_of("model:x,tree=dynamic", surroundings((Proposal.POINT,))).kinds == {Proposal.POINT}


@pytest.mark.parametrize("spec", ["model:x,tree=static", "model:x,tree=dynamic", "model:x,samples=2"])
def test_a_model_that_cannot_branch_drafts_only_chains(spec: str) -> None:
    with pytest.raises(SpecError, match="only chains"):
        drafter_of(spec, surroundings(branching=Branching.CHAIN))
    assert drafter_of("model:x,width=3", surroundings(branching=Branching.CHAIN)).budget.nodes == 12


@pytest.mark.parametrize("spec", ["model:x,width=2", "model:x,tree=static", "model:x,tree=dynamic", "model:x,samples=2"])
def test_drafts_depend_on_the_text_alone(spec: str) -> None:
    """Earlier drafts, acceptances, releases and forks have no effect. Learnt acceptance stays, so the shapes are fixed here."""
    drafter, fresh, draw = drafter_of(spec), drafter_of(spec), torch.Generator().manual_seed(0)
    owner = owners_of(1)[0]
    for turn in range(30):
        (tree,) = drafter.propose([owner], [drafter.budget])
        (anew,) = fresh.propose([owner], [drafter.budget])
        fresh.release(owner.key)
        assert (tree.tokens, tree.parents, tree.confidences) == (anew.tokens, anew.parents, anew.confidences)
        chain = tree.first_chain().tokens[1:]
        kept = chain[: int(torch.randint(len(chain) + 1, (), generator=draw))]
        owner.commit((*kept, turn % 7), ())
        if turn % 7 == 3:
            short = len(owner.tokens) - 3
            drafter.fork(owner.key, 98, short)
            assert drafter._cache.length(98) <= short
            drafter.release(98)
            drafter.fork(owner.key, 99, len(owner.tokens))
            assert drafter.propose([other := _twin(owner, 99)], [drafter.budget])[0].tokens[0] == other.root
            drafter.release(99)
        if turn % 5 == 4:
            drafter.truncate(owner.key, len(owner.tokens) - 4)
    drafter.release(owner.key)
    assert drafter.sequence_bytes == 0


@pytest.mark.parametrize("at", [0, 1])
def test_an_interrupted_draft_leaves_no_drafted_token_in_the_cache(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, owners = drafter_of("model:x,depth=4"), owners_of(2)
    budgets, remember, seen = [drafter.budget] * 2, drafter._remember, []

    def broken(sequence: Sequence, tree: DraftTree) -> None:
        seen.append(sequence)
        if len(seen) == at + 1:
            raise KeyboardInterrupt
        remember(sequence, tree)

    monkeypatch.setattr(drafter, "_remember", broken)
    with pytest.raises(KeyboardInterrupt):
        drafter.propose(owners, budgets)
    for owner in owners:
        owner.commit((0, 0, 0), ())
    wanted = drafter_of("model:x,depth=4").propose(owners, budgets)
    assert [tree.tokens for tree in drafter.propose(owners, budgets)] == [tree.tokens for tree in wanted]


def _twin(owner: Sequence, key: int) -> Sequence:
    twin = Sequence(key, owner.prompt, owner.params, owner.seed)
    twin.commit(tuple(owner.generated), ())
    return twin


def test_a_static_tree_takes_the_shape_that_is_best_for_what_came_true() -> None:
    """The second child is always the right one: the tree becomes wide."""
    drafter, owner = drafter_of("model:x,tree=static,nodes=6,depth=6"), owners_of(1, SamplingParams())[0]
    first = drafter.propose([owner], [drafter.budget])[0]
    assert len(first.siblings[0]) == 2
    for _ in range(400):
        (tree,) = drafter.propose([owner], [drafter.budget])
        path, node = [], 0
        while tree.siblings[node]:
            node = tree.siblings[node][min(1, len(tree.siblings[node]) - 1)]
            path.append(tree.tokens[node])
        other = next(token for token in range(7) if token not in tree.children[node])
        committed(drafter, owner, tree, (*path[:1], other))
    (tree,) = drafter.propose([owner], [drafter.budget])
    seconds = [len(siblings) > 1 for siblings in tree.siblings if siblings]
    assert all(seconds)
    assert not drafter._drafts or set(drafter._drafts) == {owner.key}


def test_two_models_are_two_sources_of_one_tree() -> None:
    around = surroundings((Proposal.IID, Proposal.POINT))
    merged = build_drafter("model:x,depth=2+model:y,depth=2", around)
    assert isinstance(merged, MergedDrafter)
    (tree,) = merged.propose(owners_of(1), [Budget(8, 4)])
    assert tree.kind is Proposal.IID
    assert set(tree.sources[1:]) == {"model", "model 2"}
    assert {name for _, name in tree.proposals} == {"model", "model 2"}
    assert len(tree) == 5


# other tokenizers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bridges")
    save_tiny(made / "target", 3)
    save_shuffled(made / "shuffled", 3, disturbed=0.03)
    save_pieced(made / "pieced", 4)
    return made


PROMPTS = [[1, 80, 120, 60], [1], [70, 2, 80, 81, 260, 261, 262 - 1], list(range(3, 43)), [1, 100, 101] * 6]
WAYS = {
    "greedy": SamplingParams(max_tokens=30),
    "sampled": SamplingParams(max_tokens=30, temperature=0.7, seed=5),
    "everything": SamplingParams(
        max_tokens=30, temperature=0.9, top_p=0.9, top_k=30, repetition_penalty=1.2, logit_bias={40: 1.0}, min_tokens=5, seed=2
    ),
}


@cache
def plain(folder: Path, way: str) -> list[list[int]]:
    return [one.token_ids for one in LLM(str(folder / "target"), "none", policy="fixed").generate(PROMPTS, WAYS[way])]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("batch", "room"), [(1, 65536), (3, 110), (8, 65536)])
@pytest.mark.parametrize("options", ["", ",width=2", ",tree=static,nodes=7", ",tree=dynamic,nodes=7", ",bridge=text"])
@pytest.mark.parametrize("kind", ["shuffled", "pieced"])
def test_a_draft_in_other_tokens_changes_no_text(folder: Path, kind: str, options: str, batch: int, room: int, way: str) -> None:
    """In batches, in chunks, and preempted."""
    draft = f'model:"{folder / kind}"{options}'
    llm = LLM(str(folder / "target"), draft, policy="fixed", batch=batch, prefill_chunk=7, cache_tokens=room)
    done = llm.generate(PROMPTS, WAYS[way])
    assert [one.token_ids for one in done] == plain(folder, way)
    if kind == "shuffled" and way == "greedy":
        steps = sum(one.speculation.steps for one in done)
        assert sum(len(one.token_ids) for one in done) / steps > 1.3, "the draft gives nearly the same text in other tokens"


def test_tokenizers_with_little_in_common_are_told_of_the_other_bridge(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    around = Surroundings(
        load_model(folder / "target"), Tokenizer(folder / "target"), lambda path: (load_model(path), Tokenizer(path))
    )
    monkeypatch.setattr("paceline.drafters.model._ENOUGH", 1.01)
    with pytest.raises(SpecError, match=r"shares \d+% of its tokens .* bridge=text"):
        build(Options(path=str(folder / "pieced")), around)
    assert build(Options(path=str(folder / "pieced"), bridge="text"), around).kinds == {Proposal.POINT}


def test_a_cascade_around_a_model_of_another_tokenizer_is_refused_without_bridge_text(folder: Path) -> None:
    with pytest.raises(SpecError, match=r"another tokenizer.* add bridge=text"):
        LLM(str(folder / "target"), f'ngram^model:"{folder / "shuffled"}"')


def test_the_inner_drafter_of_a_cascade_through_text_keeps_tenants_apart(folder: Path) -> None:
    around = Surroundings(
        load_model(folder / "target"), Tokenizer(folder / "target"), lambda path: (load_model(path), Tokenizer(path))
    )
    drafter = build_drafter(f'recycle^model:"{folder / "shuffled"}",bridge=text', around)
    for key, tenant in enumerate(("one", "other")):
        drafter.propose([Sequence(key, tuple(PROMPTS[4]), SamplingParams(), 0, tenant=tenant)], [drafter.budget])
    assert isinstance(drafter, TextDrafter)
    assert not drafter.info.ends_early, "a stopping rule counts target tokens, so the draft gets its full depth"
    inside = drafter._model._model._pair.drafter  # pyright: ignore[reportAttributeAccessIssue]
    assert set(inside._tables) == {"one", "other"}


@pytest.mark.skipif(not CHECKPOINTS.is_dir(), reason=WHY)
@pytest.mark.parametrize(("options", "bar"), [("", 1.25), (",bridge=text", 1.6)])
def test_a_real_draft_model_of_another_tokenizer_reaches_its_least_tau(options: str, bar: float) -> None:
    """A model of 4096 byte-level tokens drafts for one of 512 pieces."""
    prompts = ["Once upon a time", "Lily and Ben", "The little dog was very sad because"]
    llm = LLM(str(CHECKPOINTS / "stories260K"), "none", policy="fixed")
    for temperature in (0.0, 1.0):
        params = SamplingParams(max_tokens=60, temperature=temperature, seed=1)
        llm.use("none")
        plain = [one.token_ids for one in llm.generate(prompts, params)]
        llm.use(f"model:paceline-14m-draft{options}")
        done = llm.generate(prompts, params)
        assert [one.token_ids for one in done] == plain
        tau = sum(len(one.token_ids) for one in done) / sum(one.speculation.steps for one in done)
        assert tau > (bar if temperature == 0.0 else 1.05)


@pytest.mark.parametrize(
    ("policy", "spec", "levels"),
    [
        ("bass", "", 32),
        ("bass:limit=9", "", 9),
        ("bass", ",depth=3", 3),
        ("bass", ",tree=dynamic", 4),
        ("bass", ",samples=2", 4),
        ("confidence", "", 20),
        ("confidence", ",depth=5", 5),
        ("fixed", "", 4),
        ("adaptive", "", 4),
    ],
)
def test_a_policy_that_ends_drafts_says_how_deep_they_go_where_nobody_did(policy: str, spec: str, levels: int) -> None:
    """With the default depth such a policy would never reach the depths of its own options."""
    around = replace(surroundings(), deepest=build_policy(policy).deepest)
    assert drafter_of(f"model:somewhere{spec}", around).budget.depth == levels


def test_the_confidence_policy_does_not_deepen_a_model_that_drafts_whole_chains() -> None:
    model, tokenizer = TableModel(7, seed=1), FakeTokenizer.of_letters(7)
    model.drafts_whole = True
    for policy, levels in (("confidence", 4), ("bass", 32)):
        around = replace(surroundings(), load=lambda path: (model, tokenizer), deepest=build_policy(policy).deepest)
        assert drafter_of("model:somewhere", around).budget.depth == levels


def test_a_model_is_not_asked_about_a_text_with_a_token_that_it_lacks() -> None:
    """Its vocabulary ends at 7, the target's at 9."""
    drafter = ModelDrafter(TableModel(7, seed=1), 9, Options(path="x"))
    for token, drafts in ((6, True), (7, False)):
        (tree,) = drafter.propose([Sequence(token, (1, 2, token), SAMPLED, 0)], [drafter.budget])
        assert (len(tree) > 1) is drafts


def test_a_text_is_cut_without_taking_drafts_for_text() -> None:
    drafter = ModelDrafter(TableModel(7, seed=1), 7, Options(path="x", depth=4))
    drafter.propose([Sequence(0, (1, 2, 3, 4, 5), SAMPLED, 7)], [drafter.budget])
    drafter.truncate(0, 7)
    assert drafter._cache.length(0) <= 5
