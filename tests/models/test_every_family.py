"""Every family of causal language models in transformers that can be built small: with and without drafts, the same text.

The check at load reads eleven tokens. These texts have a hundred, with windows, chunks and blocks of nine: what a family does
only later (a window that moves, a state that fills up, tokens that are selected) would show here. A family that cannot be built
from these settings, or that is refused, is skipped with the reason.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from paceline import LLM, SamplingParams
from paceline.models.base import ModelError
from tiny import KINDS, save_tiny, tiny_config

_WINDOW = 9
_LONG: dict[str, Any] = {
    "head_dim": 16,
    "num_hidden_layers": 4,
    "max_position_embeddings": 256,
    "rope_local_base_freq": 10000.0,
    **dict.fromkeys(("sliding_window", "sliding_window_size", "window_size", "attention_chunk_size", "chunk_size"), _WINDOW),
    "use_sliding_window": True,
    "max_window_layers": 2,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    "num_experts_per_tok": 2,
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1),
}
_MIXED = {**_LONG, "layer_types": ["sliding_attention", "full_attention"] * 2}


def _without(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


_STATE = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_d_ssm": 128,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
}
_LINEAR = {
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads", "linear_num_heads", "linear_conv_kernel_dim"), 4),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
    "linear_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}
_PLAIN = _without(_LONG, "chunk_size", "attention_chunk_size")
OWN: dict[str, dict[str, Any]] = {
    "bamba": {**_PLAIN, **_STATE, "attn_layer_indices": [1, 3]},
    "deepseek_v32": {**_without(_PLAIN, "head_dim"), "index_topk": 128},
    "doge": {**_PLAIN, "keep_window_size": 512},
    "falcon_h1": {**_PLAIN, **_STATE},
    "glm_moe_dsa": {**_without(_PLAIN, "head_dim"), **KINDS["deepseek_v32"], "index_topk": 128},
    "granitemoehybrid": {
        **_PLAIN, **_STATE, "layer_types": ["mamba", "attention"] * 2, "shared_intermediate_size": 48,
    },
    "jamba": {
        **_without(_PLAIN, "head_dim"), "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2,
        "expert_layer_offset": 1, "use_mamba_kernels": False, "mamba_d_state": 8, "mamba_dt_rank": 4,
    },
    "kimi_linear": {**_without(_PLAIN, "head_dim"), **KINDS["deepseek_v3"], **_LINEAR, "q_lora_rank": None},
    "lfm2_moe": {**_PLAIN, "layer_types": ["conv", "full_attention"] * 2, "conv_L_cache": 3, "num_dense_layers": 1},
    "llama4_text": {
        **_PLAIN, "attention_chunk_size": _WINDOW, "floor_scale": 4, "attn_scale": 0.7, "no_rope_layers": [1, 0, 1, 0],
        "layer_types": None, "intermediate_size_mlp": 64, "interleave_moe_layer_step": 2,
    },
    "minimax": {**_PLAIN, "layer_types": ["linear_attention", "full_attention"] * 2, "block_size": 32, "sliding_window": None},
    "nemotron_h": {
        **_without(_PLAIN, "num_hidden_layers"), "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 1,
        "chunk_size": 8, "layers_block_type": ["mamba", "attention", "mlp", "mamba"], "use_mamba_kernels": False,
        "moe_shared_expert_intermediate_size": 32,
    },
    **{kind: {**_PLAIN, **_LINEAR} for kind in ("olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next")},
    "zamba2": {
        **_without(_PLAIN, "head_dim"), "layers_block_type": ["mamba", "hybrid"] * 2, "mamba_ngroups": 1, "n_mamba_heads": 8,
        "mamba_headdim": 16, "mamba_d_state": 8, "chunk_size": 8, "num_mem_blocks": 1, "use_mem_rope": True,
        "num_key_value_heads": 4, "attention_head_dim": 32, "adapter_rank": 4,
    },
}  # fmt: skip
"""Settings of families whose layers are of several kinds."""
ATTEMPTS = [
    _MIXED,
    _without(_MIXED, "head_dim"),
    _LONG,
    _without(_LONG, "head_dim"),
    _without(_LONG, "head_dim", "attention_chunk_size", "chunk_size"),
    {"max_position_embeddings": 256},
    {},
]
"""Settings that are tried one after the other: no family takes all of them."""
_MOST = 40_000_000
FAMILIES = sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) & set(CONFIG_MAPPING.keys()))


def _built(folder: Path, kind: str) -> None:
    """Save a small model of a family. Skips the test if it cannot be built."""
    from transformers import AutoModelForCausalLM

    reason = ""
    for settings in [OWN[kind]] if kind in OWN else ATTEMPTS:
        over = {**settings, **KINDS.get(kind, {})}
        try:
            with torch.device("meta"):
                size = sum(one.numel() for one in AutoModelForCausalLM.from_config(tiny_config(kind, **over)).parameters())
            if size <= _MOST:
                save_tiny(folder, kind=kind, **over)
                return
            reason = f"it has {size:,} parameters"
        # a family's constructor may raise anything where settings do not fit each other
        except Exception as error:
            reason = str(error).split("\n", 1)[0]
    pytest.skip(f"it cannot be built small: {reason}")


@pytest.mark.full
@pytest.mark.parametrize("kind", FAMILIES)
def test_drafts_leave_a_long_text_as_it_is(tmp_path: Path, kind: str) -> None:
    _built(tmp_path, kind)
    noise = torch.Generator().manual_seed(11)
    params = SamplingParams(max_tokens=80, temperature=0.0, ignore_eos=True)
    prompts = [torch.randint(20, 97, (40,), generator=noise).tolist(), torch.randint(20, 97, (12,), generator=noise).tolist() * 3]
    try:
        plain = LLM(tmp_path, "none")
    except ModelError as error:
        pytest.skip(f"it is refused: {error}")
    longest = plain.engine.speculative.target.context_length
    if longest < len(prompts[0]) + params.max_tokens:
        pytest.skip(f"its context has {longest} tokens")
    wanted = [plain.generate([prompt], params)[0].token_ids for prompt in prompts]
    # right but for every fifth token, so that paths of every length are accepted
    drafts = [[token if at % 5 != 4 else 33 for at, token in enumerate(text)] for text in wanted]
    drafted = LLM(tmp_path, "reference", policy="fixed", prefill_chunk=13)
    found = [answer.token_ids for answer in drafted.generate(prompts, params, reference=drafts)]
    assert found == wanted
