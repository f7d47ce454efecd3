"""Tokens per step of the target on the embedded model, greedy: it depends on method and text, not on the machine."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random

import pytest

import following
from paceline import LLM, SamplingParams
from paceline.bench.tasks import load_tasks
from paceline.datastore import build
from paceline.drafters.base import Drafter
from paceline.drafters.ngram import NgramDrafter, Options as NgramOptions
from paceline.drafters.suffix import Options as SuffixOptions, SuffixDrafter
from shared import DATA, WHY

TOKENS = 96


@cache
def llm() -> LLM:
    return LLM(draft="none", policy="fixed")


def tau(draft: str, task: str) -> float:
    """One request after another; the drafter forgets all texts before each."""
    engine = llm()
    engine.use(draft)
    emitted = taken = 0
    for item in load_tasks(task)[0].items:
        engine.engine.speculative.drafter.forget()
        count = engine.generate(item.texts[0], SamplingParams(max_tokens=TOKENS))[0].speculation
        emitted, taken = emitted + count.emitted_tokens, taken + count.steps
    return emitted / taken


@pytest.mark.parametrize(
    ("draft", "task", "least"),
    [
        ("ngram", "sql", 1.15),
        ("lookahead", "e2e", 1.2),
        ("lookahead", "sql", 1.2),
    ],
)
def test_ngram_and_lookahead_reach_their_least_tau_on_their_tasks(draft: str, task: str, least: float) -> None:
    assert tau(draft, task) >= least


@pytest.mark.parametrize(("drafter", "least"), [(NgramDrafter(NgramOptions()), 3.5), (SuffixDrafter(SuffixOptions()), 3.5)])
def test_a_long_text_repeated_with_edits_is_followed(drafter: Drafter, least: float) -> None:
    """One word in thirty is changed or missing. The text is given in advance: the embedded model cannot copy."""
    chance = Random(5)
    words = Path(__file__).read_text(encoding="utf-8").split(" ")
    edited = [chance.choice((word, word, word[::-1], "")) if chance.random() < 1 / 15 else word for word in words]
    source, answer = (llm().tokenizer.encode(" ".join(text), add_special=False)[:1200] for text in (words, edited))
    assert source != answer
    assert following.tau(following.steps(drafter, following.request(source), answer)) >= least


def test_a_reference_with_one_word_changed_reaches_its_least_tau() -> None:
    """The reference is each answer with one word in the middle changed."""
    engine = llm()
    emitted = taken = 0
    for item in load_tasks("story")[0].items:
        engine.use("none")
        answer = engine.generate(item.texts[0], SamplingParams(max_tokens=TOKENS))[0].text.split(" ")
        answer[len(answer) // 2] = "Wednesday"
        engine.use("reference")
        count = engine.generate(item.texts[0], SamplingParams(max_tokens=TOKENS), reference=" ".join(answer))[0].speculation
        emitted, taken = emitted + count.emitted_tokens, taken + count.steps
    assert emitted / taken >= 3.5


@pytest.mark.skipif(not DATA.is_dir(), reason=WHY)
def test_a_datastore_of_the_training_text_finds_more_than_the_text_itself(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (DATA / "e2e" / "train.jsonl").read_text(encoding="utf-8").splitlines()[:8000]]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": f"mr: {row['mr']} => text {row['ref']}"}) + "\n" for row in rows))
    tokenizer = llm().tokenizer
    encode = lambda text: tokenizer.encode(text, add_special=False)  # noqa: E731
    build([corpus], tmp_path / "store", encode, tokenizer.vocab_size, tokenizer.fingerprint, lambda *said: None)
    assert tau(f'datastore:"{tmp_path / "store"}"', "e2e") > 1.2 * tau("ngram", "e2e")
