"""The library's front door: batches, streams beside each other, requests that fail or are left."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline import LLM, SamplingParams
from paceline.engine.engine import RequestError
from tiny import save_tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    save_tiny(made / "draft", 3, disturbed=0.3)
    return save_tiny(made / "target", 3)


@pytest.fixture
def llm(folder: Path) -> LLM:
    return LLM(str(folder), "ngram:min=1")


PARAMS = SamplingParams(max_tokens=12, temperature=1.0, seed=4)


def idle(llm: LLM) -> bool:
    """Nothing is left of any request."""
    engine = llm.engine
    return not engine.has_work and engine.speculative.cache.held_bytes == 0 and not llm._inboxes


def test_prompts_may_be_text_or_ids_and_answers_keep_their_order(llm: LLM) -> None:
    ids = llm.encode("the thin")
    together = llm.generate(["the thin", ids, "in"], [PARAMS, PARAMS, PARAMS.model_copy(update={"seed": 5})])
    assert together[0].token_ids == together[1].token_ids
    assert llm.generate(ids, PARAMS)[0].token_ids == together[0].token_ids
    assert together[2].seed == 5
    assert together[0].prompt_tokens == len(ids)
    assert idle(llm)


def test_a_seed_is_drawn_and_reported_where_none_was_given(llm: LLM) -> None:
    first = llm.generate("the", PARAMS.model_copy(update={"seed": None}))[0]
    again = llm.generate("the", PARAMS.model_copy(update={"seed": first.seed}))[0]
    assert first.token_ids == again.token_ids


def test_streams_beside_each_other_lose_nothing(llm: LLM) -> None:
    alone = [llm.generate(prompt, PARAMS)[0].text for prompt in ("the", "in")]
    one, two = llm.stream("the", PARAMS), llm.stream("in", PARAMS)
    first, second = [next(one)], [next(two)]
    between = llm.generate("the", PARAMS)[0].text
    second += list(two)
    first += list(one)
    assert [first[-1].text, second[-1].text] == alone
    assert between == alone[0]
    assert [len(p.text) for p in first] == sorted(len(p.text) for p in first)
    assert idle(llm)


def test_a_stream_that_is_left_ends_its_request(llm: LLM) -> None:
    stream = llm.stream("the", PARAMS)
    sequence = next(stream).sequence
    stream.close()
    assert sequence.finish_reason == "abort"
    assert idle(llm)


def test_a_bad_prompt_among_good_ones_leaves_nothing_behind(llm: LLM) -> None:
    with pytest.raises(RequestError, match="vocabulary"):
        llm.generate(["the", [10**6]], PARAMS)
    with pytest.raises(RequestError, match="empty"):
        llm.generate([[]], PARAMS)
    with pytest.raises(RequestError, match="2 prompts came with 1"):
        llm.generate(["the", "in"], [PARAMS])
    assert idle(llm)


def test_another_drafter_ends_what_was_in_flight(llm: LLM) -> None:
    stream = llm.stream("the", PARAMS)
    sequence = next(stream).sequence
    llm.use("none")
    assert sequence.finish_reason == "abort"
    assert [p.sequence is sequence for p in stream] in ([], [True])
    assert llm.draft_name == "none"


def test_a_draft_with_a_smaller_vocabulary_drafts_only_what_it_can_read(folder: Path, tmp_path: Path) -> None:
    """Checkpoints of one tokenizer may round their vocabulary differently."""
    wide = save_tiny(tmp_path / "wide", 3, vocab_size=300)
    llm = LLM(str(wide), f"model:{folder.parent / 'draft'}")
    for prompt in ([5, 280, 7], [5, 60, 7]):
        drafted = llm.generate(prompt, PARAMS)[0]
        llm.use("none")
        assert llm.generate(prompt, PARAMS)[0].token_ids == drafted.token_ids
        llm.use(f"model:{folder.parent / 'draft'}")


def test_an_interrupted_step_leaves_the_texts_right(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = llm.generate("the", PARAMS)[0].text
    stream = llm.stream("the", PARAMS)
    other = llm.stream("in", PARAMS)
    next(stream)
    next(other)
    cache = llm.engine.speculative.cache

    def interrupted(verdicts):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(cache, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(other)
    assert list(stream)[-1].text == alone


def test_tau_counts_what_the_answer_holds(folder: Path) -> None:
    llm = LLM(str(folder), f"model:{folder},depth=8")
    plain = llm.generate("the thin", SamplingParams(max_tokens=12))[0]
    assert plain.speculation.emitted_tokens == len(plain.token_ids)
    cut = llm.generate("the thin", SamplingParams(max_tokens=12, stop_token_ids=frozenset({plain.token_ids[4]})))[0]
    assert cut.speculation.emitted_tokens == len(cut.token_ids)
    assert cut.speculation.accepted_tokens >= len(cut.token_ids) - 1
    assert cut.sources == ["model"] * len(cut.token_ids), "the token that ended the text was drafted as well"
