"""Towers: models that also see, of which a text takes the language model alone: Gemma 3 from 4B on, Mistral Small from 3.1 on.

Sources: transformers 5.23, `Gemma3ForConditionalGeneration` and `Mistral3ForConditionalGeneration`; attention goes both ways
among the tokens of an image only.
"""

from __future__ import annotations

from typing import Any

SEEING = frozenset({"gemma3", "mistral3"})
_LANGUAGE = {"language_model.model.": "model.", "model.language_model.": "model.", "language_model.lm_head.": "lm_head."}
"""What names of its tensors begin with, in files of either age, and in a model of text alone."""
_SIGHT = ("vision_tower.", "multi_modal_projector.")


def text_config(config: Any, headed: bool) -> Any:
    """The configuration of what reads text. config: transformers' own of a model that also sees. headed: whether its files hold a
    head, which then is none of the embedding's: by default the whole model says that it has none, whatever its text says.

    A model that also sees caps no logits, as a Gemma that only reads would.
    """
    text = config.get_text_config()
    text.tie_word_embeddings = bool(config.tie_word_embeddings) and not headed
    text.final_logit_softcapping = None
    return text


def text_name(name: str, model_type: str) -> str | None:
    """What a tensor is called in a model of text alone; None for one that only sees."""
    if model_type not in SEEING:
        return name
    if name.removeprefix("model.").startswith(_SIGHT):
        return None
    prefix = next((prefix for prefix in _LANGUAGE if name.startswith(prefix)), "")
    return _LANGUAGE.get(prefix, "") + name.removeprefix(prefix)
