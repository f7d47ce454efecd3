"""POST /v1/completions over a service without an engine."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from paceline import noise
from paceline.logprobs import TokenLogprobs
from paceline.params import SamplingParams
from paceline.serve.asking import Ask, Delta, Ending
from paceline.serve.errors import APIError
from paceline.serve.routes.completions import router
from paceline.serve.speculation_told import metrics
from serve.fakes import BOS, EOS, VOCAB, FakeService, token_logprobs
from serve.front import app_of, client_of, leave, refusal, streamed
from serve.openapi_schema import check, check_completion

PATH = "/v1/completions"


def post(service: FakeService, **body: Any) -> dict[str, Any]:
    answer = client_of(service, router).post(PATH, json={"prompt": "ab", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def asked(**body: Any) -> Ask:
    service = FakeService()
    post(service, **body)
    return service.asked[0][0]


def stream(service: FakeService, **body: Any) -> list[dict[str, Any]]:
    return streamed(client_of(service, router), PATH, {"prompt": "ab", **body})


def refused(**body: Any) -> tuple[int, str | None, str]:
    service = FakeService()
    told = refusal(client_of(service, router), PATH, {"prompt": "ab", **body})
    assert not service.asked, "the engine heard of a request that was refused"
    return told


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
    assert seeds[:3] == [7, *(noise.stream(7, "choice", at) % 2**63 for at in (1, 2))]
    assert len(set(seeds[:3])) == 3
    assert seeds[3:] == seeds[:3], "a prompt is answered as it would be alone"
    assert body["metrics"]["seed"] == 7


def test_without_a_seed_one_is_drawn_and_told():
    service = FakeService()
    bodies = [post(service), post(service)]
    seeds = [body["metrics"]["seed"] for body in bodies]
    assert seeds == [batch[0].params.seed for batch in service.asked]
    assert seeds[0] != seeds[1]


def test_a_negative_seed_is_one_of_64_bits():
    assert asked(seed=-1).params.seed == 2**64 - 1


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
        keep_stop=True,
        skip_special=False,
        grammar={"kind": "regex", "text": "a+"},  # pyright: ignore[reportArgumentType]
    )


def test_what_a_request_does_not_say_the_model_does_and_then_the_api():
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
    client_of(service, router, default_max_tokens=33).post(PATH, json={"prompt": "ab"})
    assert service.asked[0][0].params.max_tokens == 33
    status, param, message = refused(prompt="a" * 600)
    assert (status, param) == (400, "prompt")
    assert "601 tokens" in message
    assert "512" in message


def test_the_other_wishes_of_a_choice():
    ask = asked(
        cache_salt="mine",
        priority=-3,
        prediction={"type": "content", "content": [{"type": "text", "text": "he"}, {"type": "text", "text": "llo"}]},
        speculation={"drafter": "ngram+model", "budget": 5},
    )
    assert (ask.tenant, ask.priority, ask.reference) == ("mine", -3, tuple(b"hello"))
    assert (ask.drafters, ask.nodes, ask.trace) == (("ngram", "model"), 5, False)
    assert asked(prediction={"type": "content", "content": "hi"}).reference == tuple(b"hi")


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


def test_logprobs():
    body = post(FakeService(), logprobs=2, max_tokens=5)
    told = body["choices"][0]["logprobs"]
    expected = [token_logprobs(token, 2) for token in b"hello"]
    assert told["tokens"] == list("hello")
    assert told["token_logprobs"] == [one.logprob for one in expected]
    assert told["top_logprobs"][0] == {"h": expected[0].logprob, "i": expected[0].logprob - 1}
    assert told["text_offset"] == [0, 1, 2, 3, 4]


def test_logprobs_of_bytes_that_are_no_character():
    told = post(FakeService(answer="aüb"), logprobs=0)["choices"][0]["logprobs"]
    assert told["tokens"] == ["a", "bytes:\\xc3", "bytes:\\xbc", "b", "</s>"]
    assert told["text_offset"] == [0, 1, 1, 2, 3]
    assert [len(top) for top in told["top_logprobs"]] == [1] * 5


def test_infinite_logprobs_are_written_as_openai_writes_them():
    impossible = TokenLogprobs(97, float("-inf"), VOCAB, ((98, float("-inf")),))
    fake = FakeService()
    ends = Delta("a", (97,), ("",), (impossible,))
    service = FakeService(script=lambda ask: [replace(ends, ending=fake.ending(ask, 1, 1, "stop", None))])
    told = post(service, logprobs=1)["choices"][0]["logprobs"]
    assert told["token_logprobs"] == [-9999.0]
    assert told["top_logprobs"] == [{"a": -9999.0, "b": -9999.0}]


def test_lm_eval_reads_the_prompt():
    """Its local-completions: token ids, one token more, the likeliest of each place beside it."""
    service = FakeService()
    prompts = [[97, 98, 99], [100, 101]]
    body = post(service, prompt=prompts, max_tokens=1, logprobs=1, echo=True, temperature=0, seed=1234)
    for prompt, choice, ask in zip(prompts, body["choices"], service.asked[0], strict=True):
        told = choice["logprobs"]
        assert {len(values) for values in told.values()} == {len(prompt) + 1}
        assert told["token_logprobs"][0] is None
        assert told["token_logprobs"][1:-1] == [token_logprobs(token, 1).logprob for token in prompt[1:]]
        for logprob, top in zip(told["token_logprobs"][1:], told["top_logprobs"][1:], strict=True):
            assert logprob == max(top.values())
        assert choice["text"] == bytes(prompt).decode() + "h"
        assert told["text_offset"] == list(range(len(prompt) + 1))
        assert ask.params.prompt_logprobs == 1
        assert ask.params.max_tokens == 1


def test_echo_alone():
    body = post(FakeService(), max_tokens=0, echo=True, logprobs=1)
    choice = body["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("ab", "length", None)
    assert choice["logprobs"]["tokens"] == ["<s>", "a", "b"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 1], "a BOS that the text does not show takes no room"
    assert body["usage"]["completion_tokens"] == 0
    assert post(FakeService(), max_tokens=0)["choices"][0]["text"] == ""
    assert post(FakeService(), max_tokens=0, echo=True)["choices"][0]["logprobs"] is None


def test_echo_of_ids_shows_special_tokens():
    choice = post(FakeService(), prompt=[BOS, 97], echo=True, logprobs=0, max_tokens=1)["choices"][0]
    assert choice["text"] == "<s>ah"
    assert choice["logprobs"]["text_offset"] == [0, 3, 4]


def test_prompt_logprobs():
    choice = post(FakeService(), prompt_logprobs=1, echo=True, logprobs=3, max_tokens=1)["choices"][0]
    assert choice["prompt_logprobs"][0] is None
    assert choice["prompt_logprobs"][1] == {
        "97": {"logprob": token_logprobs(97, 1).logprob, "rank": 1, "decoded_token": "a"},
    }
    assert len(choice["logprobs"]["top_logprobs"][1]) == 3


def test_token_ids():
    choice = post(FakeService(), return_token_ids=True)["choices"][0]
    assert choice["prompt_token_ids"] == [BOS, 97, 98]
    assert choice["token_ids"] == [*b"hello world", EOS]


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
    answer = client_of(_ends("abort"), router).post(PATH, json={"prompt": "ab"})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    never = client_of(FakeService(script=lambda ask: [Delta("h", (104,), ("",))]), router)
    assert never.post(PATH, json={"prompt": "ab"}).status_code == 503
    silent = client_of(FakeService(script=lambda ask: []), router)
    assert silent.post(PATH, json={"prompt": "ab", "stream": True}).status_code == 503


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


def test_metrics_without_choices_that_never_began():
    fake = FakeService()
    ends = [fake.ending(Ask((1,), SamplingParams(seed=seed)), 4, 2, "stop", None) for seed in (1, 2)]
    late = Ending("timeout", 3)
    alone, both = metrics([late]), metrics([late, ends[0]])
    assert alone == {"speculative_decoding": {}, "seed": 3}
    assert both["speculative_decoding"] == ends[0].speculation
    assert metrics([*ends, late])["speculative_decoding"]["num_spec_steps"] == 4


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
    told = refusal(client_of(service, router), PATH, {"prompt": "a", "guided_regex": "("})
    assert told == (400, "guided_regex", "the expression is broken")


NEUTRAL = {
    "user": "me",
    "metadata": {"a": "b"},
    "store": False,
    "service_tier": "auto",
    "safety_identifier": "x",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "best_of": 1,
    "suffix": None,
    "logit_bias": None,
    "stop": None,
    "stream": None,
    "stream_options": None,
    "model": "fake-model",
    "temperature": None,
    "n": None,
    "max_tokens": None,
    "logprobs": None,
}


@pytest.mark.parametrize(("name", "value"), list(NEUTRAL.items()))
def test_accepted_though_it_changes_nothing(name: str, value: Any):
    assert asked(**{name: value}, seed=1) == asked(seed=1)


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"suffix": "x"}, "suffix", "not supported"),
        ({"best_of": 2}, "best_of", "not supported"),
        ({"use_beam_search": True}, "use_beam_search", "not supported"),
        ({"chat_template": "x"}, "chat_template", "not supported"),
        ({"store": True}, "store", "not supported"),
        ({"service_tier": "flex"}, "service_tier", "not supported"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "'stream'"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "unknown field 'stream_options.x'"),
        ({"speculation": {"trace": True}}, "speculation.trace", "'stream'"),
        ({"speculation": {"nodes": 3}}, "speculation.nodes", "unknown field"),
        ({"speculation": {"budget": 65}}, "speculation.budget", "less than or equal to 64"),
        ({"speculation": {"drafter": "eagle"}}, "speculation.drafter", "model, ngram, reference"),
        ({"messages": []}, "messages", "unknown field 'messages'"),
        ({"prompt": None}, "prompt", "'prompt'"),
        ({"prompt": 5}, "prompt", "'prompt'"),
        ({"prompt": []}, "prompt", "'prompt'"),
        ({"prompt": [[]]}, "prompt[0]", "'prompt[0]'"),
        ({"prompt": ["a", 5]}, "prompt[1]", "'prompt[1]'"),
        ({"prompt": [1, "a"]}, "prompt[1]", "'prompt[1]'"),
        ({"prompt": [True]}, "prompt[0]", "'prompt[0]'"),
        ({"prompt": [-1]}, "prompt[0]", "'prompt[0]'"),
        ({"prompt": [VOCAB]}, "prompt", "token 258"),
        ({"prompt": ["a"] * 65}, "prompt", "at most 64"),
        ({"prompt": "", "add_special_tokens": False}, "prompt", "empty"),
        ({"n": 17}, "n", "at most 16"),
        ({"n": 0}, "n", "'n' should be"),
        ({"n": "2"}, "n", "'n' should be a valid integer"),
        ({"max_tokens": -1}, "max_tokens", "greater than or equal to 0"),
        ({"max_tokens": True}, "max_tokens", "'max_tokens'"),
        ({"temperature": -0.1}, "temperature", "'temperature'"),
        ({"temperature": 1e-9}, "temperature", "1e-6"),
        ({"temperature": 1e6}, "temperature", "'temperature'"),
        ({"top_p": 1.1}, "top_p", "'top_p'"),
        ({"logprobs": 21}, "logprobs", "'logprobs'"),
        ({"logprobs": True}, "logprobs", "'logprobs'"),
        ({"prompt_logprobs": -1}, "prompt_logprobs", "'prompt_logprobs'"),
        ({"logit_bias": {"a": 1}}, "logit_bias.a", "'logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "'logit_bias"),
        ({"logit_bias": {"258": 1}}, "logit_bias", "token 258"),
        ({"stop_token_ids": [400]}, "stop_token_ids", "token 400"),
        ({"stop": ["a"] * 17}, "stop", "at most 16"),
        ({"stop": ""}, "stop", "'stop'"),
        ({"stop": [1]}, "stop[0]", "'stop[0]'"),
        ({"stop": ["a"] * 500}, "stop", "'stop'"),
        ({"seed": 2**64}, "seed", "'seed'"),
        ({"repetition_penalty": 0}, "repetition_penalty", "'repetition_penalty'"),
        ({"guided_regex": "a", "guided_grammar": "b"}, "guided_grammar", "exclude"),
        ({"structured_outputs": {}}, "structured_outputs", "one of"),
        ({"guided_regex": ""}, "guided_regex", "'guided_regex'"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "'response_format.type'"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "json_schema"),
        ({"prediction": {"type": "text", "content": "a"}}, "prediction.type", "'prediction.type'"),
        ({"min_tokens": -1}, "min_tokens", "'min_tokens'"),
        ({"\ud800": 1}, None, "not valid Unicode"),
        ({"\ud83d\ude00": 1}, "\\U0001f600", "unknown field"),
        ({"a" * 1000: 1}, "a" * 64, "unknown field"),
    ],
)
def test_refused(body: dict[str, Any], param: str | None, words: str):
    status, told, message = refused(**body)
    assert status == 400
    assert told == param
    assert words in message


def test_bodies_that_are_none():
    client = client_of(FakeService(), router)
    for answer in (
        client.post(PATH, content=b"{", headers={"content-type": "application/json"}),
        client.post(PATH, content=b'"\xff"', headers={"content-type": "application/json"}),
        client.post(PATH, content=b"[" * 100_000, headers={"content-type": "application/json"}),
        client.post(PATH, content=b"[]", headers={"content-type": "application/json"}),
        client.post(PATH, content=b"null", headers={"content-type": "application/json"}),
        client.post(PATH, content=b""),
        client.post(PATH, content=b"{}", headers={"content-type": "text/plain"}),
        client.post(PATH, content=b'{"prompt": "a", "temperature": NaN}', headers={"content-type": "application/json"}),
    ):
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"
    assert client.post(PATH, json={}).json()["error"]["param"] == "prompt"


def test_long_prompts_are_refused_before_they_are_read():
    client = client_of(FakeService(), router, max_prompt_chars=10)
    assert refusal(client, PATH, {"prompt": ["a" * 6, "b" * 5]})[:2] == (400, "prompt")
    assert client.post(PATH, json={"prompt": ["a" * 5, "b" * 5]}).status_code == 200


def test_unknown_model():
    status, param, message = refused(model="gpt")
    assert (status, param) == (404, "model")
    assert "fake-model" in message


def test_errors_before_the_first_token_have_their_status():
    full = APIError(429, "the queue is full", retry_after_s=3)
    for wish in (False, True):
        answer = client_of(FakeService(refuses=full), router).post(PATH, json={"prompt": "a", "stream": wish})
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "3"
        assert answer.json()["error"]["type"] == "rate_limit_error"


@pytest.mark.parametrize("error", [APIError(503, "the engine failed"), RuntimeError("secret")])
def test_errors_in_a_stream_are_events(error: Exception):
    chunks = stream(FakeService(breaks=(2, error)))
    assert [set(chunk) for chunk in chunks[:2]] == [{"id", "object", "created", "model", "choices"}] * 2
    assert "secret" not in chunks[2]["error"]["message"]
    check("ErrorResponse", chunks[2])


@pytest.mark.parametrize("wish", [False, True])
def test_work_ends_when_the_client_leaves(wish: bool):
    async def scene() -> None:
        leaves = asyncio.Event()

        async def hold() -> None:
            leaves.set()
            await asyncio.Event().wait()

        service = FakeService(hold=hold)
        await leave(app_of(service, router), PATH, {"prompt": "ab", "stream": wish}, leaves)
        assert service.left_early == 1

    asyncio.run(scene())


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
        sent = await leave(app_of(service, router), PATH, {"prompt": "ab", "stream": True}, leaves)
        assert service.left_early == 1
        assert sent[0]["status"] == 499

    asyncio.run(scene())


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


def test_refusals_are_what_openai_describes():
    check("ErrorResponse", client_of(FakeService(), router).post(PATH, json={"prompt": 5}).json())
