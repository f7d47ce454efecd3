"""Towers: vision-language models, whose language model alone is used: Gemma 3 from 4B on, Mistral Small from 3.1 on.

Sources: transformers 5.23, `Gemma3ForConditionalGeneration` and `Mistral3ForConditionalGeneration`; attention is bidirectional
only among the tokens of an image.
"""

from __future__ import annotations

from typing import Any

SEEING = frozenset({"gemma3", "mistral3"})
_LANGUAGE = {"language_model.model.": "model.", "model.language_model.": "model.", "language_model.lm_head.": "lm_head."}
"""Prefix of the language model's tensors, in files of older and newer versions -> prefix in a text-only model."""
_SIGHT = ("vision_tower.", "multi_modal_projector.")


def text_config(config: Any, headed: bool) -> Any:
    """The language model's configuration. config: transformers' own, of a vision-language model. headed: whether its files hold a
    head, which then is not tied to the embedding: the outer configuration's default is tied, whatever `text_config` states.

    A vision-language model does not cap logits, unlike a text-only Gemma.
    """
    text = config.get_text_config()
    text.tie_word_embeddings = bool(config.tie_word_embeddings) and not headed
    text.final_logit_softcapping = None
    return text


def text_name(name: str, model_type: str) -> str | None:
    """A tensor's name in a text-only model; None for a tensor of the vision part."""
    if model_type not in SEEING:
        return name
    if name.removeprefix("model.").startswith(_SIGHT):
        return None
    prefix = next((prefix for prefix in _LANGUAGE if name.startswith(prefix)), "")
    return _LANGUAGE.get(prefix, "") + name.removeprefix(prefix)
