"""Transformers models over pages, on a GPU or under Triton's interpreter on a CPU, equal the same models over dense slabs."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="the GPU kernels are written in Triton, which is not installed: pip install triton==3.7.1")

from models.test_families import ROUTED, TOLERANCE, largest_error
from paceline import LLM, SamplingParams, sampling
from paceline.cache.paged import PagedCache
from paceline.kernels import device, fused_sampling
from paceline.kernels.step_tables import SMALLEST, Extent
from paceline.models import paged, paged_attention, selfcheck
from paceline.models.attention import NAME
from paceline.models.base import KV_CACHES, ModelError, Scores
from paceline.models.hub import HubModel
from paceline.models.paged import OverPages, PagedModel
from paceline.models.paged_attention import window_of
from paceline.models.recording import Recording
from paceline.models.selfcheck import Identity, best_backend
from paceline.step import Step, Verdict
from paceline.tree import DraftTree
from stepping import accept, missing, score, sequence
from tiny import CONTEXT, save_tiny, tiny_model

pytestmark = pytest.mark.skipif(
    os.environ["TRITON_INTERPRET"] == "0", reason="these compare tiny float32 models on a processor; benchmarks/gpu.py has bits"
)


@pytest.fixture(autouse=True)
def processors_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small buckets, since the interpreter takes as long for an idle program as a device for a whole launch."""
    monkeypatch.setattr(device, "SERVED", {"cuda", "cpu"})
    monkeypatch.setattr(OverPages, "smallest", SMALLEST._replace(items=1, blocks=1))


@pytest.mark.parametrize("kind", ROUTED)
def test_every_family_over_pages_equals_the_plain_model_run_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks, decodes and drafts in one step, a commit that moves keys; windows, caps, sinks, values of other sizes."""
    reference = tiny_model(kind)
    model = tiny_model(kind)
    model.set_attn_implementation(NAME)
    backend = PagedModel(model, kind, CONTEXT)
    recorded, replayed = list[int](), Recording.__call__
    monkeypatch.setattr(Recording, "__call__", lambda self: recorded.append(1) or replayed(self))
    assert largest_error(backend, reference) < TOLERANCE
    assert recorded, "the last step, which reads no prompt, used recorded buffers"
    assert backend.attention_calls == reference.config.num_hidden_layers


def test_the_check_at_load_prefers_pages_and_falls_back_to_slabs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    identity = Identity("tiny", CONTEXT, frozenset())
    assert isinstance(best_backend(tiny_model("mistral"), identity), PagedModel)
    assert not caplog.messages

    def unknown(*_: object) -> int:
        raise NotImplementedError("a layer's attention is neither causal nor a sliding window")

    monkeypatch.setattr(paged_attention, "window_of", unknown)
    assert type(best_backend(tiny_model("mistral"), identity)) is HubModel
    (told,) = caplog.messages
    assert told.startswith("'tiny' does not run on the kernels for this device: ")
    assert "neither causal nor a sliding window" in told
    monkeypatch.setattr(device, "SERVED", {"cuda"})
    assert type(best_backend(tiny_model("llama"), identity)) is HubModel


@pytest.mark.parametrize("kind", KV_CACHES)
def test_narrow_keys_and_values_are_near_the_models_own(kind: str) -> None:
    wide, narrow = (best_backend(tiny_model("mistral"), Identity("tiny", CONTEXT, frozenset(), each)) for each in (None, kind))
    assert isinstance(narrow, PagedModel)
    assert narrow.described == f"tiny (fp32, keys and values {kind})"
    found, kept = list[torch.Tensor](), list[int]()
    for backend in (wide, narrow):
        cache = backend.new_cache()
        owner = sequence(0, range(5, 60))
        found.append(score(backend, cache, [missing(cache, owner, DraftTree.root(owner.root))]).logits)
        kept.append(cache.held_bytes)
    error = (found[0] - found[1]).std() / found[0].std()
    assert 0.0 < error < 0.1
    assert kept[1] < kept[0] / 2, "one byte, and a part of a scale, per float32"


@pytest.mark.parametrize("objects", ["", "its logits are off by 4.0e-01 of their spread"])
def test_narrow_keys_and_values_are_refused_where_they_cannot_be_kept(objects: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other backend is tried for them: without the requested format it would be another target."""
    identity = Identity("tiny", CONTEXT, frozenset(), "int8")
    if objects:
        monkeypatch.setattr(selfcheck._Trial, "objection", lambda *_, rounded=False: objects if rounded else "")
    else:
        monkeypatch.setattr(device, "SERVED", {"cuda"})
        monkeypatch.setattr(selfcheck, "_paged", lambda *_: 1 / 0)
    with pytest.raises(ModelError, match="'tiny' cannot keep its keys and values as int8 here: ") as refusal:
        best_backend(tiny_model("mistral"), identity)
    assert (objects or "division by zero") in str(refusal.value)


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
    assert window_of(sliding, 7) == 0, "a window as long as any text is no window"
    for rule in (chunked, dilated):
        with pytest.raises(NotImplementedError, match="neither causal nor a sliding window"):
            window_of(rule, 128)


def backend_over(kind: str) -> PagedModel:
    """A backend as after the self-check: it has seen a step, and knows how heads share keys."""
    model = tiny_model(kind)
    model.set_attn_implementation(NAME)
    backend = PagedModel(model, kind, CONTEXT)
    owner, cache = sequence(0, [1]), backend.new_cache()
    score(backend, cache, [missing(cache, owner, DraftTree.root(1))])
    return backend


def decoded(backend: PagedModel, cache: PagedCache, taps: tuple[int, ...] = (), steps: int = 5) -> list[Scores]:
    """Three sequences of different lengths, with drafts that are partly accepted; the first step reads the prompts."""
    owners = [sequence(key, range(5, 8 + 3 * key)) for key in range(3)]
    found = []
    for turn in range(steps):
        trees = [DraftTree((owner.root, 11, 12, 13, 14), (-1, 0, 0, 1, 2)) for owner in owners]
        trees[turn % 3] = DraftTree.root(owners[turn % 3].root)
        feeds = [missing(cache, owner, tree) for owner, tree in zip(owners, trees, strict=True)]
        found.append(score(backend, cache, feeds, taps))
        verdicts = [accept(tree, (2, 4) if len(tree) > 1 else (), 20 + turn) for tree in trees]
        cache.commit(verdicts)
        for owner, verdict in zip(owners, verdicts, strict=True):
            owner.commit(verdict.tokens, ())
    return found


def test_recorded_steps_equal_steps_in_fresh_buffers() -> None:
    """Buckets are larger than their steps: neither padding nor leftovers of earlier steps may affect results."""
    recorded, fresh = backend_over("mistral"), backend_over("mistral")
    fresh._recordable = False
    cache = recorded.new_cache()
    pairs = list(zip(decoded(recorded, cache, (0, 1, 2)), decoded(fresh, fresh.new_cache(), (0, 1, 2)), strict=True))
    assert len(recorded._recordings[cache].held) == 1, "one recording serves all steps of three sequences with eleven rows"
    for ours, theirs in pairs:
        assert (ours.logits - theirs.logits).abs().max() < TOLERANCE
        assert {*ours.taps} == {*theirs.taps} == {0, 1, 2}
        assert all((ours.taps[layer] - theirs.taps[layer]).abs().max() < TOLERANCE for layer in ours.taps)
    # earlier results are not overwritten by later steps
    again = decoded(backend_over("mistral"), PagedCache(64, 64, grows=True))
    assert torch.equal(again[1].logits, pairs[1][0].logits)


def test_prompt_logits_come_in_the_same_order_in_recorded_and_plain_steps() -> None:
    """All rows are wanted, those of committed tokens after those of trees, also in a recorded step."""
    backend, found = backend_over("llama"), []
    for recordable in (True, False):
        cache, backend._recordable = backend.new_cache(), recordable
        owners = [sequence(key, range(5, 9 + key)) for key in range(2)]
        score(backend, cache, [missing(cache, owner, upto=2) for owner in owners])
        cache.commit([Verdict()] * 2)
        feeds = [missing(cache, owner, DraftTree.root(owner.root)) for owner in owners]
        found.append(score(backend, cache, [replace(feed, prompt_logits=True) for feed in feeds]).logits)
    assert (found[0] - found[1]).abs().max() < TOLERANCE


def test_a_draft_model_that_lacks_two_tokens_stays_in_its_recording() -> None:
    """After a fully accepted draft it lacks the last drafted token and the next one: two rows are fed, one is wanted."""
    backend, found = backend_over("llama"), []
    for recordable in (True, False):
        cache, backend._recordable = backend.new_cache(), recordable
        owners = [sequence(key, range(5, 9 + key)) for key in range(2)]
        score(backend, cache, [missing(cache, owner, upto=len(owner.tokens) - 2) for owner in owners])
        cache.commit([Verdict()] * 2)
        assert cache not in backend._recordings
        found.append(score(backend, cache, [missing(cache, owner, DraftTree.root(owner.root)) for owner in owners], (1,)))
        assert (cache in backend._recordings) == recordable
    assert found[0].logits.shape == found[1].logits.shape == (2, backend.vocab_size)
    assert (found[0].logits - found[1].logits).abs().max() < TOLERANCE
    assert (found[0].taps[1] - found[1].taps[1]).abs().max() < TOLERANCE


def test_every_cache_keeps_recordings_of_its_own_that_are_dropped_with_it() -> None:
    """Two drafters may use one model in turn; recordings of a dropped cache must not keep its pages."""
    backend = backend_over("llama")
    first, second = backend.new_cache(), backend.new_cache()
    for cache in (first, second):
        decoded(backend, cache, steps=2)
    made = [*backend._recordings[first].held.values()]
    owner = sequence(9, range(5, 9))
    for cache in (first, second):
        score(backend, cache, [missing(cache, owner, DraftTree.root(owner.root))])
    assert {*map(id, made)} < {*map(id, backend._recordings[first].held.values())}
    assert len(backend._recordings) == 2
    del first, cache, made
    assert [*backend._recordings] == [second]


def test_a_step_that_cannot_be_recorded_runs_unrecorded(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [scores.logits for scores in decoded(backend_over("llama"), PagedCache(64, 64))]
    backend, calls = backend_over("llama"), []

    def refused(*_: object) -> None:
        calls.append(1)
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(Recording, "__call__", refused)
    for scores, logits in zip(decoded(backend, backend.new_cache()), expected, strict=True):
        assert (scores.logits - logits).abs().max() < TOLERANCE
    assert len(calls) == 1


def test_recording_without_memory_is_retried_only_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged, "_REST", 4)
    monkeypatch.setattr(paged, "_LONGEST_REST", 8)
    backend, tried, found, recorded = backend_over("llama"), list[int](), list[torch.Tensor](), Recording.__call__
    cache, owner = backend.new_cache(), sequence(0, range(5, 9))
    feeds = [missing(cache, owner, DraftTree.root(owner.root))]
    wanted = score(backend, cache, feeds).logits

    def full(*_: object) -> None:
        tried.append(len(found))
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Recording, "__call__", full)
    for _ in range(30):
        found.append(score(backend, cache, feeds).logits)
        assert (found[-1] - wanted).abs().max() < TOLERANCE
    assert tried == [0, 5, 14, 23]
    monkeypatch.setattr(Recording, "__call__", recorded)
    for _ in range(2 + 4):
        score(backend, cache, feeds)
    assert backend._recordings[cache].held
    monkeypatch.setattr(Recording, "__call__", full)
    found.clear()
    tried.clear()
    for _ in range(6):
        found.append(score(backend, cache, feeds).logits)
    assert tried == [0, 5], "a recording made in between resets the wait"


# the interpreter also converts values that a mask keeps from being stored
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_a_drafted_token_that_is_no_number_harms_none_before_it() -> None:
    """The keys of one block are weighted together, and zero times NaN is NaN."""
    backend, found = backend_over("llama"), []
    backend.model.get_input_embeddings().weight[9] = torch.nan
    for tokens in ([], [9]):
        owner, cache = sequence(0, [5, 7, 3]), backend.new_cache()
        found.append(score(backend, cache, [missing(cache, owner, DraftTree.chain(3, tokens, "one"))]).logits[0])
    assert torch.equal(*found)
    assert found[0].isfinite().all()


def test_a_recording_that_was_disturbed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, cache = backend_over("llama"), PagedCache(64, 64)
    record = Recording.__call__
    told = list[bool]()

    def disturbed(recording: Recording[object, object]) -> object:
        if told:
            raise RuntimeError("operation failed due to a previous error during capture")
        return record(recording)

    monkeypatch.setattr(Recording, "__call__", disturbed)
    for key in range(5):
        owner = sequence(key, range(5, 9))
        score(backend, cache, [missing(cache, owner, DraftTree.root(owner.root))])
        told.append(backend._recordable)
    assert told == [True, True, True, False, False]


def test_recordings_are_few_and_go_when_pages_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged, "_RECORDINGS", 2)
    monkeypatch.setattr(PagedModel, "smallest", Extent(1, 1, 1, 1, 1))
    backend, cache = backend_over("llama"), PagedCache(1, 4, grows=True)
    made = []
    for key in range(5):
        owner = sequence(key, range(5, 12 + 8 * key))
        cache.stage(step := Step.of([missing(cache, owner, upto=len(owner.tokens) - 1)]))
        backend.score(step, cache)
        cache.commit([Verdict()])
        tree = DraftTree.chain(owner.root, range(20, 21 + key), "test")
        score(backend, cache, [missing(cache, owner, tree)])
        assert backend._recordings[cache].moves == cache.moves
        made.append(len(backend._recordings[cache].held))
    assert cache.moves > 1
    assert max(made) == 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # of a family that packed weights do not support
    return save_tiny(tmp_path_factory.mktemp("paged"), 3, kind="gpt_neox")


@pytest.fixture
def llm(folder: Path) -> LLM:
    llm = LLM(str(folder), "none")
    assert isinstance(llm.target, PagedModel)
    return llm


@pytest.fixture
def without_kernels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[int]]]:
    """The texts of the same model over slabs, sampled on the host."""

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
    assert isinstance(llm.target, PagedModel)
    assert llm.target._recordings, "steps that read no prompt were recorded"


@pytest.mark.parametrize("kind", KV_CACHES)
@pytest.mark.parametrize("draft", ["ngram", "recycle:nodes=6"])
def test_drafts_leave_the_text_of_a_narrow_target_as_it_is(folder: Path, draft: str, kind: str) -> None:
    """Keys that were staged, moved and kept are rounded once, each on its own."""
    llm = LLM(str(folder), "none", kv_cache=kind)
    assert llm.target.kv_cache == kind
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    prompts = ["the thin thing in the inn", "in the thin", "in"]
    expected = [answer.token_ids for answer in llm.generate(prompts, params)]
    llm.use(draft)
    assert [answer.token_ids for answer in llm.generate(prompts, params)] == expected


@pytest.mark.parametrize("penalty", [1.0, 1.2])
def test_all_nodes_of_a_draft_are_sampled_at_once_where_they_lie(
    llm: LLM, without_kernels: Callable[..., list[list[int]]], monkeypatch: pytest.MonkeyPatch, penalty: float
) -> None:
    """Penalties are applied on the host: such rows are sampled one by one, only along the path taken."""
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
    backend = backend_over("llama")
    cache = PagedCache(1, 4, grows=True)
    rows = []
    for store in (cache, backend.new_cache()):
        owners = [sequence(key, [5 + key, 6, 7, 8, 9, 10]) for key in range(3)]
        found = []
        for token in range(20, 26):
            trees = [DraftTree.root(owner.root) for owner in owners]
            feeds = [missing(store, owner, tree) for owner, tree in zip(owners, trees, strict=True)]
            found.append(score(backend, store, feeds).logits)
            verdicts = [accept(tree, (), token) for tree in trees]
            store.commit(verdicts)
            for owner in owners:
                owner.commit((token,), ())
        rows.append(torch.stack(found))
    assert torch.equal(rows[0], rows[1])
    assert cache._pool.count >= 9
