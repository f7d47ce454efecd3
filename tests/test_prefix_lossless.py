"""Every drafter on every cache: texts copied, taken over, waited for or preempted equal plain decoding."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from paceline.cache.pages import PagePool
from paceline.compose import build_drafter, build_policy, build_verifier
from paceline.drafters.base import Surroundings
from paceline.engine.engine import Engine
from paceline.engine.scheduler import Limits
from paceline.models.tokenizer import Tokenizer
from paceline.params import SamplingParams
from paceline.registry import CACHES
from paceline.sequence import Sequence
from paceline.spec import SpecError
from paceline.speculative import Speculative
from test_lossless import SPECS, checkpoints, datastore, edited, loaded, needs_trees, prompts

ALONE = Limits(batch=1, chunk=512, shortest_prefix=10_000)
CROWDED = Limits(batch=3, chunk=7, cache_tokens=120, shortest_prefix=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


def engine_of(folder: Path, spec: str, store: str, limits: Limits) -> Engine:
    target_path, draft_path = checkpoints(folder)
    target, tokenizer = loaded(target_path, store), Tokenizer(target_path)
    rule = build_verifier("match")
    around = Surroundings(target, tokenizer, lambda path: (loaded(path, "dense"), Tokenizer(path)), rule.prefers, rule.amateur)
    found = {"draft": draft_path, "datastore": datastore(folder) if "{datastore}" in spec else ""}
    speculative = Speculative(target, build_drafter(spec.format(**found), around), rule, build_policy("fixed"))
    return Engine(speculative, tokenizer, limits)


@cache
def plain(folder: Path, prompt: tuple[int, ...], temperature: float, seed: int) -> list[int]:
    """The answer of a new engine that serves only this request."""
    engine = engine_of(folder, "none", "dense", ALONE)
    sequence = engine.add(prompt, params_of(temperature, seed))
    while engine.has_work:
        engine.step()
    return sequence.generated


def params_of(temperature: float, seed: int) -> SamplingParams:
    return SamplingParams(max_tokens=20, temperature=temperature, seed=seed)


def served(engine: Engine, asked: list[tuple[list[int], SamplingParams]], references: list[list[int]]) -> list[Sequence]:
    """Serves all at once; a first request, whose prompt others wait for, is aborted on the way."""
    left = engine.add(asked[0][0], asked[0][1])
    sequences = [engine.add(*one, reference=like) for one, like in zip(asked, references, strict=True)]
    for _ in range(3):
        engine.step()
    engine.abort(left)
    while engine.has_work:
        engine.step()
    return sequences


WAYS = [("panels", 0.0), *((store, 0.9) for store in CACHES)]
PAGED = [(spec, "paged", 0.9) for spec in SPECS if spec == "none" or "tree=" in spec]


@pytest.mark.parametrize(("spec", "store", "temperature"), [*((spec, *way) for spec in SPECS for way in WAYS), *PAGED])
def test_shared_prefixes_keep_the_text_of_plain_decoding(folder: Path, spec: str, store: str, temperature: float) -> None:
    if store == "replay" and needs_trees(spec):
        with pytest.raises(SpecError, match="only chains"):
            engine_of(folder, spec, store, CROWDED)
        return
    engine = engine_of(folder, spec, store, CROWDED)
    some = prompts()[3:5]
    # choices of one prompt; then prompts that continue an answer, or part of one
    first = [(prompt, params_of(temperature, seed)) for prompt in some for seed in (1, 2, 3)]
    answers = [plain(folder, tuple(prompt), temperature, one.seed or 0) for prompt, one in first]
    then = [
        ([*first[0][0], *answers[0], 9, 8], params_of(temperature, 4)),
        ([*first[0][0], *answers[0][:5], 7, 6], params_of(temperature, 5)),
        ([*first[3][0], *answers[3], 9, 8], params_of(temperature, 6)),
        first[4],
    ]
    later = [plain(folder, tuple(prompt), temperature, one.seed or 0) for prompt, one in then]
    for asked, wanted in ((first, answers), (then, later)):
        references = [edited(answer) if "reference" in spec else [] for answer in wanted]
        sequences = served(engine, asked, references)
        assert [sequence.generated for sequence in sequences] == wanted
        assert any(sequence.cached_tokens for sequence in sequences)
    assert engine.scheduler.preemptions
    engine.forget()
    assert engine.speculative.cache.held_bytes == 0


def test_writing_a_shared_page_in_place_is_caught_by_the_test_of_texts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages can be shared partly: this shows that the test above writes behind a shared part of a page."""
    monkeypatch.setattr(PagePool, "shared", lambda self, page: False)
    with pytest.raises(AssertionError):
        test_shared_prefixes_keep_the_text_of_plain_decoding(folder, *PAGED[-1])


@pytest.mark.parametrize("store", CACHES)
def test_a_prompt_whose_log_probabilities_are_told_is_read_whole(folder: Path, store: str) -> None:
    engine = engine_of(folder, "none", store, CROWDED)
    prompt = prompts()[3]
    told = params_of(0.0, 1).model_copy(update={"prompt_logprobs": 0})
    sequences = []
    for params in (told, params_of(0.0, 1), told):
        sequences.append(engine.add(prompt, params))
        while engine.has_work:
            engine.step()
    one, between, other = sequences
    assert (one.cached_tokens, other.cached_tokens) == (0, 0)
    assert between.cached_tokens
    assert [known.token for known in other.prompt_logprobs if known] == prompt[1:]
    assert [known.token for known in one.prompt_logprobs if known] == prompt[1:]
