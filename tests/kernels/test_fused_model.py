"""Llama-like models in GPU kernels, under Triton's interpreter: every family equals transformers, and a row has the same result
however it is fed and in any batch."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("triton", reason="the GPU kernels are written in Triton, which is not installed: pip install triton==3.7.1")

from models.test_families import largest_error
from models.test_native import CASES
from native import checkpoint
from paceline import SamplingParams
from paceline.budget import Budget
from paceline.cache import paged as pages
from paceline.growth import Growth
from paceline.models import fused, paged
from paceline.models.base import KV_CACHES, ModelError
from paceline.models.checkpoint import inspected
from paceline.models.context import context_length
from paceline.models.forms import Unsuited
from paceline.models.fused import FusedModel, fused_model
from paceline.models.load import _configuration
from paceline.models.taps import decoder_layers, tapped
from paceline.sequence import Sequence
from paceline.step import Step, Verdict
from paceline.tree import DraftTree
from stepping import alone, missing, score, sequence

pytestmark = pytest.mark.skipif(
    os.environ["TRITON_INTERPRET"] == "0", reason="these compare tiny float32 models on a processor; benchmarks/gpu.py has bits"
)
TOLERANCE = 1e-4


def backend(folder: Path, weights: str | None = None, kv_cache: str | None = None) -> FusedModel:
    found = inspected(folder)
    config = _configuration(found)
    return fused_model(found, config, context_length(config), torch.device("cpu"), weights, kv_cache)


WIDE = {"olmo2", "olmo3"}
"""Families that normalise the queries of all heads together: a program that handles only some heads cannot do that."""
MIXTURES = {"mixtral", "qwen3_moe", "olmoe"}
"""Families of mixtures of experts, for which there are no kernels."""


@pytest.mark.parametrize("case", [case for case, (kind, _) in CASES.items() if kind not in WIDE | MIXTURES])
def test_a_family_computes_what_transformers_computes(tmp_path: Path, case: str) -> None:
    """Prompts in chunks, trees, a commit that moves keys, and the next step of three sequences at once."""
    kind, over = CASES[case]
    folder, reference = checkpoint(tmp_path, kind, **over)
    assert largest_error(backend(folder), reference) < TOLERANCE


@pytest.mark.parametrize("kind", sorted(MIXTURES))
def test_mixtures_of_experts_are_refused(tmp_path: Path, kind: str) -> None:
    checkpoint(tmp_path, kind)
    with pytest.raises(Unsuited, match="experts"):
        backend(tmp_path)


@pytest.mark.parametrize("kind", sorted(WIDE))
def test_norms_of_all_heads_together_are_refused(tmp_path: Path, kind: str) -> None:
    folder, _ = checkpoint(tmp_path, kind)
    with pytest.raises(Unsuited, match="all heads of its queries"):
        backend(folder)


def drafting(model: FusedModel, budget: Budget, **params: Any) -> list[DraftTree]:
    """Drafts of two texts that are extended by part of the draft and another token."""
    cache, found = model.new_cache(), []
    texts = (5, 7), (6, 7, 9)
    owners = [Sequence(key, text, SamplingParams(**params), seed=3) for key, text in enumerate(texts)]
    for turn in range(4):
        budgets = [budget, replace(budget, depth=budget.depth - turn)]
        trees = model.extend(owners, budgets, cache, growth=Growth(shape=(-1, 0, 1, 2, 3)), vocab_size=90, source="draft")
        found += trees
        for owner, tree in zip(owners, trees, strict=True):
            held = len(owner.tokens)
            assert cache.length(owner.key) == (held + max(len(tree) - 2, 0) if len(tree) > 1 else cache.length(owner.key))
            true = tree.tokens[1 : 1 + turn]
            owner.commit((*true, 20 + turn), ())
            cache.truncate(owner.key, held + len(true))
    return found


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("budget", [Budget(4, 4), Budget(3, 9), Budget(4, 4, floor=0.05)])
def test_a_chain_drafted_in_one_call_is_the_one_drafted_level_by_level(
    tmp_path: Path, budget: Budget, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = checkpoint(tmp_path, "llama")
    model, waits = backend(folder), []
    whole = drafting(model, budget, temperature=temperature)
    monkeypatch.setattr(fused, "is_fused", lambda *_: waits.append(1))
    for one, other in zip(whole, drafting(model, budget, temperature=temperature), strict=True):
        assert (one.tokens, one.parents, one.sources) == (other.tokens, other.parents, other.sources)
        assert one.confidences == pytest.approx(other.confidences, rel=1e-4)
        assert len(one) == 1 or one.kind is other.kind
    assert waits
    assert max(map(len, whole)) > 2


@pytest.mark.parametrize("kind", KV_CACHES)
def test_narrow_keys_and_values_are_near_the_models_own(tmp_path: Path, kind: str) -> None:
    folder, reference = checkpoint(tmp_path, "qwen2")
    model, owner = backend(folder, kv_cache=kind), sequence(0, range(5, 60))
    got = score(model, cache := model.new_cache(), [missing(cache, owner, DraftTree.root(owner.root))]).logits[-1]
    wanted = alone(reference, owner.tokens)[-1]
    assert 0.0 < (got - wanted).std() / wanted.std() < 0.1


def test_taps_are_the_hidden_states_of_transformers(tmp_path: Path) -> None:
    folder, reference = checkpoint(tmp_path, "llama")
    model, owner = backend(folder), sequence(0, range(5, 12))
    taps = range(reference.config.num_hidden_layers + 1)
    found = score(model, cache := model.new_cache(), [missing(cache, owner, DraftTree.root(owner.root))], taps).taps
    with torch.inference_mode(), tapped(decoder_layers(reference), taps) as wanted:
        reference(input_ids=torch.tensor([owner.tokens]))
    for layer in taps:
        assert (found[layer][-1] - wanted[layer][0, -1]).abs().max() < TOLERANCE
    with pytest.raises(ModelError, match="cannot be tapped"):
        score(model, cache, [missing(cache, owner, DraftTree.root(owner.root))], [99])


def test_the_fused_backend_refuses_other_families_int8_weights_and_unknown_tokens(tmp_path: Path) -> None:
    folder, _ = checkpoint(tmp_path / "other", "gpt2")
    with pytest.raises(Unsuited, match="'gpt2' is not of the Llama form"):
        backend(folder)
    folder, _ = checkpoint(tmp_path / "own", "llama")
    with pytest.raises(Unsuited, match="for processors only"):
        backend(folder, weights="int8")
    model = backend(folder)
    with pytest.raises(ValueError, match="outside of the vocabulary"):
        score(model, cache := model.new_cache(), [missing(cache, sequence(0, [10**6]))])


def test_a_model_of_a_short_context_is_tried_within_it_and_refuses_longer_texts(tmp_path: Path) -> None:
    folder, _ = checkpoint(tmp_path, "llama", max_position_embeddings=32)
    model = backend(folder)
    assert all(fused._tried(model, min(rows, model.context_length)).isfinite().all() for rows in (3, 33))
    owner = sequence(0, range(200))
    with pytest.raises(ValueError, match="past the context of 32 tokens"):
        score(model, cache := model.new_cache(), [missing(cache, owner)])


def test_a_long_prompt_attended_to_by_taller_tiles_has_the_same_logits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = checkpoint(tmp_path, "llama")
    model, owner, found, heights = backend(folder, "fp16"), sequence(0, range(5, 60)), [], []
    # otherwise so few rows would use a recording
    model._recordable = False
    for most in (fused.RECORDED_ROWS, 16):
        monkeypatch.setattr(fused, "RECORDED_ROWS", most)
        cache = model.new_cache()
        feeds = [missing(cache, owner, DraftTree.root(owner.root)), missing(cache, sequence(1, range(3)))]
        step = Step.of(feeds)
        cache.stage(step)
        heights.append(model._forward(step, cache).tiling.rows)
        found.append(score(model, model.new_cache(), feeds).logits)
    assert heights == [32, 64]
    assert torch.equal(*found)
    drafts = [missing(cache, sequence(key, [key]), DraftTree.of_paths(key, [(1, 2), (3, 4)], "draft", 9)) for key in range(2, 7)]
    cache.stage(step := Step.of(drafts))
    assert model._forward(step, cache).tiling.rows == 32


def test_a_model_too_large_for_the_device_raises_model_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder, _ = checkpoint(tmp_path, "llama")

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

    monkeypatch.setattr(fused, "DeviceWeights", full)
    with pytest.raises(ModelError, match=f"^the device has too little memory for '{tmp_path.name}'$"):
        backend(folder)
    assert not caplog.messages


def test_narrow_keys_that_spoil_the_logits_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = checkpoint(tmp_path, "qwen2")
    assert 0.0 < fused._off(backend(folder, kv_cache="int8"), backend(folder)) < fused.ROUGH
    for off in (0.7, float("nan")):
        monkeypatch.setattr(fused, "_off", lambda *_, off=off: off)
        assert backend(folder).kv_cache is None
        with pytest.raises(ModelError, match="cannot keep its keys and values as int8 here: its logits are off by"):
            backend(folder, kv_cache="int8")


def test_norms_in_float32_leave_a_model_in_its_matrices_precision(tmp_path: Path) -> None:
    folder, _ = checkpoint(tmp_path, "llama")
    tensors = {
        name: tensor if "norm" in name else tensor.half() for name, tensor in load_file(folder / "model.safetensors").items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert backend(folder).weights == "fp16"


def test_a_size_of_a_step_that_is_rare_is_served_by_a_larger_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged, "_RARE", 2)
    folder, _ = checkpoint(tmp_path, "llama")
    (model, fresh), owner = (backend(folder), backend(folder)), sequence(0, range(5, 12))
    fresh._recordable = False
    cache, apart = model.new_cache(), fresh.new_cache()
    recorded, wanted = [], dict[int, torch.Tensor]()
    for nodes in (40, 20, 3, 20, 20, 20):
        tree = DraftTree((owner.root, *range(20, 20 + nodes)), (-1, *[node // 2 for node in range(nodes)]))
        found = score(model, cache, [missing(cache, owner, tree)]).logits
        if nodes not in wanted:
            wanted[nodes] = score(fresh, apart, [missing(apart, owner, tree)]).logits
        assert (found - wanted[nodes]).abs().max() < TOLERANCE
        recorded.append(sorted(extent.rows for _, extent, _ in model._recordings[cache].held))
    assert recorded == [[64], [64], [16, 64], [16, 64], [16, 32, 64], [16, 32, 64]], "a four times larger one is not used"


def test_drafts_of_fewer_sequences_are_served_by_a_larger_recording(tmp_path: Path) -> None:
    folder, _ = checkpoint(tmp_path, "llama")
    drafts = []
    for counts in ((10, 3), (3,)):
        model = backend(folder)
        cache, trees = model.new_cache(), list[DraftTree]()
        for count in counts:
            owners = [Sequence(count * 100 + key, (5, 7 + key), SamplingParams(), seed=3) for key in range(count)]
            trees = model.extend(
                owners, [Budget(3, 3)] * count, cache, growth=Growth(shape=(-1, 0, 1, 2)), vocab_size=90, source="draft"
            )
        drafts.append([(tree.tokens, tree.confidences) for tree in trees])
        assert len(model._recordings[cache].held) == 1
    for (tokens, confidences), (others, shares) in zip(*drafts, strict=True):
        assert tokens == others
        assert confidences == pytest.approx(shares, rel=1e-4)


# the interpreter also converts values that a mask keeps from being stored
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_a_drafted_token_that_is_no_number_harms_none_before_it(tmp_path: Path) -> None:
    """The keys of one block are weighted together, and zero times NaN is NaN."""
    model = backend(checkpoint(tmp_path, "llama")[0])
    model._held.embedding[9] = torch.nan
    found = []
    for tokens in ([], [9]):
        owner, cache = sequence(0, [5, 7, 3]), model.new_cache()
        found.append(score(model, cache, [missing(cache, owner, DraftTree.chain(3, tokens, "one"))]).logits[0])
    assert torch.equal(*found)
    assert found[0].isfinite().all()


def test_keys_that_outgrew_their_values_are_attended_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory ran out between growing the store of keys and that of values."""
    folder, reference = checkpoint(tmp_path, "llama", max_position_embeddings=256)
    model, owner = backend(folder), sequence(0, [at % 90 for at in range(2 * paged.PAGE + 20)])
    cache, enlarged, counts = pages.PagedCache(2, paged.PAGE, grows=True), pages._enlarged, list[int]()
    score(model, cache, [missing(cache, owner, upto=2 * paged.PAGE)])
    cache.commit([Verdict()])

    def ends_at_the_second(store: torch.Tensor, count: int) -> torch.Tensor:
        counts.append(count)
        if len(counts) == 2:
            raise torch.OutOfMemoryError
        return enlarged(store, count)

    monkeypatch.setattr(pages, "_enlarged", ends_at_the_second)
    got = score(model, cache, [missing(cache, owner, DraftTree.root(owner.root))]).logits[-1]
    assert len({len(store) for store in cache._layers[0].stores}) == 2, counts
    assert (got - alone(reference, owner.tokens)[-1]).abs().max() < TOLERANCE
