"""`x@y`: drafts with the model of x, its weights held in the format y; the text stays that of the target."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from paceline import compose
from paceline.compose import automatic
from paceline.drafters.model import ModelDrafter
from paceline.engine.llm import LLM
from paceline.models.base import WEIGHTS, ModelError
from paceline.params import SamplingParams
from paceline.spec import SpecError

DRAFT = 'model:"paceline-14m-draft",depth=3'
PROMPTS = ["The little dog", "name[The Punter], food[Indian] =>"]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(draft="none")


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_an_approximate_draft_leaves_the_text_as_it_is(llm: LLM, weights: str, temperature: float) -> None:
    params = SamplingParams(max_tokens=32, temperature=temperature, seed=5)
    llm.use("none")
    plain = [completion.token_ids for completion in llm.generate(PROMPTS, params)]
    llm.use(f"{DRAFT}@{weights}")
    drafter = llm.engine.speculative.drafter
    assert isinstance(drafter, ModelDrafter)
    assert drafter.model.weights == weights
    completions = llm.generate(PROMPTS, params)
    assert [completion.token_ids for completion in completions] == plain
    assert sum(completion.speculation.accepted_tokens for completion in completions) > 8


def test_a_weight_format_binds_tighter_than_plus_and_caret(llm: LLM) -> None:
    llm.use(f"ngram+{DRAFT}@int8")
    ngram, model = llm.engine.speculative.drafter.parts
    assert (ngram.name, model.name) == ("ngram", "model")
    assert isinstance(model, ModelDrafter)
    assert model.model.weights == "int8"
    llm.use(f"ngram^{DRAFT}@int8")
    assert llm.draft_name == "ngram^model"


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("ngram@int8", "'ngram' is none"),
        (f"{DRAFT}@kivi:4", "one weight format, fp32"),
        (f"{DRAFT}@int8:4", "one weight format"),
        (f"{DRAFT}@int8@int4", "one weight format"),
        (f"{DRAFT}@(ngram)", "one weight format"),
    ],
)
def test_a_spec_with_an_unusable_weight_format_is_refused_with_its_reason(llm: LLM, spec: str, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        llm.use(spec)


@pytest.mark.parametrize("packed", [True, False])
def test_auto_holds_its_draft_in_bytes_where_weights_are_packed(llm: LLM, monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    monkeypatch.setattr(compose, "packs_weights", lambda draft: packed)
    assert automatic(llm.path).endswith(",depth=8@w8a8" if packed else ",depth=8")
    assert automatic(llm.path, "smaller") == f'ngram+model:"smaller",depth=8{"@int8" if packed else ""}'


def test_auto_drafts_with_a_smaller_model_of_any_family(llm: LLM, tmp_path: Path) -> None:
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": llm.engine.speculative.target.vocab_size, "n_positions": 256}
    GPT2LMHeadModel(GPT2Config(**sizes, eos_token_id=0)).save_pretrained(tmp_path)
    for file in Path(llm.path).glob("tokenizer*"):
        shutil.copy(file, tmp_path)
    assert "@" not in automatic(llm.path, str(tmp_path))
    llm.use(f'auto:"{tmp_path}"')
    assert llm.draft_name == "ngram+model"


def test_auto_drafts_with_the_smaller_model_that_it_names(llm: LLM) -> None:
    llm.use('auto:"paceline-14m-draft"')
    speculative = llm.engine.speculative
    assert (llm.draft_name, speculative.policy.name) == ("ngram+model", "adaptive")
    with pytest.raises(SpecError, match="'auto' stands alone, or names a smaller model"):
        llm.use('auto:"paceline-14m-draft"+suffix')
    with pytest.raises(ModelError, match="no-such-model"):
        llm.use("auto:./no-such-model")
