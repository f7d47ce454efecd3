"""The central test: every drafter, every cache and every way of batching gives the text of plain decoding.

The cases come from the registries: a new drafter is a file and a row, and is tested automatically. `make test` runs a
pairwise cover of the ways to run an engine; the marker `full` runs their whole product.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from grammars import SENTENCE
from paceline.cache.base import Branching
from paceline.cache.paged import PagedCache
from paceline.compose import build_drafter, build_policy, build_verifier
from paceline.datastore import build
from paceline.drafters.base import Surroundings
from paceline.engine.engine import Engine
from paceline.engine.scheduler import Limits
from paceline.models.base import LanguageModel
from paceline.models.load import load_model
from paceline.models.stateful import ReplayModel, StatefulModel
from paceline.models.tokenizer import Tokenizer
from paceline.params import Grammar, SamplingParams
from paceline.registry import CACHES, DRAFTERS, POLICIES, VERIFIERS
from paceline.spec import SpecError
from paceline.speculative import Speculative
from test_registry import classes
from tiny import save_tiny

AnyWay = TypeVar("AnyWay")
LONGEST = 40
SPECS = [spec for row in DRAFTERS.values() for spec in row.examples] + [
    "ngram:max=2,min=1+model:{draft},depth=3",
    "ngram:max=2,min=1^model:{draft},depth=4",
    "model:{draft},tree=dynamic,nodes=6,depth=3+model:{draft},samples=2,depth=3+lookahead:3,3,2",
]
EXACT = [row.example for name, row in VERIFIERS.items() if name != "match" and build_verifier(row.example).exactness]
PARAMS = {
    "greedy": SamplingParams(max_tokens=LONGEST),
    "sampled": SamplingParams(max_tokens=LONGEST, temperature=1.0, seed=7),
    "top-p": SamplingParams(max_tokens=LONGEST, temperature=0.7, top_p=0.9, seed=8),
    "everything": SamplingParams(
        max_tokens=LONGEST, temperature=0.9, top_k=40, top_p=0.95, min_p=0.01, repetition_penalty=1.2,
        presence_penalty=0.3, frequency_penalty=0.2, logit_bias={40: 1.5, 41: -3.0}, min_tokens=5, seed=9,
    ),
    "grammar": SamplingParams(
        max_tokens=LONGEST, temperature=0.9, top_p=0.95, seed=10, grammar=Grammar(kind="regex", text=SENTENCE)
    ),
}  # fmt: skip

SIX = dict.fromkeys(range(40, 46), 100.0)
OF_SIX = {
    "greedy of six": SamplingParams(max_tokens=LONGEST, logit_bias=SIX),
    "sampled of six": SamplingParams(max_tokens=LONGEST, temperature=1.0, seed=7, logit_bias=SIX),
}
"""Answers limited to six words, which repeat: every drafter finds something to draft."""


@dataclass(frozen=True)
class Way:
    """One way to run an engine."""

    batch: int
    chunk: int
    cache_tokens: int
    cache: str
    params: str
    policy: str = "fixed"


BATCHES, CHUNKS, ROOMS = (1, 2, 3, 8), (1, 7, 64), (100_000, 110)
POLICIES_RUN = [row.example for row in POLICIES.values()]
EVERY_WAY = [Way(*choice) for choice in product(BATCHES, CHUNKS, ROOMS, CACHES, PARAMS, POLICIES_RUN)]


def covering(ways: list[AnyWay]) -> list[AnyWay]:
    """A greedy pairwise cover: every two choices of any two dimensions meet in at least one way."""

    def pairs(way: AnyWay) -> set[tuple[tuple[int, object], tuple[int, object]]]:
        values = list(enumerate(vars(way).values()))
        return {(a, b) for i, a in enumerate(values) for b in values[i + 1 :]}

    found = {way: pairs(way) for way in ways}
    missing = set().union(*found.values())
    chosen = []
    while missing:
        way = max(ways, key=lambda w: len(found[w] & missing))
        chosen.append(way)
        missing -= found[way]
    return chosen


COVER = covering(EVERY_WAY)


@cache
def checkpoints(folder: Path) -> tuple[str, str]:
    """A tiny target and a draft that often agrees with it, on disk."""
    target, draft = folder / "target", folder / "draft"
    if not target.exists():
        save_tiny(target, 3)
        save_tiny(draft, 3, disturbed=0.3)
    return str(target), str(draft)


@cache
def datastore(folder: Path) -> str:
    """Half of the answers of plain decoding, greedy and sampled, so that lookups find something."""
    target = checkpoints(folder)[0]
    told = [ids for params in ("greedy", "sampled") for ids in plain(folder, params)[::2]]
    texts = folder / "told.jsonl"
    texts.write_text("".join(json.dumps({"text": " ".join(map(str, ids))}) + "\n" for ids in told))
    size, fingerprint = Tokenizer(target).vocab_size, Tokenizer(target).fingerprint
    build([texts], folder / "datastore", lambda text: [*map(int, text.split())], size, fingerprint, lambda *_: None)
    return str(folder / "datastore")


@cache
def loaded(path: str, store: str) -> LanguageModel:
    """The target with the cache `store`. paged: the pages that GPU kernels read, with a model that needs no kernel."""
    if store == "paged":
        model = load_model(path, native=False)
        vars(model)["new_cache"] = lambda: PagedCache(4, page_size=4, grows=True)
        return model
    if store in ("dense", "panels"):
        return load_model(path, native=store == "panels")
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").eval()
    name, longest, eos = "tiny", model.config.max_position_embeddings, frozenset({model.config.eos_token_id})
    if store == "replay":
        return ReplayModel(model, name, longest, eos)
    return StatefulModel(model, name, longest, Branching.TREE, eos)


def prompts() -> list[list[int]]:
    """Eight prompts of mixed lengths; some repeat themselves, so that lookup drafters have something to find."""
    noise = torch.Generator().manual_seed(5)
    made = []
    for length in (1, 3, 11, 24, 33, 17, 8, 40):
        words = torch.randint(3, 200, (max(length // 2, 1),), generator=noise).tolist()
        made.append([1, *(words * 3)][:length])
    return made


def edited(answer: list[int]) -> list[int]:
    """A text similar to an answer: one token left out, another one changed."""
    return [*answer[:6], *answer[7:15], 5, *answer[16:]] if answer else []


def run(folder: Path, spec: str, way: Way, verify: str = "match") -> tuple[list[list[int]], Engine]:
    """The answer's token ids for every prompt, and the engine used."""
    target_path, draft_path = checkpoints(folder)
    target, tokenizer = loaded(target_path, way.cache), Tokenizer(target_path)
    rule = build_verifier(verify)
    surroundings = Surroundings(
        target, tokenizer, lambda path: (loaded(path, "dense"), Tokenizer(path)), rule.prefers, rule.amateur
    )
    found = {"draft": draft_path, "datastore": datastore(folder) if "{datastore}" in spec else ""}
    drafter = build_drafter(spec.format(**found), surroundings)
    speculative = Speculative(target, drafter, rule, build_policy(way.policy))
    engine = Engine(speculative, tokenizer, Limits(way.batch, way.chunk, way.cache_tokens))
    params = (PARAMS | OF_SIX)[way.params]
    answers = plain(folder, way.params) if spec.startswith("reference") else [[]] * len(prompts())
    sequences = [
        engine.add(prompt, params.model_copy(update={"seed": (params.seed or 0) + i}), reference=edited(answer))
        for i, (prompt, answer) in enumerate(zip(prompts(), answers, strict=True))
    ]
    while engine.has_work:
        engine.step()
    return [sequence.generated for sequence in sequences], engine


@cache
def plain(folder: Path, params: str) -> list[list[int]]:
    """Plain decoding, one request at a time, whole prompts: the reference of all tests."""
    return run(folder, "none", Way(1, 512, 100_000, "dense", params))[0]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


def needs_trees(spec: str) -> bool:
    """Whether a drafter of the spec declares that it needs trees."""
    kinds = [kind for name in DRAFTERS if name in re.split(r"[:+^]", spec) for kind in classes(name)]
    return any(kind.branching is Branching.TREE for kind in kinds)


def checked(folder: Path, spec: str, way: Way) -> Engine | None:
    """The engine that gave the right text; None if it refused, as expected, to draft trees for a target limited to chains."""
    if way.cache == "replay" and needs_trees(spec):
        with pytest.raises(SpecError, match="only chains"):
            run(folder, spec, way)
        return None
    ids, engine = run(folder, spec, way)
    assert ids == plain(folder, way.params)
    return engine


@pytest.mark.parametrize("way", COVER, ids=str)
@pytest.mark.parametrize("spec", SPECS)
def test_text_is_that_of_plain_decoding(folder: Path, spec: str, way: Way) -> None:
    engine = checked(folder, spec, way)
    if engine and way.cache_tokens < 1000 and way.batch > 2:
        assert engine.scheduler.preemptions > 0, "the small cache was meant to force preemption"


@pytest.mark.full
@pytest.mark.parametrize("way", [way for way in EVERY_WAY if way.policy == "fixed" and way not in COVER], ids=str)
@pytest.mark.parametrize("spec", SPECS)
def test_text_is_that_of_plain_decoding_in_every_way(folder: Path, spec: str, way: Way) -> None:
    checked(folder, spec, way)


@pytest.mark.parametrize("verify", EXACT)
@pytest.mark.parametrize("spec", [spec for spec in SPECS if "dynamic" not in spec])
def test_every_exact_rule_keeps_the_greedy_text(folder: Path, spec: str, verify: str) -> None:
    assert run(folder, spec, Way(3, 7, 110, "panels", "greedy"), verify)[0] == plain(folder, "greedy")


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec != "none"])
@pytest.mark.parametrize("params", ["greedy", "sampled"])
def test_drafts_are_really_accepted(folder: Path, spec: str, params: str) -> None:
    """Without this the equality above could hold because hardly anything was drafted."""
    # without a grammar nothing is forced; recycle and datastore learnt from answers without a bias
    unbiased = spec.startswith(("recycle", "datastore"))
    name = "grammar" if spec.startswith("grammar") else params if unbiased else f"{params} of six"
    _, engine = run(folder, spec, Way(1, 64, 100_000, "dense", name))
    assert engine.speculative.forwards < (0.95 if spec.startswith("recycle") else 0.8) * sum(map(len, plain(folder, name)))


def test_plain_decoding_is_that_of_transformers(folder: Path) -> None:
    """Greedy, float32: token for token what `generate` of the untouched model gives."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoints(folder)[0], attn_implementation="eager").eval()
    for prompt, ours in zip(prompts(), plain(folder, "greedy"), strict=True):
        theirs = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), do_sample=False, max_new_tokens=LONGEST,
            pad_token_id=0,
        )[0, len(prompt) :].tolist()  # fmt: skip
        assert ours == theirs


def test_seeds_decide_the_text(folder: Path) -> None:
    texts = {tuple(ids) for ids in plain(folder, "sampled")}
    assert len(texts) == len(prompts())
    again = run(folder, "none", replace(Way(1, 512, 100_000, "dense", "sampled")))[0]
    assert again == plain(folder, "sampled")
    shifted = PARAMS["sampled"].model_copy(update={"seed": 1234})
    PARAMS["other seed"] = shifted
    assert run(folder, "none", Way(1, 512, 100_000, "dense", "other seed"))[0] != plain(folder, "sampled")


def test_the_tiny_target_is_sharp_enough_to_test_anything(folder: Path) -> None:
    """On a near-uniform model lossy mutants would pass every test."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoints(folder)[0]).eval()
    logits = model(torch.tensor([prompts()[3]])).logits[0].detach()
    assert float(logits.softmax(-1).max(-1).values.mean()) > 0.2
