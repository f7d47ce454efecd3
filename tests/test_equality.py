"""The same text from the embedded model, whoever drafts, however requests are batched, cached, cut into chunks and preempted.

Every drafter in every setting: in the quick suite a few prompts and settings, in `make test-all` 200 prompts and all of them.
"""

from __future__ import annotations

from itertools import product

import pytest

from paceline.engine.engine import Engine
from paceline.engine.llm import LLM
from paceline.engine.prompts import all_prompts
from paceline.engine.scheduler import Limits
from paceline.models.base import WEIGHTS
from paceline.params import SamplingParams

DRAFTS = [
    *("ngram", "suffix", "unigram", "bigram", "lookahead", "jacobi", "recycle", "reference", "auto"),
    "model:paceline-14m-draft,width=2",
    "model:paceline-14m-draft,tree=dynamic,nodes=8,width=3",
    "ngram^model:paceline-14m-draft",
]
TOKENS = 64
SHARED = "The little dog ran after the red ball and the cat sat down on the mat to look at the birds in the old tree. " * 3
BATCHES, ROOMS, CHUNKS, PREFIXES, TEMPERATURES = (1, 2, 3, 8, 16), ("ample", "tight"), (5, 512), (64, 1 << 20), (0.0, 0.9)
EVERY = list(product(BATCHES, ROOMS, CHUNKS, PREFIXES, TEMPERATURES))
A_FEW = [EVERY[13], EVERY[37], EVERY[62]]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(draft="none")


def prompts(llm: LLM, count: int) -> list[list[int]]:
    """Beginnings of the built-in prompts, every third of them behind a text that all of those share."""
    texts = [llm.encode(text) for text in all_prompts()]
    shared = llm.encode(SHARED)
    found = []
    for at in range(count):
        text = texts[at % len(texts)]
        own = text[: max(len(text) - at // len(texts), 2)]
        found.append(shared + own if at % 3 == 2 else own)
    return found


@pytest.fixture(scope="module")
def plain() -> dict[tuple[float, int], list[list[int]]]:
    """By temperature and number of prompts, filled as it is asked: one at a time, nothing shared, nothing drafted."""
    return {}


def said(engine: Engine, asked: list[list[int]], temperature: float) -> list[list[int]]:
    params = [SamplingParams(max_tokens=TOKENS, temperature=temperature, seed=at) for at in range(len(asked))]
    sequences = [engine.add(prompt, one) for prompt, one in zip(asked, params, strict=True)]
    while engine.has_work:
        engine.step()
    engine.forget()
    return [sequence.generated for sequence in sequences]


@pytest.mark.parametrize(
    ("count", "settings"), [(6, A_FEW), pytest.param(200, EVERY, marks=pytest.mark.full)], ids=["few", "every"]
)
@pytest.mark.parametrize("draft", DRAFTS)
def test_the_text_of_plain_decoding(
    llm: LLM, plain: dict[tuple[float, int], list[list[int]]], draft: str, count: int, settings: list[tuple]
) -> None:
    asked = prompts(llm, count)
    for temperature in TEMPERATURES:
        if (temperature, count) not in plain:
            llm.use("none")
            alone = Engine(llm.engine.speculative, llm.tokenizer, Limits(1, 512, 65536, 1 << 20))
            plain[temperature, count] = said(alone, asked, temperature)
    llm.use(draft, "fixed")
    for batch, room, chunk, prefix, temperature in settings:
        cache_tokens = 65536 if room == "ample" else max(map(len, asked)) + TOKENS + 64
        engine = Engine(llm.engine.speculative, llm.tokenizer, Limits(batch, chunk, cache_tokens, prefix))
        assert said(engine, asked, temperature) == plain[temperature, count], (batch, room, chunk, prefix, temperature)
        if room == "tight" and batch > 2 and count > 6:
            assert engine.scheduler.preemptions > 0
    assert llm.engine.speculative.forwards > 0


@pytest.mark.parametrize("weights", WEIGHTS)
def test_the_text_of_plain_decoding_in_every_format(weights: str) -> None:
    llm = LLM(draft="none", weights=weights)
    asked = prompts(llm, 4)
    alone = Engine(llm.engine.speculative, llm.tokenizer, Limits(1, 512, 65536, 1 << 20))
    wanted = {temperature: said(alone, asked, temperature) for temperature in TEMPERATURES}
    for draft in ("auto", "model:paceline-14m-draft,width=2"):
        llm.use(draft, "fixed")
        for batch, _, chunk, prefix, temperature in A_FEW:
            engine = Engine(llm.engine.speculative, llm.tokenizer, Limits(batch, chunk, 65536, prefix))
            assert said(engine, asked, temperature) == wanted[temperature], (draft, batch, chunk, prefix, temperature)
