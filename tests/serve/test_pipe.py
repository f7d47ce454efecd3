"""Lines between the server and its engine: none is longer than the server reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.logprobs import TokenLogprobs
from paceline.params import SamplingParams
from paceline.serve.asking import Ask, Delta, Ending
from paceline.serve.pipe import LONGEST_LINE_BYTES, Line, News, Stats, parted, untellable

TOKEN, LOGPROB = 2**31 - 1, -1.2345678901234567e-300
FAR_TOO_MANY = 1 << 20


def asking(tokens: int, count: int | None) -> Ask:
    return Ask((1,) * tokens, SamplingParams(prompt_logprobs=count))


def longest(count: int) -> int:
    """The most tokens of a prompt whose log-probabilities may be requested, found by search."""
    low, high = 1, FAR_TOO_MANY
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (low, middle - 1) if untellable(asking(middle, count)) else (middle, high)
    return low


@pytest.mark.parametrize("count", [0, 1, 20])
def test_log_probabilities_of_the_longest_prompt_allowed_fit_a_line(count: int):
    told = TokenLogprobs(TOKEN, LOGPROB, TOKEN, ((TOKEN, LOGPROB),) * count)
    some = Line(News).write(News(deltas={1: Delta(prompt_logprobs=(told,) * 1000)}))
    most = longest(count)
    assert len(some) / 1000 * most < LONGEST_LINE_BYTES
    # and the limit uses most of the line
    assert len(some) / 1000 * most > 0.85 * LONGEST_LINE_BYTES
    sentence = untellable(asking(most + 1, count))
    assert sentence is not None
    assert f"at most {most} tokens" in sentence
    assert untellable(asking(FAR_TOO_MANY, None)) is None


def test_answers_with_too_many_log_probabilities_are_refused():
    one = Ask((1,), SamplingParams(max_tokens=1 << 16, logprobs=20))
    assert untellable(one) is None
    assert untellable(one, one, one) is None
    sentence = untellable(*[one] * 4)
    assert sentence is not None
    assert sentence.startswith(f"answers as long as these may be have {4 * 21 * (1 << 16)} log-probabilities")
    assert untellable(*[Ask((1,), SamplingParams(max_tokens=1 << 16))] * 100) is None


def test_prompt_log_probabilities_of_all_choices_together_are_bounded():
    most = longest(20)
    some, rest = asking(most // 2, 20), asking(most - most // 2, 20)
    assert untellable(some, rest, asking(FAR_TOO_MANY, None)) is None
    sentence = untellable(some, rest, asking(1, 20))
    assert sentence is not None
    assert f"those of all choices have {most + 1}" in sentence
    assert untellable(*[asking(1000, 20)] * 100) is not None


def test_prompts_are_told_of_in_parts_before_what_a_step_brought():
    told = (None, *(TokenLogprobs(token, -0.5, 1, ((token, -0.5),) * 20) for token in range(1000)))
    deltas = {
        1: Delta(tokens=(3,), prompt_logprobs=told, ending=Ending("stop", 0)),
        2: Delta(tokens=(4,)),
        3: Delta(prompt_logprobs=told[:2]),
        4: Delta(text="a"),
    }
    news = News(deltas=deltas, refused={9: "no"}, stats=Stats(steps=1))
    *parts, last = parted(news)
    assert [set(line.prompts) for line in parts] == [{1}] * 4 + [{3}]
    assert tuple(one for line in parts[:4] for one in line.prompts[1]) == told
    assert parts[4].prompts[3] == told[:2]
    assert all(line == News(prompts=line.prompts) for line in parts)
    assert all(len(Line(News).write(line)) < 1 << 18 for line in parts), "each is read in one go"
    assert last == replace(news, deltas={number: replace(delta, prompt_logprobs=None) for number, delta in deltas.items()})
    assert list(parted(News(deltas={2: deltas[2]}))) == [News(deltas={2: deltas[2]})]
