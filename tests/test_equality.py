"""The same text from the embedded model with every drafter, however requests are batched, cached, cut into chunks and preempted.

Every drafter in every setting: in the quick suite a few prompts and settings, in `make test-all` 200 prompts and all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import pytest

from paceline.engine.engine import Engine
from paceline.engine.llm import LLM
from paceline.engine.prompts import all_prompts
from paceline.engine.scheduler import Limits
from paceline.models.base import WEIGHTS
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from test_lossless import covering, edited

DRAFTS = [
    *("ngram", "suffix", "unigram:width=8", "bigram", "lookahead", "jacobi", "recycle", "reference", "auto"),
    "model:paceline-14m-draft,width=2",
    "model:paceline-14m-draft,tree=dynamic,nodes=8,width=3",
    "ngram^model:paceline-14m-draft",
]
TOKENS = 64
SHARED = "The little dog ran after the red ball and the cat sat down on the mat to look at the birds in the old tree. " * 3
BATCHES, ROOMS, CHUNKS, PREFIXES, TEMPERATURES = (1, 2, 3, 8, 16), ("ample", "tight"), (5, 512), (64, 1 << 20), (0.0, 0.9)


@dataclass(frozen=True)
class Setting:
    """prefix: length of the shortest prefix that requests share, in tokens."""

    batch: int
    room: str
    chunk: int
    prefix: int
    temperature: float


EVERY = [Setting(*one) for one in product(BATCHES, ROOMS, CHUNKS, PREFIXES, TEMPERATURES)]
COVER = covering(EVERY)


def a_few(at: int) -> list[Setting]:
    """The quick suite's settings of the `at`-th draft: the next three of the cover."""
    return [COVER[place % len(COVER)] for place in range(3 * at, 3 * at + 3)]


FEW, MANY = 6, 200
QUICK = [pytest.param(draft, FEW, a_few(at), id=draft) for at, draft in enumerate(DRAFTS)]
WHOLE = [pytest.param(draft, MANY, EVERY, id=f"{draft}-every", marks=pytest.mark.full) for draft in DRAFTS]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(draft="none")


def prompts(llm: LLM, count: int) -> list[list[int]]:
    """Beginnings of the built-in prompts; every third one is preceded by the same shared text."""
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
    """By temperature and number of prompts, filled on demand: one request at a time, nothing shared, nothing drafted."""
    return {}


def said(engine: Engine, asked: list[list[int]], temperature: float, resembling: list[list[int]] | None = None) -> list[Sequence]:
    """resembling: expected answers; each request gets an edited copy of its own as the reference."""
    references = [edited(answer) for answer in resembling] if resembling else [[]] * len(asked)
    params = [SamplingParams(max_tokens=TOKENS, temperature=temperature, seed=at) for at in range(len(asked))]
    sequences = [
        engine.add(prompt, one, reference=reference) for prompt, one, reference in zip(asked, params, references, strict=True)
    ]
    while engine.has_work:
        engine.step()
    engine.forget()
    return sequences


def texts(sequences: list[Sequence]) -> list[list[int]]:
    return [sequence.generated for sequence in sequences]


@pytest.mark.parametrize(("draft", "count", "settings"), QUICK + WHOLE)
def test_every_drafter_and_engine_setting_gives_the_text_of_plain_decoding(
    llm: LLM, plain: dict[tuple[float, int], list[list[int]]], draft: str, count: int, settings: list[Setting]
) -> None:
    asked, accepted = prompts(llm, count), 0
    for temperature in TEMPERATURES:
        if (temperature, count) not in plain:
            llm.use("none")
            alone = Engine(llm.engine.speculative, llm.tokenizer, Limits(1, 512, 65536, 1 << 20))
            plain[temperature, count] = texts(said(alone, asked, temperature))
    llm.use(draft, "fixed")
    for one in settings:
        cache_tokens = 65536 if one.room == "ample" else max(map(len, asked)) + TOKENS + 64
        engine = Engine(llm.engine.speculative, llm.tokenizer, Limits(one.batch, one.chunk, cache_tokens, one.prefix))
        wanted = plain[one.temperature, count]
        found = said(engine, asked, one.temperature, wanted if draft == "reference" else None)
        assert texts(found) == wanted, one
        if one.room == "tight" and one.batch > (2 if count > FEW else 3):
            assert engine.scheduler.preemptions > 0
        if one.room == "ample":
            assert any(sequence.cached_tokens for sequence in found) == (one.prefix == 64)
        accepted += sum(sequence.speculation.accepted_tokens for sequence in found)
    assert accepted > 0


@pytest.mark.parametrize("weights", WEIGHTS)
def test_drafts_keep_the_text_of_plain_decoding_in_every_weight_format(weights: str) -> None:
    llm = LLM(draft="none", weights=weights)
    asked = prompts(llm, 4)
    alone = Engine(llm.engine.speculative, llm.tokenizer, Limits(1, 512, 65536, 1 << 20))
    wanted = {temperature: texts(said(alone, asked, temperature)) for temperature in TEMPERATURES}
    for at, draft in enumerate(("auto", "model:paceline-14m-draft,width=2")):
        llm.use(draft, "fixed")
        for one in a_few(2 * WEIGHTS.index(weights) + at):
            engine = Engine(llm.engine.speculative, llm.tokenizer, Limits(one.batch, one.chunk, 65536, one.prefix))
            assert texts(said(engine, asked, one.temperature)) == wanted[one.temperature], (draft, one)
