"""LiteLLM with this server as an OpenAI-compatible provider and as a hosted vLLM."""

from __future__ import annotations

import litellm
import pytest

ASKED = [{"role": "user", "content": "name[Aromi], eatType[coffee shop], food[Chinese]"}]


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_completion_whole_and_streamed(url: str, key: str, provider: str) -> None:
    asked = {
        "model": f"{provider}/paceline-14m",
        "messages": ASKED,
        "api_base": f"{url}/v1",
        "api_key": key,
        "temperature": 0,
        "max_tokens": 24,
    }
    whole = litellm.completion(**asked)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(**asked, stream=True))
    assert whole.choices[0].message.content == streamed
    assert whole.usage.completion_tokens > 0


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_an_answer_is_sent_back(url: str, key: str, provider: str) -> None:
    """As agents do; it puts fields of the answer that it does not know into one of its own, and sends that back too."""
    asked = {"model": f"{provider}/paceline-14m", "api_base": f"{url}/v1", "api_key": key, "max_tokens": 8}
    answer = litellm.completion(messages=ASKED, **asked).choices[0].message
    again = litellm.completion(messages=[*ASKED, answer, {"role": "user", "content": "And?"}], **asked)
    assert again.choices[0].message.content


def test_text_completion(url: str, key: str) -> None:
    answer = litellm.text_completion(
        model="text-completion-openai/paceline-14m", prompt="Once upon", api_base=f"{url}/v1", api_key=key, max_tokens=8
    )
    assert answer.choices[0].text
