"""Context: how long a text a model can read, as its configuration tells."""

from __future__ import annotations

from typing import Any

from paceline.models.base import ModelError
from paceline.models.forms import original_length
from paceline.models.quiet import sentence

_NAMES = ("max_position_embeddings", "n_positions", "n_ctx", "seq_length", "max_seq_len", "max_sequence_length")
_UNSTATED = 2048
"""Context length of checkpoints that state none, such as recurrent models and some with ALiBi."""


def context_length(config: Any) -> int:
    """Context length in tokens: as the configuration states it, or as its rotation stretches it, but at most the length up to
    which a text is computed in one and the same way (`_lengths_of_one_way`).

    Raises ModelError if the configuration cannot be read.
    """
    try:
        text = config.get_text_config()
        named = [getattr(text, name, None) for name in _NAMES]
        lengths = [length for length in named if isinstance(length, int) and length > 0] or [_UNSTATED]
        return min([max([lengths[0], *_stretched_lengths(text, lengths)]), *_lengths_of_one_way(text)])
    # such as a configuration that states it per layer
    except Exception as error:
        raise ModelError(f"the configuration does not say how long a text may be: {sentence(error)}") from error


def _rotations(text: Any) -> list[dict[str, Any]]:
    """The parameters of all rotations of a configuration: the common ones, and those of each layer type."""
    parameters = getattr(text, "rope_parameters", None) or {}
    return [parameters, *(one for one in parameters.values() if isinstance(one, dict))]


def _stretched_lengths(text: Any, lengths: list[int]) -> list[int]:
    """The length that each rotation stretches the first of these lengths to, if that one is clearly the unstretched length.

    Files state either. DeepSeek, Gemma 3 and gpt-oss state the stretched length. Qwen, to whose files users add a yarn, states
    the unstretched one (Qwen3 with a quarter more, for answers); so does Vicuna, which also states the stretched one.
    """
    found = []
    for one in _rotations(text):
        factor, original = one.get("factor"), original_length(text, one)
        if one.get("rope_type") not in ("linear", "yarn") or not isinstance(factor, int | float):
            continue
        if original is None:
            found += [length for length in lengths[1:] if length == lengths[0] * factor]
        elif lengths[0] < 2 * original:
            found.append(int(original * factor))
    return found


def _lengths_of_one_way(text: Any) -> list[int]:
    """The lengths past which a model would compute a text in another way: up to them a longrope uses its short factors, chunks
    are not used, and sparse attention selects every token."""
    # transformers chooses the factors (PhiMoE: the scales of any rotation) for all rows of a call by their largest position:
    # past that length a text would depend on its neighbours, on drafts, and on how its prompt is chunked
    switching = [one for one in _rotations(text) if one.get("rope_type") == "longrope" or "long_mscale" in one]
    # Qwen2.5-1M extends its context by dual chunk attention, which transformers and our backends do not support
    chunks = getattr(text, "dual_chunk_attention_config", None)
    if isinstance(chunks, dict):
        switching.append(chunks)
    ends = [original_length(text, one) for one in switching]
    # past them, sparse attention selects the tokens with the highest scores; where many are equal (zeros behind DeepSeek's ReLU,
    # the same token twice in Doge's), the shape of a call decides which of them it selects
    ends += [_indexed_length(text), text.keep_window_size if getattr(text, "model_type", None) == "doge" else None]
    return [end for end in ends if isinstance(end, int) and end > 0]


def _indexed_length(text: Any) -> int | None:
    """The tokens up to which DeepSeek's sparse attention (DeepSeek-V3.2, GLM-5) selects all; None without such layers."""
    most, kinds = getattr(text, "index_topk", None), getattr(text, "layer_types", None) or ()
    if "indexed_attention" in kinds:
        return most
    if "compressed_sparse_attention" in kinds and isinstance(most, int):
        # DeepSeek-V4 selects entries that hold several tokens each
        return most * text.compress_rates["compressed_sparse_attention"]
    return None
