"""The printed trace of an answer does not depend on how its tokens are split into steps."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from paceline.display import Trace
from paceline.engine.engine import Progress
from paceline.models.tokenizer import Tokenizer
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.speculative import Outcome
from paceline.step import Verdict
from paceline.tree import DraftTree
from tiny import save_tokenizer

ANY: Any = None


def traced(tokenizer: Tokenizer, prompt: tuple[int, ...], ids: list[int], size: int) -> str:
    """The printed trace of an answer in steps of `size` tokens, all but the last of each drafted."""
    file = StringIO()
    trace = Trace(Console(file=file), tokenizer)
    sequence = Sequence(0, prompt, SamplingParams(), seed=0)
    root = prompt[-1]
    for low in range(0, len(ids), size):
        tokens = tuple(ids[low : low + size])
        finish = "length" if low + size >= len(ids) else None
        verdict = Verdict(tuple(range(1, len(tokens))), tokens, len(tokens) - 1, finish)
        trace.show(Progress(Outcome(sequence, DraftTree.chain(root, tokens[:-1], "ngram"), verdict, ANY, 1), ""))
        root = tokens[-1]
    return file.getvalue()


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_characters_of_several_tokens_are_printed_whole(tmp_path: Path, size: int) -> None:
    save_tokenizer(tmp_path)
    tokenizer = Tokenizer(tmp_path)
    text = "naïve — yes, éï 🙂 thé"
    prompt, ids = tuple(tokenizer.encode("it is")), tokenizer.encode(text, add_special=False)
    assert len(ids) > len(text), "some characters take several tokens"
    assert traced(tokenizer, prompt, ids, size) == text
    within = tokenizer.encode("it is ï", add_special=False)
    assert traced(tokenizer, tuple(within[:-1]), [within[-1], *ids], size) == f"ï{text}", "a character that the prompt begins"
    assert traced(tokenizer, prompt, ids[:-1], size) == tokenizer.decode(ids[:-1]), "a character that is never finished"
