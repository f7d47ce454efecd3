"""Drafters besides the spec's: extra ones, used without being named, and offered ones, which requests choose by name."""

from __future__ import annotations

import pytest

from paceline.engine.llm import LLM
from paceline.params import SamplingParams


@pytest.fixture
def llm() -> LLM:
    return LLM(draft="ngram", extra_drafters=["reference:prompt=no", "grammar"], offer=["lookahead", "suffix", "ngram"])


def test_requests_choose_their_drafters(llm: LLM) -> None:
    """One batch: the server's default drafter, a drafter chosen by name, none, and the default with one node; the same texts."""
    prompt, params = [12, 13, 14, 12, 13, 14, 12, 13], SamplingParams(max_tokens=40, ignore_eos=True)
    chosen = [None, frozenset({"lookahead"}), frozenset[str](), None]
    engine = llm.engine
    sequences = [engine.add(prompt, params) for _ in chosen]
    for sequence, drafters in zip(sequences, chosen, strict=True):
        sequence.drafters = drafters
    sequences[3].nodes = 1
    deepest = 0
    while engine.has_work:
        for progress in engine.step():
            if progress.sequence is sequences[3] and progress.outcome.tree is not None:
                deepest = max(deepest, progress.outcome.tree.candidates - 1)
    assert deepest == 1
    assert {*sequences[0].sources} <= {"", "ngram"}
    assert {*sequences[1].sources} == {"", "lookahead"}
    assert {*sequences[2].sources} == {""}
    assert sequences[2].speculation.draft_tokens == 0
    assert len({tuple(sequence.tokens) for sequence in sequences}) == 1


def test_a_drafter_that_is_named_and_also_offered_is_built_once(llm: LLM) -> None:
    drafter = llm.engine.speculative.drafter
    assert [part.name for part in drafter.parts] == ["reference", "grammar", "ngram", "lookahead", "suffix"]
    assert llm.draft_name == "ngram"
    assert llm.engine.speculative.on_request == {"lookahead", "suffix"}


def test_a_drafter_that_no_request_names_observes_nothing_unless_it_learns_from_all_answers(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = dict.fromkeys(("lookahead", "suffix"), 0)
    for part in llm.engine.speculative.drafter.parts:
        if part.name in told:
            seen = part.observe

            def observe(*step: object, name: str = part.name, seen: object = seen) -> None:
                told[name] += 1
                seen(*step)  # pyright: ignore[reportCallIssue]

            monkeypatch.setattr(part, "observe", observe)
    llm.generate("Once upon a time", SamplingParams(max_tokens=8))
    # `suffix` learns from the answers of all requests
    assert told["lookahead"] == 0 < told["suffix"]


def test_a_reference_is_drafted_from_without_being_asked_for(llm: LLM) -> None:
    params = SamplingParams(max_tokens=40)
    plain = llm.generate("Once upon a time", params)[0]
    again = llm.generate("Once upon a time", params, reference=plain.text)[0]
    assert again.token_ids == plain.token_ids
    assert "reference" in again.sources
    assert "reference" not in plain.sources


def test_while_the_policy_skips_drafting_only_who_is_named_drafts(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt, params = [12, 13, 14, 12, 13, 14, 12, 13], SamplingParams(max_tokens=40, ignore_eos=True)
    monkeypatch.setattr(llm.engine.speculative.policy, "skips_drafting", lambda sequences: True)
    resting = llm.engine.add(prompt, params)
    while llm.engine.has_work:
        llm.engine.step()
    assert {*resting.sources} == {""}
    naming = llm.engine.add(prompt, params)
    naming.drafters = frozenset({"ngram"})
    while llm.engine.has_work:
        llm.engine.step()
    assert {*naming.sources} == {"", "ngram"}
    assert naming.tokens == resting.tokens


def test_a_combination_that_is_offered_keeps_what_its_parts_need() -> None:
    """`suffix` learns from answers that do not name it, and `reference:prompt=no` drafts for requests with a reference alone."""
    llm = LLM(draft="none", offer=["suffix+lookahead", "reference:prompt=no+lookahead"])
    offered = {part.name: part for part in llm.engine.speculative.drafter.parts}
    assert offered["suffix+lookahead"].watches
    prompt, params = [12, 13, 14, 12, 13, 14, 12, 13], SamplingParams(max_tokens=40, ignore_eos=True)
    first = llm.generate([prompt], params)[0]
    again = llm.engine.add(prompt, params)
    again.drafters = frozenset({"suffix+lookahead"})
    told = llm.engine.add(prompt, params)
    told.drafters = frozenset({"reference+lookahead"})
    while llm.engine.has_work:
        llm.engine.step()
    assert first.token_ids == [*again.generated] == [*told.generated]
    assert "suffix" in again.sources, "from the answer before, which did not name it"
    assert {*told.sources} <= {"", "lookahead"}, "it brought no reference"
