"""A contest of decoders: turns, medians, token counts, and decoders that fail."""

from __future__ import annotations

import pytest

from paceline.bench.contest import Decoded, DecoderFailed, Rules, Tally, answer, contest
from paceline.bench.curves import verify_curve


class Fake:
    """Decodes in the given times, one after another; records every call."""

    begun = 0

    def __init__(self, name: str, calls: list[tuple[str, int]], times: list[float], fails_at: int = -1) -> None:
        self.name, self._calls, self._times, self._fails_at = name, calls, iter(times), fails_at

    def begin(self) -> None:
        self.begun += 1

    def decode(self, prompt, max_tokens: int) -> Decoded:
        self._calls.append((self.name, prompt[0]))
        if prompt[0] == self._fails_at:
            raise DecoderFailed("broke")
        return Decoded([prompt[0], 7, 8, 2, 9], 0.5, 1, next(self._times))


def test_decoders_take_turns_and_the_warm_up_is_not_counted() -> None:
    calls: list[tuple[str, int]] = []
    decoders = [Fake("a", calls, [99.0, 1.0, 2.0, 5.0, 2.0, 3.0, 2.0]), Fake("b", calls, [99.0] + [1.0] * 6)]
    tallies = contest(decoders, [(10,), (11,)], Rules(5, 3, frozenset({2})))
    assert calls[:2] == [("a", 10), ("b", 10)], "the warm-up"
    assert calls[2:6] == [("b", 10), ("a", 10), ("a", 11), ("b", 11)], "the order shifts from prompt to prompt"
    assert [len(runs) for runs in tallies["a"].runs.values()] == [3, 3]
    assert tallies["a"].total_s == 3.0 + 2.0, "medians of each prompt, summed"
    assert tallies["a"].tokens == 6, "EOS and tokens behind it are not counted"
    assert tallies["a"].tokens_per_s == pytest.approx(6 / 5)
    assert tallies["a"].decode_tokens_per_s(tallies["a"]) == pytest.approx(4 / 4)
    assert tallies["a"].equal_prompts(tallies["b"]) == 2
    assert decoders[0].begun == 1 + 3, "no repeat learns from the one before"


def test_decoding_takes_what_each_repeat_took_behind_its_own_first_token() -> None:
    tally = Tally()
    for first_s, total_s in ((0.1, 1.0), (0.6, 1.1), (0.5, 2.0)):
        tally.add(0, Decoded([1, 2, 3], first_s, 1, total_s))
    assert tally.decode_s(tally) == pytest.approx(0.9), "not the median total minus the median first"
    assert tally.seconds == {"first_s": [[0.1, 0.6, 0.5]], "total_s": [[1.0, 1.1, 2.0]]}


def test_a_first_token_later_than_that_of_plain_decoding_counts_as_decode_time() -> None:
    """One engine's draft model reads the prompt before the first token, another's after it."""
    plain, before, behind = Tally(), Tally(), Tally()
    plain.add(0, Decoded([1, 2, 3, 4, 5], 1.0, 1, 5.0))
    before.add(0, Decoded([1, 2, 3, 4, 5], 1.5, 3, 2.5))
    behind.add(0, Decoded([1, 2, 3, 4, 5], 0.9, 1, 2.4))
    assert before.decode_s(plain) == behind.decode_s(plain) == pytest.approx(1.5)
    assert before.decode_tokens_per_s(plain) == behind.decode_tokens_per_s(plain) == pytest.approx(4 / 1.5)


def test_first_tokens_that_reach_past_the_end_take_nothing_from_other_answers() -> None:
    tally = Tally()
    tally.add(0, Decoded([5], 0.1, 7, 0.1))
    tally.add(1, Decoded([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], 0.5, 1, 1.5))
    assert tally.decode_tokens_per_s(tally) == pytest.approx(10.0)


def test_texts_of_other_lengths_are_counted_with_the_times_that_they_took() -> None:
    """Under a rule that keeps only the law, repeats may differ."""
    tally = Tally()
    for tokens, total_s in ((6, 1.0), (2, 1.0), (10, 2.0)):
        tally.add(0, Decoded(list(range(tokens)), 0.2, 1, total_s))
    assert (tally.tokens, tally.total_s) == (10, 2.0), "the repeat with the median rate, as a whole"
    assert tally.tokens_per_s == pytest.approx(10 / 2.0)
    assert tally.decode_tokens_per_s(tally) == pytest.approx(9 / 1.8)
    tally.add(0, Decoded(list(range(12)), 0.4, 1, 2.0))
    assert (tally.tokens, tally.total_s, tally.first_s) == (8, 1.5, 0.2), "of four repeats the middle two"


def test_a_decoder_that_fails_leaves_the_contest_and_the_others_go_on() -> None:
    calls: list[tuple[str, int]] = []
    advanced = []
    decoders = [Fake("a", calls, [1.0] * 9), Fake("b", calls, [1.0] * 9, fails_at=11)]
    tallies = contest(decoders, [(10,), (11,)], Rules(5, 2), lambda: advanced.append(1))
    assert tallies["b"].error == "broke"
    assert tallies["a"].error is None
    assert calls.count(("b", 11)) == 1
    assert calls.count(("a", 11)) == 2
    assert len(advanced) == (1 + 2 * 2) * 2


def test_one_repeat_that_differs_makes_the_prompt_unequal() -> None:
    plain, other = Tally(), Tally()
    for ids in ([1, 2], [1, 2]):
        plain.add(0, Decoded(ids, 0.1, 1, 1.0))
    for ids in ([1, 2], [1, 3]):
        other.add(0, Decoded(ids, 0.1, 1, 1.0))
    assert plain.equal_prompts(plain) == 1
    assert other.equal_prompts(plain) == 0


def test_an_answer_of_first_tokens_alone_has_no_decode_rate() -> None:
    tally = Tally()
    tally.add(0, Decoded([5], 1.0, 1, 1.0))
    assert tally.decode_tokens_per_s(tally) is None


def test_an_answer_is_cut_before_its_eos() -> None:
    assert answer([4, 2, 5], frozenset({2})) == [4]
    assert answer([4, 5], frozenset({2})) == [4, 5]
    assert answer([2], frozenset({2})) == []


def test_a_forward_that_fails_leaves_the_curve_and_the_others_go_on() -> None:
    asked: list[int] = []

    def breaks(rows: int) -> float:
        asked.append(rows)
        if len(asked) == 5:
            raise DecoderFailed("its process was ended")
        return 1.0

    failures: dict[str, str] = {}
    curves = verify_curve({"steady": lambda rows: rows / 1e3, "breaks": breaks}, (1, 2), 2, failures)
    assert curves == {"steady": {1: 1.0, 2: 2.0}}
    assert failures == {"breaks": "its process was ended"}
    assert asked == [1, 1, 2, 2, 1], "every timed forward follows an untimed one of its own"
