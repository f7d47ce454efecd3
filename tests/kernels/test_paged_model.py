"""Transformers models over pages: on a GPU, or on a CPU under Triton's interpreter, they are what they are over dense slabs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="the GPU kernels are written in Triton, which is not installed: pip install triton==3.7.1")

from models.test_families import ROUTED, TOLERANCE, largest_error
from paceline import LLM, SamplingParams, sampling
from paceline.cache.paged import PagedCache
from paceline.kernels import device, fused_sampling
from paceline.models import paged
from paceline.models.attention import NAME
from paceline.models.hub import HubModel
from paceline.models.paged import PagedModel, window_of
from paceline.models.probe import Identity, probed
from paceline.tree import DraftTree
from stepping import accept, missing, score, sequence
from tiny import CONTEXT, save_tiny, tiny_model

pytestmark = pytest.mark.skipif(
    os.environ["TRITON_INTERPRET"] == "0", reason="these compare tiny float32 models on a processor; benchmarks/gpu.py has bits"
)


@pytest.fixture(autouse=True)
def processors_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "SERVED", {"cuda", "cpu"})


@pytest.mark.parametrize("kind", ROUTED)
def test_every_family_of_the_flat_step_is_what_it_is_alone(kind: str) -> None:
    """Chunks, decodes and drafts in one step, a commit that moves keys; windows, caps, sinks, values of other sizes."""
    reference = tiny_model(kind)
    model = tiny_model(kind)
    model.set_attn_implementation(NAME)
    road = PagedModel(model, kind, CONTEXT)
    assert largest_error(road, reference) < TOLERANCE
    assert road.attention_calls == reference.config.num_hidden_layers


def test_the_probe_prefers_pages_and_falls_back_to_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = Identity("tiny", CONTEXT, frozenset())
    assert isinstance(probed(tiny_model("mistral"), identity), PagedModel)

    def unknown(*_: object) -> int:
        raise NotImplementedError("a layer's attention is neither causal nor a sliding window")

    monkeypatch.setattr(paged, "window_of", unknown)
    assert type(probed(tiny_model("mistral"), identity)) is HubModel
    monkeypatch.setattr(device, "SERVED", {"cuda"})
    assert type(probed(tiny_model("llama"), identity)) is HubModel


def test_windows_are_read_from_a_layers_rule() -> None:
    def sliding(_batch, _head, row, key):
        return (key <= row) & (key > row - 7)

    def chunked(_batch, _head, row, key):
        return (key <= row) & (key // 7 == row // 7)

    def dilated(_batch, _head, row, key):
        return (key <= row) & ((row - key) % 2 == 0)

    assert window_of(None, 128) == 0
    assert window_of(sliding, 128) == 7
    assert window_of(sliding, 8) == 7
    assert window_of(sliding, 7) == 0, "a window as long as any text is none"
    for rule in (chunked, dilated):
        with pytest.raises(NotImplementedError, match="neither causal nor a sliding window"):
            window_of(rule, 128)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # of no family that packed weights know
    return save_tiny(tmp_path_factory.mktemp("paged"), 3, kind="gpt_neox")


@pytest.fixture
def llm(folder: Path) -> LLM:
    llm = LLM(str(folder), "none")
    assert isinstance(llm.target, PagedModel)
    return llm


@pytest.fixture
def without_kernels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[int]]]:
    """What the same model says over slabs, sampled on the host."""

    def said(prompts: list[str], params: SamplingParams) -> list[list[int]]:
        with monkeypatch.context() as patch:
            patch.setattr(device, "SERVED", {"cuda"})
            llm = LLM(str(folder), "none")
            assert type(llm.target) is HubModel
            return [answer.token_ids for answer in llm.generate(prompts, params)]

    return said


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("draft", ["ngram", "suffix", "jacobi", "lookahead:window=3", "recycle:nodes=6"])
def test_drafts_leave_the_text_as_it_is(
    llm: LLM, without_kernels: Callable[..., list[list[int]]], draft: str, temperature: float
) -> None:
    params = SamplingParams(max_tokens=10, temperature=temperature, seed=5, ignore_eos=True)
    prompts = ["the thin thing in the inn", "in the thin", "in"]
    expected = without_kernels(prompts, params)
    assert [answer.token_ids for answer in llm.generate(prompts, params)] == expected
    llm.use(draft)
    assert [answer.token_ids for answer in llm.generate(prompts, params)] == expected


@pytest.mark.parametrize("penalty", [1.0, 1.2])
def test_all_nodes_of_a_draft_are_sampled_at_once_where_they_lie(
    llm: LLM, without_kernels: Callable[..., list[list[int]]], monkeypatch: pytest.MonkeyPatch, penalty: float
) -> None:
    """Penalties are the host's: rows that need them are asked for one by one, as far as a walk comes."""
    launches, hosts = [], []
    on_device, on_host = fused_sampling.choose_on_device, sampling.choose
    monkeypatch.setattr(fused_sampling, "choose_on_device", lambda rows, by: launches.append(len(rows)) or on_device(rows, by))
    monkeypatch.setattr(sampling, "choose", lambda rows, contexts: hosts.append(len(rows)) or on_host(rows, contexts))
    params = SamplingParams(max_tokens=12, temperature=1.0, top_p=0.9, seed=2, repetition_penalty=penalty, ignore_eos=True)
    expected = without_kernels(["the thin thing in"], params)
    launches.clear()
    hosts.clear()
    llm.use("unigram")
    answer = llm.generate("the thin thing in", params)[0]
    assert [answer.token_ids] == expected
    if penalty == 1.0:
        assert max(launches) > 1
        assert not hosts
    else:
        assert not launches
        assert hosts == [1] * len(answer.token_ids)


def test_a_pool_grows_with_its_texts() -> None:
    model = tiny_model("llama")
    model.set_attn_implementation(NAME)
    road = PagedModel(model, "llama", CONTEXT)
    cache = PagedCache(1, 4, grows=True)
    rows = []
    for store in (cache, road.new_cache()):
        owners = [sequence(key, [5 + key, 6, 7, 8, 9, 10]) for key in range(3)]
        found = []
        for token in range(20, 26):
            trees = [DraftTree.root(owner.root) for owner in owners]
            feeds = [missing(store, owner, tree) for owner, tree in zip(owners, trees, strict=True)]
            found.append(score(road, store, feeds).logits)
            verdicts = [accept(tree, (), token) for tree in trees]
            store.commit(verdicts)
            for owner in owners:
                owner.commit((token,), ())
        rows.append(torch.stack(found))
    assert torch.equal(rows[0], rows[1])
    assert cache._pool.count >= 9
