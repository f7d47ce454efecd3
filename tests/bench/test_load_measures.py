"""The load generator's computations against arithmetic: measures, objectives, arrivals, lengths, the search for a rate."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import numpy as np
import pytest

from paceline.bench.errors import BenchError
from paceline.bench.load.arrivals import Traced, poisson, read_trace
from paceline.bench.load.chunks import BadChunk, parsed
from paceline.bench.load.comparison import compared
from paceline.bench.load.drive import Block
from paceline.bench.load.measures import measured
from paceline.bench.load.objective import Objective
from paceline.bench.load.outcome import Outcome
from paceline.bench.load.prompts import ROOM, lengthened, repeated, scale_to, texts
from paceline.bench.load.rate_search import PRECISION, Found, highest_rate
from paceline.bench.tasks import Item, Task


def outcome(index: int = 0, first_s: float = 0.1, gaps_s: tuple[float, ...] = (), tokens: int | None = None, **more) -> Outcome:
    last_s = first_s + sum(gaps_s)
    return Outcome(
        index,
        0.0,
        first_s=first_s,
        last_s=last_s,
        ended_s=last_s + 0.01,
        gaps_s=gaps_s,
        chunks=len(gaps_s) + 1,
        tokens=tokens,
        **more,
    )


def test_a_chunk_of_k_tokens_is_one_gap_and_k_minus_1_zeros() -> None:
    # chunks of 3, 1 and 4 tokens
    one = outcome(gaps_s=(0.03, 0.05), tokens=8)
    assert sorted(one.itl_s) == [0.0] * 5 + [0.03, 0.05]
    assert sum(one.itl_s) / len(one.itl_s) == pytest.approx(one.tpot_s), "the mean of both is the same"
    assert one.tpot_s == pytest.approx(0.08 / 7)
    assert outcome(gaps_s=(0.03, 0.05)).tpot_s == pytest.approx(0.04), "without a token count, chunks are tokens"
    assert outcome(tokens=5).itl_s == (0.0,) * 4
    assert outcome(tokens=1).tpot_s is None
    assert Outcome(0, 0.0, ended_s=0.1, tokens=3).itl_s == (), "no text ever came"
    assert outcome(gaps_s=(0.03, 0.05), tokens=2).itl_s == (0.03, 0.05), "the server counts fewer tokens than it sent chunks"


def test_measures_are_those_of_arithmetic() -> None:
    outcomes = [
        outcome(0, 0.1, (0.02,) * 4, 5, prompt_tokens=7, speculation={"tau": 2.0, "num_spec_steps": 10}),
        outcome(1, 0.3, (0.04,) * 2, 9, prompt_tokens=5, speculation={"tau": 3.0, "num_spec_steps": 30}),
        Outcome(2, 0.0, error="429", message="full", refusals=1, ended_s=0.01),
        Outcome(3, 0.0, error="500", message="broken", ended_s=0.01),
        Outcome(4, 0.0, error="timeout", ended_s=2.0),
    ]
    found = measured(outcomes, 2.0, Objective.parse("ttft=0.2,tpot=0.03"))
    assert (found["sent"], found["answered"], found["refused"]) == (5, 2, 1)
    assert found["errors"] == {"429": 1, "500": 1, "timeout": 1}
    assert found["messages"] == {"429": "full", "500": "broken"}
    assert (found["tokens"], found["prompt_tokens"], found["chunks"]) == (14, 12, 8)
    assert found["tokens_per_s"] == 7.0
    assert found["requests_per_s"] == 1.0
    assert found["ttft_s"]["mean"] == pytest.approx(0.2)
    assert found["ttft_s"]["p50"] == pytest.approx(0.2)
    assert found["ttft_s"]["p90"] == pytest.approx(0.28)
    assert found["ttft_s"]["p99"] == pytest.approx(0.298)
    assert found["tpot_s"]["mean"] == pytest.approx((0.02 + 0.01) / 2)
    assert found["itl_s"]["count"] == 4 + 8
    assert found["itl_s"]["mean"] == pytest.approx((0.08 + 0.08) / 12)
    assert found["inter_chunk_s"]["count"] == 6
    assert found["e2e_s"]["max"] == pytest.approx(0.39)
    assert found["goodput"] == {"objective": "ttft <= 0.2 s, tpot <= 0.03 s", "met": 1, "share": 0.2, "requests_per_s": 0.5}
    assert found["tau"] == pytest.approx((2 * 10 + 3 * 30) / 40)
    assert set(found["distributions"]["itl_s"]) == {0.0, 0.02, 0.04}, "only observed times"


def test_nothing_answered_has_no_times() -> None:
    found = measured([Outcome(0, 0.0, error="503", refusals=1, ended_s=0.1)], 1.0, Objective.parse("ttft=1"))
    assert found["ttft_s"] is None
    assert found["tau"] is None
    assert found["goodput"]["share"] == 0.0
    assert found["tokens_per_s"] == 0.0


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft=", "ttft=x", "ttft=0", "ttft=-1", "ttft=nan", "itl=1", "ttft=1,ttft=2", "ttft=1,"]
)
def test_an_objective_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(BenchError, match="--slo"):
        Objective.parse(text)


def test_an_objective_is_met_whole_or_not() -> None:
    one = outcome(first_s=0.1, gaps_s=(0.02, 0.02))
    assert Objective.parse("ttft=0.1").met(one)
    assert not Objective.parse("ttft=0.099").met(one)
    assert not Objective.parse("ttft=0.2, tpot=0.019").met(one)
    assert not Objective.parse("e2e=0.1").met(one)
    assert not Objective.parse("ttft=1").met(Outcome(0, 0.0, error="cut off"))
    silent = Outcome(0, 0.0, ended_s=0.5)
    assert not Objective.parse("ttft=0.4").met(silent), "an answer without text is judged by its end"
    assert Objective.parse("ttft=0.6,tpot=0.001").met(silent)


def test_poisson_arrivals_have_exponential_gaps() -> None:
    due_s = poisson(20.0, 20_001, seed=3)
    gaps = np.diff(due_s)
    assert due_s[0] == 0.0
    assert len(due_s) == 20_001
    assert (gaps > 0).all()
    # Dvoretzky, Kiefer and Wolfowitz: exact at any n; a false alarm once in a million
    shares = np.arange(1, len(gaps) + 1) / len(gaps)
    distance = np.abs(1 - np.exp(-20.0 * np.sort(gaps)) - shares).max()
    assert distance < math.sqrt(math.log(2 / 1e-6) / (2 * len(gaps))) + 1 / len(gaps)
    # independent of the gap before
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 5 / math.sqrt(len(gaps))


def test_poisson_arrivals_depend_on_the_seed_and_scale_with_the_rate() -> None:
    assert poisson(5.0, 50, 1) == poisson(5.0, 50, 1)
    assert poisson(5.0, 50, 1) != poisson(5.0, 50, 2)
    assert poisson(10.0, 50, 1) == pytest.approx([moment / 2 for moment in poisson(5.0, 50, 1)])
    assert poisson(5.0, 1, 1) == (0.0,)


TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:03.9700000,0,0
"""


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(TRACE)
    assert read_trace(file, 2) == [Traced(0.0, 4808, 10), Traced(pytest.approx(0.052), 3180, 8)]
    assert read_trace(file, 9)[0] == Traced(0.0, 0, 0), "in order of time"
    assert [traced.due_s for traced in read_trace(file, 9)] == pytest.approx([0.0, 0.00996, 0.06196])


def test_timestamps_of_a_trace_may_have_a_time_zone(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    head = "\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\n"
    file.write_text(head + "2024-05-10 00:00:03.5000000+00:00,1,2\n2024-05-10 00:00:05+00:00,1,2\n", encoding="utf-8")
    assert [traced.due_s for traced in read_trace(file, 9)] == [0.0, 1.5]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no columns"),
        ("a,b\n1,2\n", "no columns"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no request"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nnever,1,2\n", "line 2"),
        (TRACE + "2023-11-16 18:17:05,1\n", "line 5"),
        (TRACE + "2023-11-16 18:17:05,-1,3\n", "less than no tokens"),
        (TRACE + f"2023-11-16 18:17:05,{'9' * 400},3\n", "more tokens"),
        ("\x00\xff", "no columns"),
    ],
)
def test_a_damaged_trace_is_one_sentence(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(content)
    with pytest.raises(BenchError, match=said):
        read_trace(file, 100)
    with pytest.raises(BenchError, match="cannot read"):
        read_trace(tmp_path / "none.csv", 100)


def test_traced_lengths_are_scaled_to_the_context() -> None:
    traced = [Traced(0.0, 4000, 96), Traced(1.0, 100, 10), Traced(2.0, 0, 0)]
    assert scale_to(traced, None) == 1.0
    assert scale_to(traced, 8192) == 1.0
    scale = scale_to(traced, 1024)
    assert (4000 + 96) * scale == pytest.approx(1024 * ROOM)
    asked = lengthened(traced, ["one prompt", "another prompt"], ["an example"], scale, characters=4.0)
    assert [len(one.prompt) for one in asked] == [round(4000 * scale * 4), round(100 * scale * 4), 1]
    assert [one.max_tokens for one in asked] == [round(96 * scale), round(10 * scale), 1]
    assert asked[0].prompt.endswith("one prompt")
    first, second = lengthened([Traced(0.0, 500, 5)] * 2, ["a prompt", "b prompt", "c prompt"], [], 1.0, 4.0)
    assert first.prompt[:40] != second.prompt[:40], "they share no prefix"


def test_prompts_are_the_first_turns_of_the_tasks_in_turns() -> None:
    tasks = [Task("a", (Item(("a1", "then")), Item(("a2",)))), Task("b", (Item(("b1",)),))]
    assert texts(tasks) == ["a1", "b1", "a2"]
    assert [one.prompt for one in repeated(texts(tasks), 5, 9)] == ["a1", "b1", "a2", "a1", "b1"]


@pytest.mark.parametrize("capacity", [0.3, 1.0, 7.3, 140.0])
@pytest.mark.parametrize("first", [0.5, 8.0])
def test_the_search_finds_what_a_server_can_do(capacity: float, first: float) -> None:
    """A server whose share of good requests falls once the rate exceeds its capacity."""
    tried = []

    async def share_at(rate: float) -> float:
        tried.append(rate)
        return 1.0 if rate <= capacity else capacity / rate

    found = asyncio.run(highest_rate(share_at, first, 0.99, 10_000.0))
    assert found.held is not None
    assert found.failed is not None
    assert found.held <= capacity / 0.99 < found.failed <= found.held * (1 + PRECISION)
    assert found.runs == len(tried) < 20


def test_the_search_ends_where_nothing_or_everything_holds() -> None:
    async def never(rate: float) -> float:
        return 0.0

    async def always(rate: float) -> float:
        return 1.0

    assert asyncio.run(highest_rate(never, 1.0, 0.99, 100.0)).held is None
    # a request that fails alone fails at any rate
    assert asyncio.run(highest_rate(never, 1.0, 0.99, 100.0, lambda rate: rate < 0.2)) == Found(None, 0.125, 4)
    found = asyncio.run(highest_rate(always, 1.0, 0.99, 100.0))
    assert (found.held, found.failed) == (100.0, None)


def test_two_bodies_are_compared_with_both_terms() -> None:
    def block(walls: float, tokens: int, first_s: float, text: str = "same") -> Block:
        return Block((outcome(first_s=first_s, gaps_s=(0.1,), tokens=tokens, text=text),), walls)

    pairs = [(block(1.0, 30, 0.1), block(1.5, 15, 0.2, "other" if i == 0 else "same")) for i in range(6)]
    sides = [
        measured([o for pair in pairs for o in pair[i].outcomes], sum(pair[i].wall_s for pair in pairs), None) for i in (0, 1)
    ]
    found = compared(*sides, pairs)
    assert found["means"]["tokens_per_s"] == {"body": 30.0, "against": 10.0, "ratio": pytest.approx(3.0)}
    assert found["means"]["ttft_s"]["ratio"] == pytest.approx(0.5)
    assert found["interval"] == pytest.approx([3.0, 3.0]), "every pair has the same ratio"
    assert found["equal_texts"] == {"equal": 5, "of": 6}
    assert len(found["pairs"]) == 6
    assert compared(*sides, pairs[:4])["interval"] is None, "too few for an interval"


def test_the_interval_of_a_ratio_covers_it() -> None:
    """Of 200 noisy comparisons of equals, about 95 % hold the ratio 1."""
    stream = np.random.default_rng(5)
    covered = 0
    for _ in range(200):
        walls = stream.normal(1.0, 0.1, (20, 2))
        pairs = [tuple(Block((outcome(gaps_s=(0.1,), tokens=20),), wall) for wall in row) for row in walls.tolist()]
        whole = measured([outcome(gaps_s=(0.1,), tokens=20)], 1.0, None)
        low, high = compared(whole, whole, pairs)["interval"]  # pyright: ignore[reportArgumentType]
        covered += low <= 1.0 <= high
    assert 170 <= covered <= 200


@pytest.mark.parametrize(
    "data",
    ["nonsense", "[]", '"x"', "3", '{"error": {"message": "overloaded"}}', '{"error": "x"}', '{"object": "error", "error": 1}'],
)
def test_a_malformed_stream_chunk_is_an_error(data: str) -> None:
    with pytest.raises(BadChunk):
        parsed(data)


def test_chunks_of_every_dialect_are_read() -> None:
    assert parsed('{"choices": [{"text": "ab"}]}').text == "ab"
    assert parsed('{"choices": [{"delta": {"content": "ab"}}]}').text == "ab"
    assert parsed('{"choices": [{"delta": {"reasoning_content": "so", "content": null}}]}').text == "so"
    assert parsed('{"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}').carries
    role = parsed('{"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": null}], "usage": null}')
    assert not role.carries
    assert not role.finished
    assert parsed('{"choices": [{"text": "", "finish_reason": "stop"}]}').finished
    last = parsed('{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}, "metrics": null}')
    assert (last.prompt_tokens, last.tokens) == (3, 5)
    assert parsed('{"choices": [], "usage": {"completion_tokens": "many", "prompt_tokens": true}}').tokens is None
    assert parsed('{"choices": [], "usage": {"completion_tokens": 10000000000}}').tokens is None, "no answer is that long"
    assert parsed('{"choices": null}').text == ""
    assert parsed('{"choices": [{"text": 3, "delta": []}]}').text == ""
