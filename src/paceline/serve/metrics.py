"""GET /metrics: the meter's counts under the names that vLLM's and llama.cpp's tools read, and under our own.

Source: the names that vLLM's own benchmark and its dashboards read (vllm/v1/metrics, vllm/v1/spec_decode/metrics), and those of
llama.cpp's server (tools/server/README.md; pull request 26389 for speculation).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from paceline.serve.meter import Histogram, Meter

Labels = Mapping[str, str]


class Exposition(Collector):
    """The metric families of a meter. model: value of the label `model_name` on vLLM's metrics."""

    def __init__(self, meter: Meter, model: str) -> None:
        self._meter = meter
        self._labels = {"model_name": model, "engine": "0"}

    def collect(self) -> Iterator[Metric]:
        yield from self._vllm()
        yield from self._llamacpp()
        yield from self._own()

    def _vllm(self) -> Iterator[Metric]:
        meter, engine, labels = self._meter, self._meter.engine, self._labels
        yield _gauge("vllm:num_requests_running", "Sequences in flight.", engine.running, labels)
        yield _gauge("vllm:num_requests_waiting", "Sequences that wait to be taken up.", engine.waiting, labels)
        yield _gauge(
            "vllm:kv_cache_usage_perc", "Share of the cache that requests in flight hold, 0 to 1.", _share(meter), labels
        )
        yield _counter("vllm:prefix_cache_queries", "Prompt tokens looked for in the cache.", engine.prefix_queries, labels)
        yield _counter("vllm:prefix_cache_hits", "Prompt tokens found in the cache.", engine.prefix_hits, labels)
        yield _counter("vllm:num_preemptions", "Sequences that gave up their cache for others.", engine.preemptions, labels)
        yield _counter("vllm:prompt_tokens", "Tokens of prompts that were read.", meter.prompt_tokens, labels)
        yield _counter("vllm:generation_tokens", "Tokens of answers.", meter.generation_tokens, labels)
        yield _by("vllm:request_success", "Choices that ended, by why.", "finished_reason", meter.ended, labels)
        for name, text, histogram in (
            ("time_to_first_token_seconds", "From the beginning of a request to the first token.", meter.ttft_s),
            ("inter_token_latency_seconds", "Between tokens; those of one step share its time.", meter.token_gap_s),
            ("request_time_per_output_token_seconds", "Mean per token of a choice, after the first.", meter.time_per_token_s),
            ("e2e_request_latency_seconds", "From the beginning of a request to the end.", meter.whole_s),
            ("request_queue_time_seconds", "From the asking to the first step.", meter.queue_s),
            ("request_prompt_tokens", "Tokens of a prompt.", meter.request_prompt_tokens),
            ("request_generation_tokens", "Tokens of an answer.", meter.request_generation_tokens),
        ):
            yield _histogram(f"vllm:{name}", text, histogram, labels)
        yield from self._speculation("vllm", labels)

    def _llamacpp(self) -> Iterator[Metric]:
        meter, engine = self._meter, self._meter.engine
        yield _counter("llamacpp:prompt_tokens", "Tokens of prompts that were read.", meter.prompt_tokens)
        yield _counter("llamacpp:tokens_predicted", "Tokens of answers.", meter.generation_tokens)
        yield _counter("llamacpp:tokens_predicted_seconds", "Seconds from first to last tokens.", meter.generation_s)
        rate = meter.timed_tokens / meter.generation_s if meter.generation_s else 0.0
        yield _gauge("llamacpp:predicted_tokens_seconds", "Mean tokens per second of an answer.", rate)
        yield _gauge("llamacpp:requests_processing", "Sequences in flight.", engine.running)
        yield _gauge("llamacpp:requests_deferred", "Sequences that wait to be taken up.", engine.waiting)
        yield _counter("llamacpp:n_decode", "Forwards of the target.", engine.steps)
        busy = engine.sequences / max(engine.steps, 1)
        yield _gauge("llamacpp:n_busy_slots_per_decode", "Mean sequences of a forward.", busy)
        yield from self._speculation("llamacpp", {})

    def _speculation(self, whose: str, labels: Labels) -> Iterator[Metric]:
        engine, prefix = self._meter.engine, f"{whose}:spec_decode_num"
        yield _counter(f"{prefix}_drafts", "Steps of sequences with a draft.", engine.drafts, labels)
        yield _counter(f"{prefix}_draft_tokens", "Drafted tokens.", engine.draft_tokens, labels)
        yield _counter(f"{prefix}_accepted_tokens", "Drafted tokens that were accepted.", engine.accepted_tokens, labels)
        depths = {str(depth): count for depth, count in enumerate(engine.accepted_by_depth)}
        yield _by(f"{prefix}_accepted_tokens_per_pos", "Accepted, by depth from 0.", "position", depths, labels)

    def _own(self) -> Iterator[Metric]:
        meter, engine = self._meter, self._meter.engine
        yield _gauge("paceline_tau", "Mean tokens per decoding step, over the last 256 choices.", meter.tau)
        yield _counter("paceline_decoding_steps", "Decoding steps of choices that ended.", meter.decoding_steps)
        yield _counter("paceline_steps", "Forwards of the target.", engine.steps)
        yield _counter("paceline_rows", "Rows of all forwards.", engine.rows)
        yield _counter("paceline_draft_seconds", "Seconds spent drafting.", engine.draft_s)
        yield _counter("paceline_forward_seconds", "Seconds spent in forwards of the target.", engine.forward_s)
        yield _counter("paceline_verify_seconds", "Seconds spent verifying.", engine.verify_s)
        by_source = engine.accepted_by_source
        yield _by("paceline_accepted_tokens", "Accepted tokens, by who drafted them.", "drafter", by_source)
        text = "Mean drafted tokens of a sequence that drafts, as the policy last chose."
        yield _gauge("paceline_policy_drafted_tokens", text, meter.drafted_per_step)
        yield _gauge("paceline_held_tokens", "Tokens held in the cache, those of texts that ended too.", engine.held_tokens)
        yield _gauge("paceline_cache_tokens", "Tokens that the cache may hold.", engine.cache_tokens)
        yield _counter("paceline_engine_restarts", "Starts of the engine after the first.", meter.restarts)
        statuses = {str(status): count for status, count in meter.responses.items()}
        yield _by("paceline_http_responses", "Answers, by status.", "status", statuses)


def _share(meter: Meter) -> float:
    return min(meter.engine.running_tokens / max(meter.engine.cache_tokens, 1), 1.0)


def _gauge(name: str, text: str, value: float, labels: Labels | None = None) -> Metric:
    family = GaugeMetricFamily(name, text, labels=list(labels or ()))
    family.add_metric(list((labels or {}).values()), value)
    return family


def _counter(name: str, text: str, value: float, labels: Labels | None = None) -> Metric:
    """A counter; the name of its sample ends in `_total`."""
    family = CounterMetricFamily(name, text, labels=list(labels or ()))
    family.add_metric(list((labels or {}).values()), value)
    return family


def _by(name: str, text: str, label: str, values: Mapping[str, float], labels: Labels | None = None) -> Metric:
    """A counter with an additional label."""
    family = CounterMetricFamily(name, text, labels=[*(labels or ()), label])
    for key, value in values.items():
        family.add_metric([*(labels or {}).values(), key], value)
    return family


def _histogram(name: str, text: str, histogram: Histogram, labels: Labels) -> Metric:
    family = HistogramMetricFamily(name, text, labels=list(labels))
    bounds = [*(str(bound) for bound in histogram.bounds), "+Inf"]
    buckets = list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True))
    family.add_metric(list(labels.values()), buckets, histogram.sum)
    return family


def router(meter: Meter, model: str) -> APIRouter:
    """model: the name it is served under."""
    registry = CollectorRegistry()
    registry.register(Exposition(meter, model))
    ProcessCollector(registry=registry)
    routes = APIRouter(tags=["operations"])

    @routes.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}})
    async def metrics(request: Request) -> Response:
        # the library's own choice of format would turn the colon of vllm: into an underscore in OpenMetrics
        if "application/openmetrics-text" in request.headers.get("accept", ""):
            text, kind = openmetrics.generate_latest(registry, openmetrics.ALLOWUTF8), openmetrics.CONTENT_TYPE_LATEST
        else:
            text, kind = generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4
        return Response(text, headers={"Content-Type": kind})

    return routes
