"""The self-check selects the best backend with the model's own logits, and can tell a wrong mask from rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.cache.base import Branching
from paceline.cache.dense import DenseCache
from paceline.models import attention
from paceline.models.attention import AttentionOptions, Forward
from paceline.models.base import LanguageModel, ModelError
from paceline.models.hub import HubModel
from paceline.models.selfcheck import Identity, best_backend
from paceline.models.stateful import ReplayModel, StatefulModel
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.step import Feed, Segment, Step, Verdict
from tiny import tiny_model

BACKENDS: dict[str, tuple[type[LanguageModel], Branching]] = {
    **dict.fromkeys(
        ("llama", "mistral", "gemma2", "gpt2", "opt", "mixtral", "deepseek_v3", "gpt_oss", "afmoe"), (HubModel, Branching.TREE)
    ),
    **dict.fromkeys(("falcon", "gptj", "codegen"), (StatefulModel, Branching.TREE)),
    **dict.fromkeys(("bloom", "mpt", "gpt_neo"), (StatefulModel, Branching.CHAIN)),
    **dict.fromkeys(("qwen3_next", "lfm2", "mamba2", "mamba"), (ReplayModel, Branching.REPLAY)),
}


def checked(model: Any, context_length: int = 128) -> LanguageModel:
    return best_backend(model, Identity("tiny", context_length, frozenset({2})))


@pytest.mark.parametrize("kind", BACKENDS)
def test_every_family_finds_its_backend(kind: str) -> None:
    found = checked(tiny_model(kind))
    assert (type(found), found.branching) == BACKENDS[kind]
    assert found.eos_token_ids == {2}


def test_queries_scaled_by_the_length_of_a_text_are_those_of_the_model() -> None:
    """Llama 4 scales them from some position on, which transformers counts by its cache."""
    scaled = {"attn_temperature_tuning": True, "floor_scale": 16, "attn_scale": 0.5}
    experts = {
        "num_local_experts": 2,
        "moe_layers": [],
        "intermediate_size_mlp": 64,
        "attention_chunk_size": 8192,
        "pad_token_id": 0,
    }
    model = tiny_model("llama4_text", head_dim=16, no_rope_layers=[1, 0], **scaled, **experts)
    ids = torch.randint(3, 90, (1, 100), generator=torch.Generator().manual_seed(0)).tolist()[0]
    with torch.inference_mode():
        wanted = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
    found = checked(model)
    found.prefill_chunk = 8
    owner = Sequence(0, tuple(ids), SamplingParams(), seed=0)
    (told,) = found.logits_after([(owner, tuple(ids))], found.new_cache())
    assert torch.allclose(told, wanted, atol=1e-3 * float(wanted.std()))


@pytest.mark.parametrize("kind", ["llama", "gemma2", "mixtral", "gpt_oss", "falcon", "bloom", "mpt", "lfm2"])
def test_half_precision_finds_the_same_backend(kind: str) -> None:
    found = checked(tiny_model(kind).to(torch.bfloat16))
    assert (type(found), found.branching) == BACKENDS[kind]


@pytest.mark.parametrize("context_length", [5, 6, 9, 13])
def test_short_contexts_are_checked_within_their_length(context_length: int) -> None:
    model = tiny_model("gpt2", n_positions=context_length)
    assert checked(model, context_length).branching is Branching.TREE


def test_a_context_too_short_to_draft_in_is_refused() -> None:
    with pytest.raises(ModelError, match="context of 4 tokens"):
        checked(tiny_model("gpt2", n_positions=4), 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_lost_tree_mask_is_noticed(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """The mutant reads every draft as a chain; the self-check must reject the flat backend."""

    def blind(segment: Segment) -> torch.Tensor:
        return torch.ones(segment.rows, segment.rows, dtype=torch.bool).tril()

    monkeypatch.setattr(Segment, "ancestors", property(blind))
    found = checked(tiny_model("llama").to(dtype))
    assert found.branching is Branching.CHAIN


def test_positions_by_slot_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant numbers nodes by slot instead of depth."""

    def numbered(segment: Segment) -> tuple[int, ...]:
        return tuple(range(segment.start, segment.end))

    monkeypatch.setattr(Segment, "row_positions", property(numbered))
    assert checked(tiny_model("llama")).branching is Branching.CHAIN


def test_a_lost_prefix_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant ignores the cached prompt; the next backend uses the model's own cache, which is correct."""
    seen = attention.Forward.mask

    def forgetful(forward: attention.Forward, rule: Any, segment: Segment, query: torch.Tensor, heads: int) -> torch.Tensor:
        mask = seen(forward, rule, segment, query, heads)
        if mask is None:
            mask = torch.zeros(heads * segment.rows, segment.end)
        mask[:, : segment.start] = -torch.inf
        return mask

    monkeypatch.setattr(attention.Forward, "mask", forgetful)
    assert isinstance(checked(tiny_model("llama")), StatefulModel)


def test_a_model_that_reads_ahead_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"BertLMHeadModel is not supported: .* BertAttention") as refusal:
        checked(tiny_model("bert"))
    assert "\n" not in str(refusal.value)


def test_weights_that_are_not_numbers_are_refused() -> None:
    model = tiny_model("llama")
    for parameter in model.parameters():
        parameter.fill_(float("nan"))
    with pytest.raises(ModelError, match="not finite"):
        checked(model)


def test_a_refused_model_is_left_with_its_own_attention() -> None:
    model = tiny_model("falcon")
    own = model.config._attn_implementation
    checked(model)
    assert model.config._attn_implementation == own


@pytest.mark.parametrize("kind", ["lfm2", "qwen3_next"])
def test_snapshots_of_a_text_share_its_keys(kind: str) -> None:
    model = checked(tiny_model(kind))
    owner, cache = Sequence(0, tuple(range(3, 63)), SamplingParams(), seed=0), model.new_cache()
    for start in range(0, 60, 10):
        step = Step.of([Feed(owner, start, owner.prompt[start : start + 10])])
        cache.stage(step)
        model.score(step, cache)
        cache.commit([Verdict()])
    snapshots = cache._snapshots[0]
    assert len(snapshots) == 6
    held = [[tensor for layer in state.layers if (tensor := getattr(layer, "keys", None)) is not None] for _, state in snapshots]
    assert {len(tensors) for tensors in held} == {1}
    assert len({tensors[0].untyped_storage().data_ptr() for tensors in held}) == 1
    assert [tensors[0].shape[-2] for tensors in held] == [at for at, _ in snapshots]
    # and truncating restores the earlier state
    cache.truncate(0, 35)
    assert cache.length(0) == 30
    (told,) = model.logits_after([(owner, owner.prompt[30:])], cache)
    (wanted,) = model.logits_after([(owner, owner.prompt)], model.new_cache())
    assert torch.allclose(told, wanted, atol=1e-4)


def test_attention_written_out_is_the_same_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    folded, keys, values = torch.randn(2, 40, 16), torch.randn(2, 90, 16), torch.randn(2, 90, 16)
    mask = torch.zeros(40, 90).masked_fill(torch.rand(40, 90) > 0.7, -torch.inf)
    for options in (AttentionOptions(None, 0.25, 5.0), AttentionOptions(None, 0.25, None, torch.randn(4))):
        whole = [attention._explicit(folded, keys, values, given, options) for given in (mask, None)]
        monkeypatch.setattr(attention, "_SCORES", 2 * 90 * 7)
        sliced = [attention._explicit(folded, keys, values, given, options) for given in (mask, None)]
        monkeypatch.undo()
        for one, other in zip(whole, sliced, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("softcap", "sunk"), [(None, False), (5.0, False), (None, True)])
def test_the_mask_of_a_long_chunk_is_held_once_for_all_heads(
    monkeypatch: pytest.MonkeyPatch, softcap: float | None, sunk: bool
) -> None:
    """Results equal those with one mask per head."""
    torch.manual_seed(0)
    rows, before, groups, heads, size = 512, 4096, 2, 3, 4
    owner, cache = Sequence(0, tuple(range(before + rows)), SamplingParams(), seed=0), DenseCache()
    sinks = torch.randn(groups * heads) if sunk else None
    options = AttentionOptions(lambda batch, head, row, key: key > row - 1000, 0.5, softcap, sinks)
    queries = torch.randn(groups * heads, rows, size)
    keys, values = torch.randn(groups, before + rows, size), torch.randn(groups, before + rows, size)

    step = Step.of([Feed(owner, 0, owner.prompt[:before])])
    cache.stage(step)
    cache.store(0, step.segments[0], keys[:, :before], values[:, :before])
    cache.commit([Verdict()])
    step = Step.of([Feed(owner, before, owner.prompt[before:])])
    cache.stage(step)
    forward = Forward(step, cache)
    mixed = forward.attended(0, queries, keys[:, before:], values[:, before:], options)
    assert sum(mask.numel() for mask in forward._masks.values() if mask is not None) <= rows * (before + rows)
    monkeypatch.setattr(attention, "_REPEATED", 1 << 60)
    wanted = Forward(step, cache).attended(0, queries, keys[:, before:], values[:, before:], options)
    torch.testing.assert_close(mixed, wanted)
