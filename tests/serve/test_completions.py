"""POST /v1/completions over a service without an engine."""

from __future__ import annotations

from typing import Any

import pytest

from paceline import noise
from paceline.params import SamplingParams
from paceline.serve.asking import Delta
from serve.fakes import BOS, FakeService
from serve.front import COMPLETIONS, refusal
from serve.openapi_schema import check_completion

post, asked, stream, refused = COMPLETIONS.post, COMPLETIONS.asked, COMPLETIONS.stream, COMPLETIONS.refused


def test_answer():
    body = post(FakeService(cached_tokens=2), max_tokens=50)
    choice = body["choices"][0]
    assert body["object"] == "text_completion"
    assert body["model"] == "fake-model"
    assert body["id"].startswith("cmpl-")
    assert choice == {"index": 0, "text": "hello world", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    assert body["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 12,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    assert body["metrics"]["speculative_decoding"]["num_spec_steps"] == 4
    assert body["metrics"]["seed"] >= 0


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("ab", [(BOS, 97, 98)]),
        ([97, 98], [(97, 98)]),
        (["a", "b"], [(BOS, 97), (BOS, 98)]),
        ([[97], [98, 99]], [(97,), (98, 99)]),
    ],
)
def test_prompts(prompt: Any, ids: list[tuple[int, ...]]):
    service = FakeService()
    body = post(service, prompt=prompt, n=2)
    assert [ask.prompt for ask in service.asked[0]] == [one for one in ids for _ in range(2)]
    assert [choice["index"] for choice in body["choices"]] == list(range(2 * len(ids)))
    assert body["usage"]["prompt_tokens"] == sum(map(len, ids))


def test_special_tokens_can_be_left_out():
    assert asked(add_special_tokens=False).prompt == (97, 98)


def test_choices_have_seeds_of_their_own():
    service = FakeService()
    body = post(service, prompt=["a", "b"], n=3, seed=7)
    seeds = [ask.params.seed for ask in service.asked[0]]
    assert seeds[:3] == [7, *(noise.stream(7, "choice", at) % 2**53 for at in (1, 2))]
    assert len(set(seeds[:3])) == 3
    assert seeds[3:] == seeds[:3], "each prompt is answered as it would be alone"
    assert body["metrics"]["seed"] == 7


def test_without_a_seed_equal_prompts_are_answered_apart():
    service = FakeService()
    body = post(service, prompt=["a", "a", "a"], n=2)
    seeds = [ask.params.seed for ask in service.asked[0]]
    assert len(set(seeds)) == 6
    assert body["metrics"]["seed"] == seeds[0]


def test_without_a_seed_one_is_drawn_and_told():
    service = FakeService()
    bodies = [post(service), post(service)]
    seeds = [body["metrics"]["seed"] for body in bodies]
    assert seeds == [batch[0].params.seed for batch in service.asked]
    assert seeds[0] != seeds[1]


def test_a_negative_seed_is_one_of_64_bits_but_minus_one_is_none():
    assert asked(seed=-2).params.seed == 2**64 - 2
    assert asked(seed=-1).params.seed != asked(seed=-1).params.seed
    service = FakeService()
    post(service, prompt=["a", "a"], seed=-1)
    ((one, other),) = service.asked
    assert one.params.seed != other.params.seed


def test_every_sampling_field_reaches_the_engine():
    params = asked(
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=-0.2,
        logit_bias={"5": 3, "6": -1.5},
        min_tokens=2,
        stop=["x", "y"],
        stop_token_ids=[9, 8],
        seed=3,
        ignore_eos=True,
        logprobs=2,
        prompt_logprobs=3,
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        max_tokens=9,
        guided_regex="a+",
    ).params
    assert params == SamplingParams(
        max_tokens=9,
        temperature=0.5,
        top_k=5,
        top_p=0.9,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=-0.2,
        logit_bias={5: 3, 6: -1.5},
        min_tokens=2,
        stop=("x", "y"),
        stop_token_ids=frozenset({8, 9}),
        seed=3,
        ignore_eos=True,
        logprobs=2,
        prompt_logprobs=3,
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        grammar={"kind": "regex", "text": "a+"},  # pyright: ignore[reportArgumentType]
    )


def test_unset_sampling_fields_come_from_the_model_and_then_from_the_api():
    plain = asked(top_k=-1, top_p=0).params
    assert (plain.temperature, plain.top_k, plain.max_tokens) == (1.0, 0, 16)
    assert 0 < plain.top_p < 1e-6
    service = FakeService(defaults={"temperature": 0.6, "top_p": 0.8, "top_k": 20, "unknown": 1})
    post(service, top_p=0.9)
    params = service.asked[0][0].params
    assert (params.temperature, params.top_p, params.top_k) == (0.6, 0.9, 20)


def test_an_answer_never_outgrows_the_context():
    assert asked(max_tokens=100_000).params.max_tokens == 512 - 3
    service = FakeService()
    COMPLETIONS.client(service, default_max_tokens=33).post(COMPLETIONS.path, json={"prompt": "ab"})
    assert service.asked[0][0].params.max_tokens == 33
    status, param, message = refused(prompt="a" * 600)
    assert (status, param) == (400, "prompt")
    assert "has 601" in message
    assert "512" in message


def test_tenant_priority_reference_and_speculation_reach_the_engine():
    ask = asked(
        cache_salt="mine",
        priority=-3,
        prediction={"type": "content", "content": [{"type": "text", "text": "he"}, {"type": "text", "text": "llo"}]},
        speculation={"drafter": "ngram+model", "budget": 5},
    )
    assert (ask.tenant, ask.priority, ask.reference) == ("mine", -3, tuple(b"hello"))
    assert (ask.drafters, ask.nodes, ask.trace) == (("ngram", "model"), 5, False)
    assert asked(prediction={"type": "content", "content": "hi"}).reference == tuple(b"hi")


def test_a_prediction_goes_no_further_than_the_context_and_is_shared_by_all_choices():
    service = FakeService(context_length=50)
    post(service, prompt=["ab", "cd"], n=3, prediction={"type": "content", "content": "0123456789" * 9})
    first, *others = [ask.reference for ask in service.asked[0]]
    assert first == tuple(b"0123456789" * 5)
    assert [other is first for other in others] == [True] * 5


def test_predictions_of_all_choices_together_are_bounded():
    body = {"prompt": ["a"] * 4, "n": 5}

    def answered(tokens: int) -> tuple[int, str | None, str]:
        service = FakeService()
        asking = {**body, "prediction": {"type": "content", "content": "x" * tokens}}
        answer = COMPLETIONS.client(service, max_prompt_chars=1000).post(COMPLETIONS.path, json=asking)
        assert len(service.asked) == (answer.status_code == 200)
        error = answer.json().get("error", {"param": None, "message": ""})
        return answer.status_code, error["param"], error["message"]

    assert answered(50) == (200, None, "")
    said = "'prediction' has 51 tokens for each of 20 choices; the server takes at most 1000 together"
    assert answered(51) == (400, "prediction", said)


@pytest.mark.parametrize(
    ("speculation", "drafters"),
    [
        ({}, None),
        ({"drafter": "none"}, ()),
        ({"drafter": []}, ()),
        ({"off": True}, ()),
        ({"off": True, "drafter": "ngram"}, ()),
        ({"drafter": ["ngram", "ngram"]}, ("ngram",)),
        ({"drafter": "reference"}, ("reference",)),
    ],
)
def test_drafters(speculation: dict[str, Any], drafters: tuple[str, ...] | None):
    assert asked(speculation=speculation).drafters == drafters


def test_predicted_tokens_are_counted_only_with_a_prediction():
    body = post(FakeService(), max_tokens=50, prediction={"type": "content", "content": "hello world, then more"})
    assert body["usage"]["completion_tokens_details"] == {"accepted_prediction_tokens": 8, "rejected_prediction_tokens": 14}
    assert body["usage"]["completion_tokens"] == 12
    assert "completion_tokens_details" not in post(FakeService())["usage"]


@pytest.mark.parametrize(
    ("body", "reason", "stopped", "text"),
    [
        ({"max_tokens": 4}, "length", None, "hell"),
        ({"stop": "wor"}, "stop", "wor", "hello "),
        ({"stop": ["zz", "o w"], "include_stop_str_in_output": True}, "stop", "o w", "hello w"),
    ],
)
def test_endings(body: dict[str, Any], reason: str, stopped: str | None, text: str):
    choice = post(FakeService(), **body)["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"], choice["text"]) == (reason, stopped, text)


def _ends(reason: str) -> FakeService:
    fake = FakeService()
    return FakeService(script=lambda ask: [Delta("h", (104,), ("",), ending=fake.ending(ask, 1, 1, reason, None))])


def test_a_timeout_cuts_the_length_and_says_so():
    choice = post(_ends("timeout"))["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"], choice["text"]) == ("length", "timeout", "h")


def test_an_answer_given_up_is_an_error():
    answer = COMPLETIONS.client(_ends("abort")).post(COMPLETIONS.path, json={"prompt": "ab"})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    never = COMPLETIONS.client(FakeService(script=lambda ask: [Delta("h", (104,), ("",))]))
    assert never.post(COMPLETIONS.path, json={"prompt": "ab"}).status_code == 503
    silent = COMPLETIONS.client(FakeService(script=lambda ask: []))
    assert silent.post(COMPLETIONS.path, json={"prompt": "ab", "stream": True}).status_code == 503


def test_grammars():
    schema = '{"type":"object"}'
    for body, kind, text in (
        ({"guided_json": {"type": "object"}}, "json_schema", schema),
        ({"guided_json": schema}, "json_schema", schema),
        ({"guided_grammar": 'start: "a"'}, "lark", 'start: "a"'),
        ({"guided_choice": ["yes", 'n"o']}, "lark", 'start: "yes" | "n\\"o"'),
        ({"structured_outputs": {"regex": "a"}}, "regex", "a"),
        ({"structured_outputs": {"json": {"type": "object"}}}, "json_schema", schema),
        ({"response_format": {"type": "json_object"}}, "json_schema", schema),
    ):
        grammar = asked(**body).params.grammar
        assert grammar is not None
        assert (grammar.kind, grammar.text) == (kind, text)
    service = FakeService(refused_grammar="the expression is broken")
    told = refusal(COMPLETIONS.client(service), COMPLETIONS.path, {"prompt": "a", "guided_regex": "("})
    assert told == (400, "guided_regex", "the expression is broken")


WISHES: list[dict[str, Any]] = [
    {},
    {"logprobs": 3, "n": 2},
    {"echo": True, "logprobs": 1, "max_tokens": 0},
    {"prediction": {"type": "content", "content": "hello"}},
    {"stop": "wor", "return_token_ids": True, "prompt_logprobs": 1},
]


@pytest.mark.parametrize("wish", WISHES)
def test_answers_are_what_openai_describes(wish: dict[str, Any]):
    check_completion(post(FakeService(), **wish))
    for chunk in stream(FakeService(), stream_options={"include_usage": True}, speculation={"trace": True}, **wish):
        check_completion(chunk)
