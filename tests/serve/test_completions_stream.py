"""Streams of POST /v1/completions, their speculation metrics, and clients that disconnect."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from paceline.params import SamplingParams
from paceline.serve.asking import Ask, Delta, Ending
from paceline.serve.errors import APIError
from paceline.serve.speculation_fields import metrics
from serve.fakes import FakeService
from serve.front import COMPLETIONS, leave
from serve.openapi_schema import check

post, stream = COMPLETIONS.post, COMPLETIONS.stream


def test_stream():
    chunks = stream(FakeService(), max_tokens=50)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "hello world"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    assert not any({"usage", "metrics", "speculation"} & set(chunk) for chunk in chunks)


def test_stream_of_several_prompts_and_choices_says_what_the_answer_says():
    wishes: dict[str, Any] = {"prompt": ["a", "bc"], "n": 2, "seed": 1, "max_tokens": 50, "logprobs": 1, "echo": True}
    wishes |= {"return_token_ids": True, "prompt_logprobs": 2, "stop": "rld"}
    service = FakeService(answer=lambda ask: f"grüße wörld {ask.params.seed}")
    whole = post(service, **wishes)["choices"]
    chunks = stream(service, **wishes)
    for at, choice in enumerate(whole):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == at]
        assert "".join(one["text"] for one in own) == choice["text"]
        assert [token for one in own for token in one["token_ids"]] == choice["token_ids"]
        assert own[0]["prompt_token_ids"] == choice["prompt_token_ids"]
        assert own[0]["prompt_logprobs"] == choice["prompt_logprobs"]
        for name, values in choice["logprobs"].items():
            assert [value for one in own if one["logprobs"] for value in one["logprobs"][name]] == values
        assert [one["finish_reason"] for one in own if one["finish_reason"]] == ["stop"]
        assert own[-1]["stop_reason"] == "rld"


def test_stream_of_an_echo_alone():
    chunks = stream(FakeService(), max_tokens=0, echo=True, logprobs=1)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "ab"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_usage_of_a_stream():
    chunks = stream(FakeService(), max_tokens=50, stream_options={"include_usage": True, "include_obfuscation": False})
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 12
    assert chunks[-1]["metrics"]["speculative_decoding"]["lossless"] is True
    chunks = stream(FakeService(), max_tokens=50, stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [3, 6, 9, 12, 12]


def test_metrics_of_a_stream_without_usage():
    chunks = stream(FakeService(), n=2, speculation={"off": False})
    assert ["metrics" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["metrics"]["speculative_decoding"]["num_spec_steps"] == 8


def test_trace():
    chunks = stream(FakeService(), speculation={"trace": True})
    step = chunks[0]["speculation"]["steps"][0]
    assert step["emitted"] == [
        {"id": 104, "token": "h", "source": "ngram"},
        {"id": 101, "token": "e", "source": "ngram"},
        {"id": 108, "token": "l", "source": ""},
    ]
    assert step["rejected"] == [
        {"id": 120, "token": "x", "source": "ngram", "parent": -3},
        {"id": 121, "token": "y", "source": "ngram", "parent": 0},
    ]
    assert (step["drafted"], step["accepted"], step["rows"]) == (4, 2, 5)
    assert (step["draft_ms"], step["forward_ms"], step["verify_ms"]) == (1.0, 2.0, 0.5)


def test_metrics_of_several_choices_are_of_all_their_steps():
    service = FakeService(answer=lambda ask: "hello" if ask.params.seed == 1 else "hello world")
    told = post(service, n=2, seed=1, max_tokens=50)["metrics"]["speculative_decoding"]
    # 6 tokens in 2 steps and 12 in 4
    assert (told["num_spec_steps"], told["num_accepted_draft_tokens"], told["num_draft_tokens"]) == (6, 12, 24)
    assert told["acceptance_histogram"] == [0, 0, 6]
    assert (told["mean_acceptance_length"], told["draft_acceptance_rate"], told["tau"]) == (3.0, 0.5, 3.0)
    assert told["acceptance_by_depth"] == [0.75, 0.5]


def test_acceptance_by_depth_is_of_the_steps_that_drafted_so_deep():
    """Whichever choice comes first."""

    def ending(steps: int, shares: list[float], drafted: list[int]) -> Ending:
        counts = FakeService().ending(Ask((1,), SamplingParams(seed=1)), 4, steps, "stop", None).speculation
        depths = {"acceptance_by_depth": shares, "drafted_by_depth": drafted, "num_spec_tokens": len(drafted)}
        return Ending("stop", 1, speculation={**counts, "num_spec_steps": steps, **depths})

    deep, none, shallow = ending(2, [1.0, 0.5], [2, 2]), ending(8, [], []), ending(4, [0.25], [4])
    for ends in ((deep, none, shallow), (none, shallow, deep)):
        told = metrics(ends)["speculative_decoding"]
        assert told["acceptance_by_depth"] == [0.5, 0.5]
        assert told["drafted_by_depth"] == [6, 2]
        assert told["num_spec_tokens"] == 2


def test_metrics_leave_out_choices_that_never_began():
    fake = FakeService()
    ends = [fake.ending(Ask((1,), SamplingParams(seed=seed)), 4, 2, "stop", None) for seed in (1, 2)]
    late = Ending("timeout", 3)
    alone, both = metrics([late]), metrics([late, ends[0]])
    assert alone == {"speculative_decoding": {}, "seed": 3}
    assert both["speculative_decoding"] == ends[0].speculation
    assert metrics([*ends, late])["speculative_decoding"]["num_spec_steps"] == 4


@pytest.mark.parametrize("error", [APIError(503, "the engine failed"), RuntimeError("secret")])
def test_errors_in_a_stream_are_events(error: Exception):
    chunks = stream(FakeService(breaks=(2, error)))
    assert [set(chunk) for chunk in chunks[:2]] == [{"id", "object", "created", "model", "choices"}] * 2
    assert "secret" not in chunks[2]["error"]["message"]
    check("ErrorResponse", chunks[2])


@pytest.mark.parametrize("wish", [False, True])
def test_work_ends_when_the_client_leaves(wish: bool):
    assert COMPLETIONS.left_at_work(stream=wish) == 1


def test_work_ends_when_the_client_leaves_before_the_first_token():
    async def scene() -> None:
        leaves = asyncio.Event()

        class Waiting(FakeService):
            async def submit(self, asks: Any):
                try:
                    leaves.set()
                    await asyncio.Event().wait()
                    yield 0, Delta()
                finally:
                    self.left_early += 1

        service = Waiting()
        sent = await leave(COMPLETIONS.app(service), COMPLETIONS.path, {"prompt": "ab", "stream": True}, leaves)
        assert service.left_early == 1
        assert sent[0]["status"] == 499

    asyncio.run(scene())
