"""Token recycling: the table against the rows of logits, the tree against the table, and the separation of tenants."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from fakes import TableModel
from paceline import LLM
from paceline.bench.builtin import built_in
from paceline.budget import Budget
from paceline.drafters.recycle import Options, RecycleDrafter, _acceptance
from paceline.kernels.successors.successors import Successors
from paceline.models.base import Scores
from paceline.models.embedded import embedded_models
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.tree import DraftTree
from scored import GREEDY, SAMPLED, Run, request

settings.register_profile("still", derandomize=True, deadline=None, max_examples=150, database=None)
settings.load_profile("still")

VOCABULARY = 30


def noise(rows: int, seed: int, size: int = VOCABULARY) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed))


def owner_of(tenant: str, root: int) -> Sequence:
    return Sequence(0, (root,), GREEDY, 0, tenant=tenant)


def teach(drafter: RecycleDrafter, tenant: str, tree: DraftTree, logits: torch.Tensor) -> None:
    teach_all(drafter, [owner_of(tenant, tree.tokens[0])], [tree], logits)


def teach_all(drafter: RecycleDrafter, owners: list[Sequence], trees: list[DraftTree], logits: torch.Tensor) -> None:
    """A step in which the drafter is asked for a draft, but the target verifies other trees."""
    drafter.propose(owners, [Budget(0, 0)] * len(owners))
    drafter.observe(owners, trees, [Verdict((), (1,))] * len(owners), Scores(logits))


def words(tree: DraftTree) -> set[tuple[int, ...]]:
    return {tuple(tree.tokens[step] for step in tree.path(node)) for node in range(1, len(tree))}


def likeliest(model: dict[int, list[int]], root: int, budget: Budget) -> list[float]:
    """The definition: likelihoods by rank of the likeliest paths through the successors."""
    ranks = _acceptance(8)
    waiting, taken = [(1.0, (root,))], []
    while waiting and len(taken) <= budget.nodes:
        waiting.sort(key=lambda one: one[0])
        likely, path = waiting.pop()
        taken.append(likely)
        if len(path) <= budget.depth:
            waiting += [(likely * ranks[rank], (*path, token)) for rank, token in enumerate(model[path[-1]])]
    return taken[1:]


@given(st.integers(0, 99), st.integers(0, 20), st.integers(0, 6))
def test_the_tree_holds_the_likeliest_successors_that_the_rows_seen_last_gave(seed: int, nodes: int, depth: int) -> None:
    drafter = RecycleDrafter(Options(nodes=20, depth=6), VOCABULARY)
    successors: dict[int, list[int]] = {}
    draw = torch.Generator().manual_seed(seed)
    for at in range(12):
        # some tokens occur more than once in a tree, some as probes
        chain = torch.randint(VOCABULARY, (int(torch.randint(1, 9, (), generator=draw)),), generator=draw).tolist()
        tree = DraftTree((1, *chain), tuple(range(-1, len(chain))), probes=len(chain) // 2)
        logits = noise(len(tree), 100 * seed + at)
        teach(drafter, "", tree, logits)
        successors |= {token: row.topk(8).indices.tolist() for token, row in zip(tree.tokens, logits, strict=True)}
    tree = drafter.propose([owner_of("", 1)], [Budget(nodes, depth)])[0]
    assert len(tree) - 1 <= nodes
    assert max(tree.depth) <= depth
    assert len(tree) > 1 or min(nodes, depth) == 0
    for node, below in enumerate(tree.siblings):
        assert [tree.tokens[child] for child in below] == successors.get(tree.tokens[node], [])[: len(below)]


def full(drafter: RecycleDrafter, seed: int = 0) -> dict[int, list[int]]:
    """Teaches successors of all tokens; returns them."""
    logits = noise(VOCABULARY, seed)
    teach(drafter, "", DraftTree(tuple(range(VOCABULARY)), (-1, *[0] * (VOCABULARY - 1))), logits)
    return {token: row.topk(8).indices.tolist() for token, row in enumerate(logits)}


@given(st.integers(1, 24), st.integers(1, 7), st.integers(0, 29))
def test_a_tree_from_a_full_table_is_the_likeliest_of_its_size(nodes: int, depth: int, root: int) -> None:
    drafter = RecycleDrafter(Options(nodes=nodes, depth=depth), VOCABULARY)
    successors = full(drafter)
    tree = drafter.propose([owner_of("", root)], [drafter.budget])[0]
    ranks, worth = _acceptance(8), [1.0]
    for node in range(1, len(tree)):
        parent = tree.parents[node]
        worth.append(worth[parent] * ranks[successors[tree.tokens[parent]].index(tree.tokens[node])])
    assert sorted(worth[1:]) == pytest.approx(sorted(likeliest(successors, root, drafter.budget)))


def test_of_rows_for_one_token_the_last_counts_and_confidences_follow_its_order() -> None:
    drafter = RecycleDrafter(Options(nodes=3, depth=1), VOCABULARY)
    first, last = torch.zeros(2, VOCABULARY).unbind()
    first[5], last[6], last[7] = 9.0, 9.0, 8.0
    teach(drafter, "", DraftTree((4, 4), (-1, 0)), torch.stack([first, last]))
    tree = drafter.propose([owner_of("", 4)], [drafter.budget])[0]
    assert tree.tokens[:3] == (4, 6, 7)
    assert 1.0 > tree.confidences[1] > tree.confidences[2] > tree.confidences[3] > 0.0


def test_nothing_is_drafted_behind_a_token_never_seen() -> None:
    drafter = RecycleDrafter(Options(), VOCABULARY)
    assert len(drafter.propose([owner_of("", 4)], [drafter.budget])[0]) == 1
    teach(drafter, "", DraftTree.root(3), noise(1, 0))
    assert len(drafter.propose([owner_of("", 4)], [drafter.budget])[0]) == 1
    assert max(drafter.propose([owner_of("", 3)], [drafter.budget])[0].depth) == 1


def test_without_drafts_asked_for_one_step_in_four_is_recorded() -> None:
    drafter, owner = RecycleDrafter(Options(), VOCABULARY), owner_of("", 3)
    drafter.propose([owner], [drafter.budget])
    for token in range(10, 22):
        drafter.observe([owner], [DraftTree.root(token)], [Verdict((), (1,))], Scores(noise(1, 0)))
    known = [len(drafter.propose([owner_of("", token)], [Budget(1, 1)])[0]) > 1 for token in range(10, 22)]
    assert [token for token, is_known in enumerate(known, 10) if is_known] == [10, 14, 18]


def test_rows_that_hold_no_numbers_teach_nothing() -> None:
    drafter = RecycleDrafter(Options(), VOCABULARY)
    logits = noise(3, 0)
    logits[1, 7], logits[2] = torch.nan, -torch.inf
    teach(drafter, "", DraftTree((1, 2, 3), (-1, 0, 1)), logits)
    assert [len(drafter.propose([owner_of("", token)], [Budget(8, 1)])[0]) > 1 for token in (1, 2, 3)] == [True, False, False]


def test_tenants_do_not_see_each_other() -> None:
    drafter = RecycleDrafter(Options(), VOCABULARY)
    teach_all(drafter, [owner_of("one", 3), owner_of("other", 3)], [DraftTree.root(3)] * 2, noise(2, 1))
    assert words(drafter.propose([owner_of("one", 3)], [Budget(1, 1)])[0]) == {(int(noise(2, 1)[0].argmax()),)}
    assert words(drafter.propose([owner_of("other", 3)], [Budget(1, 1)])[0]) == {(int(noise(2, 1)[1].argmax()),)}
    assert len(drafter.propose([owner_of("third", 3)], [Budget(1, 1)])[0]) == 1
    drafter.forget()
    assert not drafter._tables


def test_what_is_held_is_bounded_and_nobody_in_flight_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.drafters.recycle._MOST_TOKENS", 1024)
    drafter = RecycleDrafter(Options(), VOCABULARY)

    def knows(tenant: str) -> bool:
        return len(drafter.propose([owner_of(tenant, 3)], [Budget(1, 1)])[0]) > 1

    for number in range(20):
        teach(drafter, "one", DraftTree.root(3), noise(1, 0))
        teach(drafter, f"more {number}", DraftTree.root(3), noise(1, 0))
    assert [knows(tenant) for tenant in ("one", "more 19", "more 17", "more 16")] == [True, True, True, False]
    many = [f"at once {number}" for number in range(12)]
    for _ in range(2):
        teach_all(drafter, [owner_of(tenant, 3) for tenant in many], [DraftTree.root(3)] * 12, noise(12, 1))
    assert all(map(knows, many))
    assert not knows("one")


def test_a_table_grows_with_the_tokens_that_were_seen() -> None:
    size = 3000
    drafter = RecycleDrafter(Options(), size)
    logits = noise(size, 0, 40)
    for first in range(0, size, 500):
        part = tuple(range(first, first + 500))
        wide = torch.full((500, size), -9.0)
        wide[:, :40] = logits[first : first + 500]
        teach(drafter, "", DraftTree(part, (-1, *[0] * 499)), wide)
    for token in (0, 255, 256, 1700, size - 1):
        tree = drafter.propose([owner_of("", token)], [Budget(1, 1)])[0]
        assert tree.tokens[1] == int(logits[token].argmax())
    assert len(drafter._tables[""].successors.tokens) < 2 * size


def test_a_table_that_could_not_grow_names_no_row_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Successors, rows: int) -> None:
        raise MemoryError

    drafter = RecycleDrafter(Options(), VOCABULARY)
    with monkeypatch.context() as patched:
        patched.setattr(Successors, "grow", fails)
        with pytest.raises(MemoryError):
            teach(drafter, "", DraftTree.root(3), noise(1, 0))
    assert len(drafter.propose([owner_of("", 3)], [Budget(4, 4)])[0]) == 1


@pytest.mark.parametrize("size", [8, 10, VOCABULARY, 4096, 32775])
@pytest.mark.parametrize("rows", [1, 9, 20])
def test_the_largest_are_found_in_order_however_many_rows_there_are(rows: int, size: int) -> None:
    logits, successors = noise(rows, 2, size), Successors(rows + 1, 8)
    order = logits.argsort(descending=True)[:, :8]
    # also for rows of a wider matrix
    for matrix in (logits, torch.nn.functional.pad(logits, (0, 3), value=9.0)[:, :size]):
        successors.tokens[:] = 0
        successors.note(matrix, range(rows, 0, -1))
        assert np.array_equal(successors.tokens[:0:-1], order.numpy())
        np.testing.assert_allclose(successors.shares[:0:-1], logits.gather(1, order).softmax(1).numpy(), rtol=1e-5)
    with pytest.raises(ValueError, match="2 tokens and"):
        successors.note(torch.cat([logits] * 3), [1, 2])


def test_successors_read_from_a_device_equal_those_read_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, rows = noise(6, 2, 50), [3, 0, 2, 3, 1, 0]
    logits[4, 7], logits[1] = torch.nan, -torch.inf
    one, other = Successors(4, 8), Successors(4, 8)
    one.note(logits, rows)
    other._note_from_device(logits, np.array(rows))
    assert np.array_equal(one.tokens, other.tokens)
    np.testing.assert_allclose(one.shares, other.shares, rtol=1e-6)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_text_is_that_of_plain_decoding_and_drafts_come_true(params: SamplingParams) -> None:
    model = TableModel(VOCABULARY, memory=1)
    run, plain = (Run(RecycleDrafter(Options(), VOCABULARY), model, request([1, 2, 3], params)) for _ in range(2))
    accepted = sum(run.step().verdict.accepted for _ in range(60))
    while len(plain.owner.tokens) < len(run.owner.tokens):
        plain.step(Budget(0, 0))
    assert plain.owner.tokens[: len(run.owner.tokens)] == run.owner.tokens
    assert accepted > 20


@pytest.mark.skipif(not embedded_models(), reason="the embedded weights are not part of this checkout")
def test_recycling_emits_over_1_2_tokens_per_step_on_the_embedded_model() -> None:
    llm = LLM(draft="recycle")
    prompts = [prompt for task in ("e2e", "sql") for prompt in built_in(task)[0]]
    done = [llm.generate(prompt, SamplingParams(max_tokens=96))[0].speculation for prompt in prompts]
    assert sum(one.emitted_tokens for one in done) / sum(one.steps for one in done) > 1.2


def below_the_root(tree: DraftTree) -> set[int]:
    """Tokens of the root's children that have children."""
    return {tree.tokens[tree.parents[node]] for node in range(1, len(tree)) if tree.depth[node] == 2}


def test_the_shape_follows_what_comes_true() -> None:
    """If the second successor is always right, never the first, the tree becomes wide and grows below the second."""
    drafter = RecycleDrafter(Options(nodes=6, depth=6), VOCABULARY)
    order = -torch.arange(VOCABULARY, dtype=torch.float32)
    owner = owner_of("", 3)

    def step(emitted: int) -> DraftTree:
        tree = drafter.propose([owner], [drafter.budget])[0]
        # the following token ids are the successors, the next one the likeliest
        logits = torch.stack([order.roll(token + 1) for token in tree.tokens])
        drafter.observe([owner], [tree], [Verdict((), (emitted,))], Scores(logits))
        return tree

    for _ in range(9):
        before = step(4)
    for _ in range(600):
        after = step(5)
    assert below_the_root(before) == {4}
    assert below_the_root(after) == {5}, "nodes below the first successor would need it to be right"
    drafter.forget()
    for _ in range(9):
        begun = step(4)
    assert begun == before
