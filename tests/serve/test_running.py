"""Running: the speculation counts reported at the end of an answer."""

from __future__ import annotations

from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.serve.running import _counts


def test_rates_that_clients_read_are_over_what_was_drafted() -> None:
    sequence = Sequence(0, (1,), SamplingParams(), 0)
    done = sequence.speculation
    done.steps, done.draft_tokens, done.accepted_tokens, done.emitted_tokens = 4, 10, 5, 8
    done.drafted_to.update({5: 2})
    done.accepted_to.update({2: 1, 3: 1})
    told = _counts(sequence)
    assert (told["draft_acceptance_rate"], told["mean_acceptance_length"], told["tau"]) == (0.5, 2.25, 2.0)
    assert (told["num_spec_steps"], told["num_accepted_draft_tokens"], told["num_draft_tokens"]) == (4, 5, 10)
    assert told["num_spec_tokens"] == 5
    assert told["acceptance_histogram"] == [2, 0, 1, 1]


def test_rates_of_an_answer_without_drafts_are_those_of_plain_decoding() -> None:
    sequence = Sequence(0, (1,), SamplingParams(), 0)
    assert (_counts(sequence)["draft_acceptance_rate"], _counts(sequence)["mean_acceptance_length"]) == (0.0, 1.0)
