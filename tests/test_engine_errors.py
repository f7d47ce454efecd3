"""Steps that fail: whoever is not at fault has the text it has alone, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fakes import DenseTableCache, RecordingCache, TableModel, coupled
from paceline.compose import build_verifier
from paceline.drafters.base import Drafter
from paceline.drafters.ngram import NgramDrafter, Options as NgramOptions
from paceline.engine.engine import Engine, Progress
from paceline.models.base import Scores
from paceline.params import SamplingParams
from paceline.registry import VERIFIERS
from paceline.sampling import LogitsError
from paceline.sequence import Sequence
from paceline.serve.asking import Ask
from paceline.serve.running import Running
from serving import engine_of

PARAMS = SamplingParams(max_tokens=12, temperature=1.0, seed=3, ignore_eos=True)
BAD = 4
"""The first token of prompts whose rows hold no numbers once they have grown."""


class FaultyModel(TableModel):
    """Rows of a request that begins with `BAD` hold no numbers once it is `after` tokens long."""

    after = 6

    def score(self, step, cache, taps=()) -> Scores:
        scores, row = super().score(step, cache, taps), 0
        for segment in step.segments:
            sequence = segment.sequence
            if sequence.prompt[0] == BAD and len(sequence.tokens) >= self.after:
                scores.logits[row : row + segment.nodes] = torch.nan
            row += segment.nodes + segment.told_rows
        return scores


def drafters(model: TableModel) -> list[Drafter | None]:
    return [None, NgramDrafter(NgramOptions(max=3, min=1)), coupled(model, depth=3, width=2)]


def ended(engine: Engine, sequences: list[Sequence]) -> dict[Sequence, Progress]:
    """The last progress of each."""
    last: dict[Sequence, Progress] = {}
    for _ in range(200):
        for one in engine.step():
            assert one.sequence not in last or not last[one.sequence].finished, "it ends once"
            last[one.sequence] = one
        if not engine.has_work:
            break
    assert all(last[sequence].finished for sequence in sequences)
    return last


def idle(engine: Engine) -> bool:
    engine.forget()
    drafter = engine.speculative.drafter
    return not (engine.has_work or engine.stops._streams or engine.speculative.cache.held_bytes or drafter.held_bytes)


@pytest.mark.parametrize("cache", [RecordingCache, DenseTableCache])
@pytest.mark.parametrize("drafts", range(3))
def test_a_row_that_is_not_a_number_ends_its_own_request_alone(drafts: int, cache) -> None:
    model = FaultyModel(6, cache=cache)
    alone = engine_of(model)
    texts = {}
    for prompt in ((1, 2, 3), (2, 2, 2, 2)):
        sequence = alone.add(prompt, PARAMS)
        texts[prompt] = ended(alone, [sequence])[sequence].text
    engine = engine_of(model, drafters(model)[drafts])
    healthy = [engine.add(prompt, PARAMS) for prompt in texts]
    faulty = engine.add([BAD, 1, 1], PARAMS)
    last = ended(engine, [*healthy, faulty])
    assert [last[sequence].text for sequence in healthy] == list(texts.values())
    assert [last[sequence].error for sequence in healthy] == [None, None]
    assert faulty.finish_reason == "abort"
    assert "not numbers" in str(last[faulty].error)
    assert last[faulty].text == engine.tokenizer.decode(faulty.generated)
    assert 0 < faulty.generated_tokens < PARAMS.max_tokens
    assert idle(engine)


@pytest.mark.parametrize("rule", [row.example for row in VERIFIERS.values()])
def test_every_rule_says_whose_logits_are_not_numbers(rule: str) -> None:
    model = FaultyModel(6)
    engine = engine_of(model, coupled(model))
    engine.speculative.verifier = build_verifier(rule)
    healthy, greedy = engine.add([1, 2, 3], PARAMS), engine.add([2], PARAMS.model_copy(update={"temperature": 0.0}))
    faulty = engine.add([BAD, 1, 1], PARAMS)
    last = ended(engine, [healthy, greedy, faulty])
    assert isinstance(last[faulty].error, LogitsError)
    assert last[faulty].error.sequence is faulty
    assert (healthy.finish_reason, greedy.finish_reason, faulty.finish_reason) == ("length", "length", "abort")


def test_whoever_asked_the_server_is_told_that_it_was_given_up() -> None:
    engine = engine_of(FaultyModel(6))
    sequence = engine.add([BAD, 1, 1], PARAMS)
    running = Running(0, Ask(sequence.prompt, PARAMS), sequence, {}, 0.0)
    deltas = [running.delta(one) for _ in range(10) for one in engine.step()]
    assert deltas[-1] is not None
    assert deltas[-1].ending is not None
    assert deltas[-1].ending.reason == "abort"
    assert not deltas[-1].tokens


def test_logits_of_nobody_in_the_step_are_an_error_of_the_step() -> None:
    engine = engine_of(TableModel(6))
    sequence = engine.add([1, 2, 3], PARAMS)

    def fails(*_: object) -> None:
        raise LogitsError

    engine.speculative.policy.observe = fails
    with pytest.raises(LogitsError):
        engine.step()
    assert sequence.finish_reason is None


def failing_once(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, when: Callable[[], bool] = lambda: True) -> None:
    """Have a method interrupted the first time that `when` holds, before it does anything."""
    method, failed = getattr(owner, name), []

    def interrupted(*given, **named):
        if not failed and when():
            failed.append(True)
            raise KeyboardInterrupt
        return method(*given, **named)

    monkeypatch.setattr(owner, name, interrupted)


@pytest.mark.parametrize("drafts", range(3))
@pytest.mark.parametrize("where", ["policy.observe", "costs.observe", "cache.commit", "_commit", "verifier"])
def test_whatever_interrupts_a_step_the_next_goes_on(where: str, drafts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request ends in the step that fails, another goes on."""
    model = TableModel(6)
    short = PARAMS.model_copy(update={"max_tokens": 4})
    requests = [((1, 2, 3), short), ((2, 2, 2, 2), PARAMS)]
    alone, texts = engine_of(model), []
    for prompt, params in requests:
        sequence = alone.add(prompt, params)
        texts.append(ended(alone, [sequence])[sequence].text)
    engine = engine_of(model, drafters(model)[drafts])
    sequences = [engine.add(prompt, params) for prompt, params in requests]
    engine.step()
    owner, _, name = where.rpartition(".")
    owner = getattr(engine.speculative, owner) if owner else engine.speculative
    after = where.endswith("observe")
    failing_once(monkeypatch, owner, name, lambda: not after or sequences[0].finish_reason is not None)
    last: dict[Sequence, Progress] = {}
    interrupted = False
    for _ in range(40):
        try:
            last |= {one.sequence: one for one in engine.step()}
        except KeyboardInterrupt:
            interrupted = True
            assert not after or sequences[0] not in engine.scheduler.running
    assert interrupted
    assert [last[sequence].text for sequence in sequences] == texts
    assert [last[sequence].finished for sequence in sequences] == [True, True]
    assert idle(engine)


def test_a_request_that_ended_in_a_step_that_failed_can_be_left(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(TableModel(6))
    sequence = engine.add([1, 2, 3], PARAMS.model_copy(update={"max_tokens": 1}))
    failing_once(monkeypatch, engine.speculative.policy, "observe")
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert sequence.finish_reason == "length"
    engine.abort(sequence)
    assert idle(engine)
    assert engine.step() == []
    assert sequence.generated_tokens == 1
