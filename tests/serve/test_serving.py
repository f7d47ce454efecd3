"""The whole server on the embedded model: its texts are those of plain decoding, also beside other requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx2 as httpx
import pytest

from paceline.engine.llm import LLM
from paceline.params import SamplingParams
from serve.harness import Served, running, text_of

PROMPTS = ["name : The Punter , food : Italian", "Once upon a time", "def add(a, b):", "How many singles", "1 + 2 ="]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with running("--batch", "6") as served:
        yield served


@pytest.fixture(scope="module")
def steady() -> Iterator[Served]:
    """A server whose policy does not measure: how much it drafts does not depend on the machine's load."""
    with running("--policy", "fixed") as served:
        yield served


@pytest.fixture(scope="module")
def texts() -> dict[tuple[str, float], str]:
    """Texts of plain decoding, without a server."""
    llm = LLM(draft="none")
    said = {}
    for temperature in (0.0, 0.8):
        params = SamplingParams(max_tokens=48, temperature=temperature, seed=11)
        answers = llm.generate(PROMPTS, params)
        said |= {(prompt, temperature): answer.text for prompt, answer in zip(PROMPTS, answers, strict=True)}
    return said


@pytest.mark.parametrize("drafter", [None, "none", "ngram", "suffix", "lookahead", "recycle", "model", "ngram+model"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_texts_are_those_of_plain_decoding(
    server: Served, texts: dict[tuple[str, float], str], drafter: str | None, temperature: float
) -> None:
    asked = {"max_tokens": 48, "temperature": temperature, "seed": 11}
    speculation = {} if drafter is None else {"speculation": {"drafter": drafter}}

    async def all_at_once() -> list[str]:
        async with httpx.AsyncClient(base_url=server.url, timeout=60.0) as client:
            bodies = [{"prompt": prompt, **asked, **speculation} for prompt in PROMPTS]
            answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))
            return [answer.json()["choices"][0]["text"] for answer in answers]

    wanted = [texts[prompt, temperature] for prompt in PROMPTS]
    assert asyncio.run(all_at_once()) == wanted
    assert text_of(server.streamed(prompt=PROMPTS[0], **asked, **speculation)) == wanted[0]


def test_all_prompts_of_one_request_and_all_choices_of_one_prompt(server: Served, texts: dict[tuple[str, float], str]) -> None:
    together = server.complete(prompt=PROMPTS, max_tokens=48, temperature=0.8, seed=11)
    assert [choice["text"] for choice in together["choices"]] == [texts[prompt, 0.8] for prompt in PROMPTS]
    several = server.complete(prompt=PROMPTS[1], max_tokens=48, temperature=0.8, seed=11, n=3)["choices"]
    assert several[0]["text"] == texts[PROMPTS[1], 0.8]
    assert len({choice["text"] for choice in several}) == 3


def test_a_seed_that_was_drawn_repeats_the_text(server: Served) -> None:
    first = server.complete(prompt=PROMPTS[1], max_tokens=32, temperature=1.0)
    again = server.complete(prompt=PROMPTS[1], max_tokens=32, temperature=1.0, seed=first["metrics"]["seed"])
    assert again["choices"][0]["text"] == first["choices"][0]["text"]


def test_speculation_is_reported_traced_and_switched_off_on_request(steady: Served) -> None:
    told = steady.complete(prompt=PROMPTS[1], max_tokens=48)["metrics"]["speculative_decoding"]
    assert (told["lossless"], told["keeps"]) == (True, "text")
    assert told["num_draft_tokens"] > 0
    assert told["drafter"] == "ngram+model"
    assert sum(told["acceptance_histogram"]) == told["num_spec_steps"]
    off = steady.complete(prompt=PROMPTS[1], max_tokens=48, speculation={"off": True})["metrics"]["speculative_decoding"]
    assert (off["num_draft_tokens"], off["tau"], off["drafter"]) == (0, 1.0, "none")
    steps = [
        step
        for chunk in steady.streamed(
            prompt=PROMPTS[1], max_tokens=48, speculation={"drafter": "model", "budget": 2, "trace": True}
        )
        for step in chunk.get("speculation", {}).get("steps", [])
    ]
    assert max(step["drafted"] for step in steps) == 2
    assert sum(len(step["emitted"]) for step in steps) == 48
    refused = steady.client.post("/v1/completions", json={"prompt": "x", "speculation": {"drafter": "oracle"}})
    assert refused.status_code == 400
    assert "ngram" in refused.json()["error"]["message"]


def test_predicted_outputs_are_drafted_from(steady: Served) -> None:
    whole = steady.complete(prompt=PROMPTS[1], max_tokens=40)
    text = whole["choices"][0]["text"]
    assert "completion_tokens_details" not in whole["usage"]
    predicted = steady.complete(prompt=PROMPTS[1], max_tokens=40, prediction={"type": "content", "content": text})
    assert predicted["choices"][0]["text"] == text
    details = predicted["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 20
    assert predicted["metrics"]["speculative_decoding"]["num_spec_steps"] < 20
    wrong = steady.complete(prompt=PROMPTS[1], max_tokens=40, prediction={"type": "content", "content": "0 1 2 3 4 5 6 7 8 9"})
    assert wrong["choices"][0]["text"] == text
    assert wrong["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == 0


def test_log_probabilities_do_not_depend_on_drafts(server: Served) -> None:
    asked = {"prompt": PROMPTS[1], "max_tokens": 24, "logprobs": 3, "echo": True}
    plain = server.complete(**asked, speculation={"off": True})["choices"][0]
    drafted = server.complete(**asked)["choices"][0]
    assert drafted == plain
    told = plain["logprobs"]
    assert told["token_logprobs"][0] is None
    assert all(value <= 0 for value in told["token_logprobs"][1:])
    assert "".join(told["tokens"]) == plain["text"]


def test_answers_keep_to_a_form(server: Served) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "n": {"type": "integer", "maximum": 99}},
        "required": ["name", "n"],
        "additionalProperties": False,
    }
    import json

    asked = {"prompt": PROMPTS[0], "max_tokens": 120, "temperature": 0.7, "seed": 5, "structured_outputs": {"json": schema}}
    plain = server.complete(**asked, speculation={"off": True})["choices"][0]
    drafted = server.complete(**asked)["choices"][0]
    assert drafted["text"] == plain["text"]
    assert plain["finish_reason"] == "stop"
    assert set(json.loads(plain["text"])) == {"name", "n"}


def test_an_answer_that_takes_too_long_is_cut_and_says_so() -> None:
    with running("--request-timeout-s", "0.2") as served:
        answer = served.complete(prompt="Once upon a time", max_tokens=1000, ignore_eos=True, speculation={"off": True})
        (choice,) = answer["choices"]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "timeout")
        assert 0 < answer["usage"]["completion_tokens"] < 1000
        assert answer["metrics"]["speculative_decoding"]["num_spec_steps"] > 0
        chunk = served.streamed(prompt="Once upon a time", max_tokens=1000, ignore_eos=True, speculation={"off": True})[-1]
        assert chunk["choices"][0]["stop_reason"] == "timeout"
        served.wait_for("vllm:num_requests_running", 0, 2.0)


def test_metrics_report_the_cache_size_and_queue_time_without_prompt_reading() -> None:
    with running("--cache-tokens", "4096") as served:
        assert served.metric("paceline_cache_tokens") == 4096
        served.complete(prompt="The little dog ran after the red ball. " * 100, max_tokens=1)
        # the request had no other before it: reading its prompt does not count as waiting
        waited_s = served.metric("vllm:request_queue_time_seconds_sum")
        assert waited_s < served.metric("vllm:time_to_first_token_seconds_sum") / 4


def test_what_is_kept_of_one_key_is_not_shown_to_another() -> None:
    keys = ("first-key-0123", "second-key-0123")
    asked = {"prompt": "The little dog ran after the red ball. " * 12, "max_tokens": 4}

    def cached(served: Served, key: str, **more: object) -> int:
        answer = served.client.post("/v1/completions", json={**asked, **more}, headers={"Authorization": f"Bearer {key}"})
        return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    with running("--api-key", keys[0], "--api-key", keys[1]) as served:
        assert cached(served, keys[0]) == 0
        assert cached(served, keys[0]) > 64
        assert cached(served, keys[1]) == 0
        assert cached(served, keys[1]) > 64
        assert cached(served, keys[0], cache_salt="mine") == 0
        assert served.client.get("/v1/models").status_code == 401
