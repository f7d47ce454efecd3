"""Probes in a step: they see the nodes on their path, no other row sees them, and no cache keeps them.

Tested on every backend, with the windows that Lookahead really sends; to a model a probe is a node like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence as Many
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fakes import DenseTableCache, TableModel
from native import FORMATS, THREADS, checkpoint, native, threads
from paceline.cache.base import Branching
from paceline.cache.paged import PagedCache
from paceline.drafters.lookahead import LookaheadDrafter, Options
from paceline.kernels.step_tables import StepTables
from paceline.kernels.work_items import Division
from paceline.models.base import LanguageModel
from paceline.models.stateful import StatefulModel
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.step import Step, Verdict
from paceline.tree import DraftTree
from paceline.union import union
from stepping import accept, missing, score, sequence
from tiny import VOCABULARY, tiny_hub, tiny_model

HUB_TOLERANCE = 1e-5
"""Relative to the largest logit: the library's kernels sum in another order for another number of rows."""


def candidates_of(root: int) -> DraftTree:
    """Five drafted nodes, three of them below others; the slots of the path to the last one are not adjacent."""
    return DraftTree((root, 11, 12, 13, 14, 15), (-1, 0, 0, 1, 1, 2))


PATH = (2, 5)


def window(owner: Sequence, options: Options) -> DraftTree:
    """The window of Lookahead without guesses, filled with made-up choices until all columns are used."""
    drafter = LookaheadDrafter(options)
    tree = drafter.propose([owner], [drafter.budget])[0]
    state = drafter._states[owner.key]
    while len(state.columns) > options.window:
        drafter._move(state, [(7 * number + len(state.columns)) % VOCABULARY for number in range(len(state.columns))])
        tree = drafter.propose([owner], [drafter.budget])[0]
    return tree.only(range(tree.candidates, len(tree)))


def with_probes(owner: Sequence, options: Options) -> DraftTree:
    tree = union(candidates_of(owner.root), window(owner, options))
    assert tree.probes == options.window * (options.ngram - 1) - 1
    return tree


def owners() -> list[Sequence]:
    noise = torch.Generator().manual_seed(3)
    return [
        sequence(key, torch.randint(16, VOCABULARY, (size,), generator=noise).tolist()) for key, size in enumerate((11, 3, 40))
    ]


def differences(model: LanguageModel, options: Options) -> list[float]:
    """Largest differences caused by probes: in candidates' logits, between probes and a plain forward of their path, and in the
    step after the commit. Each relative to the largest logit."""
    texts = owners()
    bare, trees = [candidates_of(one.root) for one in texts], [with_probes(one, options) for one in texts]
    caches = model.new_cache(), model.new_cache()
    scored = []
    for cache, forest in zip(caches, (bare, trees), strict=True):
        score(model, cache, [missing(cache, one, upto=-1) for one in texts])
        cache.commit([Verdict()] * len(texts))
        feeds = [missing(cache, one, tree) for one, tree in zip(texts, forest, strict=True)]
        scored.append(score(model, cache, feeds).of(forest))
    moved = [rows[: len(alone)] - alone for alone, rows in zip(*scored, strict=True)]
    probes = [
        rows[node] - plain(model, one, [tree.tokens[step] for step in tree.path(node)])
        for one, tree, rows in zip(texts, trees, scored[1], strict=True)
        for node in range(len(tree))
    ]
    for cache, forest in zip(caches, (bare, trees), strict=True):
        cache.commit([accept(tree, PATH, 21) for tree in forest])
    for one, tree in zip(texts, bare, strict=True):
        one.commit(accept(tree, PATH, 21).tokens, ())
        assert caches[0].length(one.key) == caches[1].length(one.key) == len(one.tokens) - 1
    after = [score(model, cache, [missing(cache, one, candidates_of(one.root)) for one in texts]).logits for cache in caches]
    largest = float(scored[0][0].abs().max())
    return [float(torch.cat(rows).abs().max()) / largest for rows in (moved, [torch.stack(probes)], [after[0] - after[1]])]


def plain(model: LanguageModel, owner: Sequence, path: Many[int]) -> torch.Tensor:
    """float32 [V]: the logits after the committed text and `path`, fed at once."""
    text = (*owner.tokens, *path)
    return model.logits_after([(Sequence(9, text, SamplingParams(), seed=0), text)], model.new_cache())[0]


WINDOWS = [Options(), Options(window=3, ngram=4), Options(window=1, ngram=3)]


@pytest.mark.parametrize("options", WINDOWS, ids=str)
@pytest.mark.parametrize("weights", FORMATS)
def test_probes_change_no_bit_on_the_native_backend(tmp_path: Path, weights: str, options: Options) -> None:
    model = native(checkpoint(tmp_path, vocab_size=VOCABULARY)[0], weights)
    for count in THREADS:
        with threads(count):
            assert differences(model, options) == [0.0, 0.0, 0.0]


BACKENDS: dict[str, Callable[[], LanguageModel]] = {
    "routed": lambda: tiny_hub("llama"),
    "routed, sliding": lambda: tiny_hub("gemma2"),
    "routed, learned positions": lambda: tiny_hub("gpt2"),
    "additive mask": lambda: StatefulModel(tiny_model("falcon"), "falcon", 128, Branching.TREE),
}


@pytest.mark.parametrize("options", WINDOWS, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_probes_change_only_rounding_on_the_transformers_backend(backend: str, options: Options) -> None:
    assert max(differences(BACKENDS[backend](), options)) < HUB_TOLERANCE


def test_probes_change_no_bit_on_the_table_model_of_the_tests() -> None:
    for model in (TableModel(VOCABULARY, memory=None), TableModel(VOCABULARY, memory=4, cache=DenseTableCache)):
        for options in WINDOWS:
            assert differences(model, options) == [0.0, 0.0, 0.0]


def test_a_step_and_its_tables_do_not_tell_a_probe_from_a_candidate() -> None:
    """So results about trees, also on devices, hold for probes."""
    texts, cache = owners(), PagedCache(40, 4)
    trees = [with_probes(one, WINDOWS[1]) for one in texts]
    steps = [
        Step.of([missing(cache, one, tree) for one, tree in zip(texts, forest, strict=True)])
        for forest in (trees, [replace(tree, probes=0) for tree in trees])
    ]
    cache.stage(steps[0])
    blocks = [cache.blocks(one.key) for one in texts]
    division = Division(rows_per_tile=8, kv_heads=1, near=16, near_splits=3, split=32, few=128)
    tables = [StepTables.of(step, blocks, 4, division, torch.device("cpu")) for step in steps]
    assert steps[0].wanted_rows == steps[1].wanted_rows
    assert tables[0].extent == tables[1].extent
    for name in ("positions", "items", "blocks", "tail", "destinations"):
        assert torch.equal(getattr(tables[0], name), getattr(tables[1], name))


def test_a_model_that_cannot_branch_is_sent_no_probes() -> None:
    assert with_probes(owners()[0], Options()).first_chain().probes == 0
