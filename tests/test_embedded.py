"""The embedded models: equality with transformers on real text, and enough tokens per step."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.engine.check import compare, verdict
from paceline.engine.prompts import PROMPTS, all_prompts
from paceline.models.embedded import DEFAULT, embedded_models

pytestmark = pytest.mark.skipif(not embedded_models(), reason="the embedded weights are not part of this checkout")

SPECS = ("none", "ngram", "model:paceline-14m-draft", "model:paceline-14m-draft,depth=3,width=2", "auto")
LONGEST = 48


@cache
def llm() -> LLM:
    return LLM(draft="none")


@cache
def greedy_of_transformers() -> list[list[int]]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = llm().path
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(path)
    texts = []
    for prompt in all_prompts():
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=LONGEST)
        texts.append(out[0, ids.shape[1] :].tolist())
    return texts


@pytest.mark.parametrize(("batch", "chunk"), [(1, 64), (2, 7), (3, 1), (8, 64)])
@pytest.mark.parametrize("spec", SPECS)
def test_greedy_text_is_that_of_transformers(spec: str, batch: int, chunk: int) -> None:
    engine = LLM(DEFAULT, spec, batch=batch, prefill_chunk=chunk)
    done = engine.generate(all_prompts(), SamplingParams(max_tokens=LONGEST))
    assert [one.token_ids for one in done] == greedy_of_transformers()


@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec != "none"])
def test_sampled_text_is_that_of_plain_decoding(spec: str, temperature: float) -> None:
    params = SamplingParams(max_tokens=LONGEST, temperature=temperature, top_p=0.9, seed=11)
    rows = list(compare(llm(), spec, all_prompts(), params))
    assert [row.plain.token_ids for row in rows] == [row.speculative.token_ids for row in rows]
    assert verdict(rows) in ("lossless", "inconclusive")


@pytest.mark.parametrize("domain", ["e2e", "sql"])
def test_the_embedded_draft_doubles_the_tokens_per_forward(domain: str) -> None:
    """tau over all prompts of the domain, greedy: it depends on the models, not on the machine."""
    engine = LLM(draft='model:"paceline-14m-draft"')
    done = engine.generate(list(PROMPTS[domain]), SamplingParams(max_tokens=96))
    emitted = sum(one.speculation.emitted_tokens for one in done)
    assert emitted / sum(one.speculation.steps for one in done) >= 2.2


def test_the_shipped_files_are_small_and_whole() -> None:
    shipped = {model.name: model for model in embedded_models()}
    assert shipped["paceline-14m"].draft == "paceline-14m-draft"
    assert sum(model.size_bytes for model in shipped.values()) <= 60e6
    for model in shipped.values():
        names = {file.name for file in model.path.iterdir()}
        assert names >= {"config.json", "model.safetensors", "tokenizer.json", "README.md", "recipe.json"}


def test_chat_answers_in_the_template_it_was_trained_on() -> None:
    engine = llm()
    ids = engine.tokenizer.chat([{"role": "user", "content": "Tell me a short story."}])
    assert engine.generate([ids], SamplingParams(max_tokens=24))[0].text.strip()
