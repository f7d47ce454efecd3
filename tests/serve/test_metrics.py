"""Metrics parse, have the names that other tools read, add up, and cost microseconds."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import fields
from functools import partial
from time import perf_counter
from timeit import repeat

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as families

from paceline.params import SamplingParams
from paceline.serve import metrics, recording
from paceline.serve.asking import Ask, Delta, Ending
from paceline.serve.errors import APIError
from paceline.serve.meter import Choice, Histogram, Meter
from paceline.serve.pipe import Stats
from paceline.serve.recording import Record
from serve.fakes import FakeService

MODEL = 'a "model"\\name'
COUNTERS = {
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:num_preemptions_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:request_success_total",
    "llamacpp:prompt_tokens_total",
    "llamacpp:tokens_predicted_total",
    "llamacpp:tokens_predicted_seconds_total",
    "llamacpp:n_decode_total",
    "llamacpp:spec_decode_num_drafts_total",
    "llamacpp:spec_decode_num_draft_tokens_total",
    "llamacpp:spec_decode_num_accepted_tokens_total",
    "llamacpp:spec_decode_num_accepted_tokens_per_pos_total",
    "paceline_steps_total",
    "paceline_forward_seconds_total",
    "paceline_draft_seconds_total",
    "paceline_accepted_tokens_total",
    "paceline_engine_restarts_total",
}
GAUGES = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "llamacpp:requests_processing",
    "llamacpp:requests_deferred",
    "paceline_tau",
    "paceline_policy_drafted_tokens",
}
HISTOGRAMS = {
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
}
STATS = Stats(
    steps=3,
    rows=30,
    sequences=6,
    drafts=5,
    draft_tokens=20,
    accepted_tokens=9,
    accepted_by_depth=[5, 3, 1],
    accepted_by_source={"ngram": 6, "model": 3},
    draft_s=0.25,
    forward_s=0.5,
    verify_s=0.125,
    preemptions=1,
    prefix_queries=100,
    prefix_hits=40,
    running=2,
    waiting=4,
    running_tokens=150,
    held_tokens=250,
    cache_tokens=1000,
)


def shown(meter: Meter, accept: str = "") -> str:
    app = FastAPI()
    app.include_router(metrics.router(meter, MODEL))
    answer = TestClient(app).get("/metrics", headers={"accept": accept} if accept else {})
    assert answer.headers["content-type"].startswith("application/openmetrics-text" if accept else "text/plain; version=0.0.4")
    return answer.text


def samples(meter: Meter) -> dict[tuple[str, str], float]:
    """By name, and by the values of labels that distinguish samples of one family."""
    found = dict[tuple[str, str], float]()
    for family in families(shown(meter)):
        for sample in family.samples:
            if sample.name.startswith("vllm:"):
                assert sample.labels["model_name"] == MODEL
            elif sample.name.startswith("llamacpp:"):
                assert set(sample.labels) <= {"position"}, "tools look for a name and a number"
            rest = [value for name, value in sample.labels.items() if name not in ("model_name", "engine")]
            key = (sample.name, "".join(rest))
            assert key not in found
            found[key] = sample.value
    return found


def ask(tokens: int = 5) -> Ask:
    return Ask(tuple(range(tokens)), SamplingParams(seed=1))


async def drained(meter: Meter, service: FakeService, asks: list[Ask], stop_after: int | None = None) -> int:
    seen = 0
    async with aclosing(meter.watched(asks, partial(service.counted, asks))) as deltas:
        async for _ in deltas:
            seen += 1
            if seen == stop_after:
                break
    return seen


def test_every_name_that_tools_read_is_there() -> None:
    meter = Meter()
    meter.step(STATS)
    kinds = {family.name: family.type for family in families(shown(meter))}
    names = {name for name, _ in samples(meter)}
    assert names >= COUNTERS | GAUGES
    # this parser drops the ending of a counter's family name
    assert {kinds[name.removesuffix("_total")] for name in COUNTERS} == {"counter"}
    assert {kinds[name] for name in GAUGES} == {"gauge"}
    assert {kinds[name] for name in HISTOGRAMS} == {"histogram"}
    assert not any(name.endswith("_created") for name in names)


def test_open_metrics_keep_the_colon() -> None:
    meter = Meter()
    meter.step(STATS)
    text = shown(meter, "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5")
    assert text.endswith("# EOF\n")
    found = {sample.name for family in openmetrics_families(text) for sample in family.samples}
    assert found >= COUNTERS | GAUGES | {f"{name}_bucket" for name in HISTOGRAMS}


def test_what_the_engine_reports_adds_up() -> None:
    meter = Meter()
    for _ in range(3):
        meter.step(STATS)
    meter.step(Stats(accepted_by_depth=[1, 1, 1, 1], running=1, running_tokens=5000, held_tokens=6000, cache_tokens=1000))
    got = samples(meter)
    for name, value in (("drafts", 15), ("draft_tokens", 60), ("accepted_tokens", 27)):
        assert got[f"vllm:spec_decode_num_{name}_total", ""] == got[f"llamacpp:spec_decode_num_{name}_total", ""] == value
    assert [got["vllm:spec_decode_num_accepted_tokens_per_pos_total", str(depth)] for depth in range(4)] == [16, 10, 4, 1]
    assert got["paceline_accepted_tokens_total", "ngram"] == 18
    assert got["paceline_forward_seconds_total", ""] == 1.5
    assert got["paceline_policy_drafted_tokens", ""] == 4
    assert got["llamacpp:n_busy_slots_per_decode", ""] == 2
    assert got["vllm:prefix_cache_hits_total", ""] == 120
    # gauges show the latest report, and no share exceeds 1
    assert (got["vllm:num_requests_running", ""], got["vllm:num_requests_waiting", ""]) == (1, 0)
    assert got["vllm:kv_cache_usage_perc", ""] == 1
    # kept texts make room when needed: an idle server counts as empty
    meter.step(Stats(held_tokens=900, cache_tokens=1000))
    got = samples(meter)
    assert (got["vllm:kv_cache_usage_perc", ""], got["paceline_held_tokens", ""]) == (0, 900)
    meter.engine_restarted()
    got = samples(meter)
    assert (got["paceline_engine_restarts_total", ""], got["vllm:num_requests_running", ""]) == (1, 0)


def test_a_served_request_is_counted() -> None:
    meter = Meter()
    asyncio.run(drained(meter, FakeService(answer="hello world", step=3), [ask(5), ask(5)]))
    got = samples(meter)
    assert got["vllm:prompt_tokens_total", ""] == 10
    assert got["vllm:generation_tokens_total", ""] == got["llamacpp:tokens_predicted_total", ""] == 24
    assert got["vllm:request_success_total", "stop"] == 2
    assert got["vllm:time_to_first_token_seconds_count", ""] == 2
    # 12 tokens in steps of 3: nine tokens come after the first step, each with a gap
    assert got["vllm:inter_token_latency_seconds_count", ""] == 18
    assert got["vllm:request_time_per_output_token_seconds_count", ""] == 2
    assert got["vllm:e2e_request_latency_seconds_count", ""] == 2
    assert got["vllm:request_generation_tokens_sum", ""] == 24
    # decode time starts at the first token of each answer
    assert got["llamacpp:predicted_tokens_seconds", ""] == pytest.approx(22 / got["llamacpp:tokens_predicted_seconds_total", ""])
    assert got["paceline_tau", ""] == 3
    assert got["paceline_decoding_steps_total", ""] == 8


def test_a_request_that_is_left_is_counted_once() -> None:
    meter, service = Meter(), FakeService(step=1)
    asyncio.run(drained(meter, service, [ask()], stop_after=3))
    assert service.left_early == 1
    assert meter.ended == {"stop": 0, "length": 0, "abort": 1, "timeout": 0, "error": 0}
    assert meter.generation_tokens == 3


@pytest.mark.parametrize(
    ("deltas", "error"), [(1, APIError(503, "the engine failed")), (2, RuntimeError("x")), (0, RuntimeError("x"))]
)
def test_a_request_that_fails_is_counted_and_still_fails(deltas: int, error: Exception) -> None:
    meter = Meter()
    with pytest.raises(type(error)):
        asyncio.run(drained(meter, FakeService(breaks=(deltas, error)), [ask(), ask()]))
    assert (meter.ended["error"], meter.prompt_tokens) == (2, 5 * deltas)


def test_a_refused_request_is_not_counted_as_served() -> None:
    meter = Meter()
    with pytest.raises(APIError):
        asyncio.run(drained(meter, FakeService(refuses=APIError(429, "full")), [ask()]))
    assert meter.ended.total() == meter.prompt_tokens == sum(meter.whole_s.counts) == 0


def test_prompt_tokens_are_counted_once_the_first_token_of_the_answer_comes() -> None:
    meter = Meter()
    left, answered = Choice(meter, 10), Choice(meter, 5)
    left.ended("abort")
    answered.brought(Delta("a", (1,)))
    answered.brought(Delta("b", (2,)))
    assert (meter.prompt_tokens, meter.ended["abort"], meter.request_prompt_tokens.sum) == (5, 1, 15)


def test_the_time_of_a_request_begins_before_its_text_is_read() -> None:
    meter, token = Meter(), recording._current.set(Record(begun_s=perf_counter() - 5))
    try:
        choice = Choice(meter, 1)
    finally:
        recording._current.reset(token)
    choice.brought(Delta("a", (1,), ending=Ending("stop", 1)))
    assert 5 <= meter.ttft_s.sum <= meter.whole_s.sum < 10


def test_labels_are_bounded_whatever_comes() -> None:
    meter = Meter()
    for n in range(1000):
        meter.step(Stats(accepted_by_source={f"source-{n}": 1}, accepted_by_depth=[1] * n))
        Choice(meter, 1).ended(f"reason-{n}", Ending(f"reason-{n}", 1))
    assert len(meter.engine.accepted_by_source) <= 65
    assert sum(meter.engine.accepted_by_source.values()) == 1000
    assert len(meter.engine.accepted_by_depth) == 64
    assert meter.ended["error"] == 1000
    assert len(shown(meter)) < 64_000


def test_a_histogram_counts_up_to_and_including_a_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)
    histogram.observe(2.0, 3)
    assert (histogram.counts, histogram.sum) == ([2, 5, 1], 13.5)


def test_counting_costs_microseconds() -> None:
    meter = Meter()
    choice = Choice(meter, 10)
    for measured, limit_us in ((lambda: choice.tokens(3), 50), (lambda: meter.step(STATS), 200)):
        best_us = min(repeat(measured, number=1000, repeat=5)) * 1000
        assert best_us < limit_us


def test_reports_of_the_engine_are_all_counted() -> None:
    """A field added to the report must be added to the meter too, or it is lost."""
    meter = Meter()
    meter.step(STATS)
    # queue times are a histogram, not a sum
    names = [one.name for one in fields(Stats) if one.name != "queued_s"]
    for name in names:
        assert getattr(meter.engine, name) == getattr(STATS, name), name
        assert getattr(STATS, name), f"the report above has no {name}"


def test_every_number_of_the_engine_is_told_under_its_name() -> None:
    meter = Meter()
    meter.step(STATS)
    got = samples(meter)
    told = {
        "vllm:prefix_cache_queries_total": 100, "vllm:prefix_cache_hits_total": 40, "vllm:num_preemptions_total": 1,
        "llamacpp:n_decode_total": 3, "paceline_steps_total": 3, "paceline_rows_total": 30, "paceline_draft_seconds_total": 0.25,
        "paceline_forward_seconds_total": 0.5, "paceline_verify_seconds_total": 0.125, "paceline_cache_tokens": 1000,
        "vllm:num_requests_waiting": 4, "llamacpp:requests_deferred": 4, "llamacpp:requests_processing": 2,
        "vllm:kv_cache_usage_perc": 0.15,
    }  # fmt: skip
    assert {name: got[name, ""] for name in told} == told


def test_time_per_token_is_of_those_behind_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    meter, times = Meter(), iter((1.0, 3.0, 3.0, 3.0))
    choice = Choice(meter, 5)
    monkeypatch.setattr("paceline.serve.meter.perf_counter", lambda: next(times))
    choice.brought(Delta("a", (1,)))
    choice.brought(Delta("b", (2, 3), ending=Ending("stop", 1)))
    assert meter.time_per_token_s.sum == 1.0
