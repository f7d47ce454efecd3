"""Paceline: an LLM inference engine built around lossless speculative decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.version import __version__

if TYPE_CHECKING:
    from paceline.engine.engine import Progress
    from paceline.engine.llm import LLM, Completion
    from paceline.errors import PacelineError
    from paceline.params import Grammar, SamplingParams
    from paceline.sequence import Speculation

__all__ = ["LLM", "Completion", "Grammar", "PacelineError", "Progress", "SamplingParams", "Speculation", "__version__"]

_PLACES = {
    "LLM": "paceline.engine.llm",
    "Completion": "paceline.engine.llm",
    "Grammar": "paceline.params",
    "PacelineError": "paceline.errors",
    "Progress": "paceline.engine.engine",
    "SamplingParams": "paceline.params",
    "Speculation": "paceline.sequence",
}


def __getattr__(name: str) -> Any:
    # loaded when first asked for: `paceline --help` need not wait for torch
    if name not in _PLACES:
        raise AttributeError(f"module 'paceline' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
