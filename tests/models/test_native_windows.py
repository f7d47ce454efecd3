"""Attention windows that begin several panels behind the text's start, against transformers' own models."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from native import THREADS, checkpoint, native, threads
from paceline.step import Verdict
from paceline.tree import DraftTree
from stepping import accept, expected, missing, score, sequence
from tiny import VOCABULARY

TOLERANCE = 1e-4
"""Largest difference of a logit; logits range over tens."""


@pytest.mark.parametrize("count", THREADS)
@pytest.mark.parametrize(("kind", "words"), [("mistral", {"sliding_window": 9}), ("gemma2", {"sliding_window": 34})])
def test_sliding_windows_give_the_logits_of_transformers(tmp_path: Path, kind: str, words: dict[str, Any], count: int) -> None:
    """Two long prompts in chunks, a branching draft of each, a commit of the longer branch, and drafts again."""
    folder, reference = checkpoint(tmp_path, kind, max_position_embeddings=256, **words)
    model, draw = native(folder), random.Random(17)
    cache, owners = (
        model.new_cache(),
        [sequence(key, draw.choices(range(16, VOCABULARY), k=n)) for key, n in enumerate((100, 130))],
    )
    with threads(count):
        for upto in (70, 99):
            score(model, cache, [missing(cache, owner, upto=upto) for owner in owners])
            cache.commit([Verdict()] * 2)
        for _ in range(2):
            trees = [DraftTree((owner.root, *range(11, 25)), (-1, 0, 0, *range(2, 14))) for owner in owners]
            got = score(model, cache, [missing(cache, *pair) for pair in zip(owners, trees, strict=True)]).logits.split(15)
            for owner, tree, rows in zip(owners, trees, got, strict=True):
                assert float((rows - expected(reference, owner.tokens, tree)).abs().max()) < TOLERANCE
            verdicts = [accept(tree, tree.path(14), 20) for tree in trees]
            cache.commit(verdicts)
            for owner, verdict in zip(owners, verdicts, strict=True):
                owner.commit(verdict.tokens, ())
