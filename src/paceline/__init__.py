"""Paceline: a language-model inference engine whose heart is lossless speculative decoding."""

from paceline.engine.llm import LLM, Completion
from paceline.sampling import SamplingParams
from paceline.version import __version__

__all__ = ["LLM", "Completion", "SamplingParams", "__version__"]
