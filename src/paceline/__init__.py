"""Paceline: a language-model inference engine whose heart is lossless speculative decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.version import __version__

if TYPE_CHECKING:
    from paceline.engine.llm import LLM, Completion
    from paceline.params import SamplingParams

__all__ = ["LLM", "Completion", "SamplingParams", "__version__"]

_PLACES = {"LLM": "paceline.engine.llm", "Completion": "paceline.engine.llm", "SamplingParams": "paceline.params"}


def __getattr__(name: str) -> Any:
    # loaded when first asked for: `paceline --help` need not wait for torch
    if name not in _PLACES:
        raise AttributeError(f"module 'paceline' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
