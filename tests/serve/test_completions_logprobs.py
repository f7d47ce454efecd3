"""Token data from POST /v1/completions: log-probabilities, ids, and the prompt itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.logprobs import TokenLogprobs
from paceline.serve.asking import Delta
from paceline.serve.logprob_fields import chat_entries
from serve.fakes import BOS, EOS, VOCAB, FakeService, token_logprobs
from serve.front import COMPLETIONS

post = COMPLETIONS.post


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


def test_text_offsets_are_right_among_unfinished_characters():
    fake = FakeService()
    tokens = (97, 0xC3, 98, 0xE2, 0x82, 0xC3, 0xBC)
    told = tuple(token_logprobs(token, 0) for token in tokens)
    text = bytes(tokens).decode(errors="replace")
    ends = Delta(text, tokens, ("",) * 7, told)
    service = FakeService(script=lambda ask: [replace(ends, ending=fake.ending(ask, 7, 1, "length", None))])
    offsets = post(service, logprobs=0)["choices"][0]["logprobs"]["text_offset"]
    assert offsets == [0, 1, 2, 3, 3, 4, 4]
    assert [text[place] for place in offsets] == list("a\ufffdb\ufffd\ufffdüü")


def test_special_tokens_that_the_text_leaves_out_take_no_room():
    fake = FakeService()
    told = tuple(token_logprobs(token, 0) for token in (97, EOS, 98))
    ends = Delta("ab", (97, EOS, 98), ("", "", ""), told)
    service = FakeService(script=lambda ask: [replace(ends, ending=fake.ending(ask, 3, 1, "length", None))])
    assert post(service, logprobs=0)["choices"][0]["logprobs"]["text_offset"] == [0, 1, 1]
    assert post(service, logprobs=0, skip_special_tokens=False)["choices"][0]["logprobs"]["text_offset"] == [0, 1, 5]


@pytest.mark.parametrize("logprob", ["-inf", "nan"])
def test_infinite_and_nan_logprobs_are_written_as_minus_9999(logprob: str):
    impossible = TokenLogprobs(97, float(logprob), VOCAB, ((98, float(logprob)),))
    fake = FakeService()
    ends = Delta("a", (97,), ("",), (impossible,), prompt_logprobs=(None, impossible))
    service = FakeService(script=lambda ask: [replace(ends, ending=fake.ending(ask, 1, 1, "stop", None))])
    body = post(service, logprobs=1, prompt_logprobs=1)
    told = body["choices"][0]["logprobs"]
    assert told["token_logprobs"] == [-9999.0]
    assert told["top_logprobs"] == [{"a": -9999.0, "b": -9999.0}]
    assert {one["logprob"] for one in body["choices"][0]["prompt_logprobs"][1].values()} == {-9999.0}
    (entry,) = chat_entries(service, [impossible])
    assert entry["logprob"] == entry["top_logprobs"][0]["logprob"] == -9999.0


def test_lm_eval_reads_the_prompt():
    """The request of lm_eval's local-completions: token ids, one new token, the likeliest token at each position."""
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
    assert choice["logprobs"]["text_offset"] == [0, 0, 1], "a BOS that the text does not show has no length"
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
