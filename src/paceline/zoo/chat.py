"""The chat format: markers, template, and the turns made from the same tasks as the tagged documents.

A conversation is `<|user|>QUESTION<|end|><|assistant|>ANSWER<|end|>` per exchange, with no blank or
newline beside a marker, then `<|endoftext|>`. Markers are special tokens, so the text on each side
of a marker is tokenized separately.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

END_OF_TEXT = "<|endoftext|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
END = "<|end|>"
SPECIAL_TOKENS = (END_OF_TEXT, USER, ASSISTANT, END)

# A system message has no marker of its own (the data contains none): it is put at the start of the next user turn.
CHAT_TEMPLATE = (
    "{%- set held = namespace(system='') -%}"
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'system' -%}"
    "{%- set held.system = message['content'] + '\n' -%}"
    "{%- elif message['role'] == 'user' -%}"
    "{{- '<|user|>' + held.system + message['content'] + '<|end|>' -}}"
    "{%- set held.system = '' -%}"
    "{%- elif message['role'] == 'assistant' -%}"
    "{{- '<|assistant|>' + message['content'] + '<|end|>' -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)

REQUESTS: dict[str, tuple[str, ...]] = {
    "e2e": (
        "Describe this restaurant: {}",
        "Write a sentence about this place: {}",
        "Turn these facts into a description: {}",
        "Please describe the following venue. {}",
    ),
    "sql": (
        "Write the SQL for: {}",
        "Give me a SQL query for this question: {}",
        "Translate to SQL: {}",
        "What is the SQL query for: {}",
    ),
    "gsm8k": (
        "Solve: {}",
        "Solve this problem step by step: {}",
        "Please work this out: {}",
        "{}",
    ),
    "stories": (
        "Tell me a short story.",
        "Tell me a story.",
        "Write a short story for children.",
        "Please tell me a bedtime story.",
    ),
}

Exchange = tuple[str, str]
"""A question in the user's words, and its answer."""


def render(exchanges: Sequence[Exchange]) -> str:
    """The text of one conversation, as the chat template would write it."""
    return "".join(f"{USER}{question}{END}{ASSISTANT}{answer}{END}" for question, answer in exchanges)


def conversations(tasks: Mapping[str, Sequence[Exchange]], count: int, draw: random.Random) -> list[str]:
    """`count` conversations over `tasks` (task name to question and answer); one in five has two exchanges."""
    names = sorted(name for name, pairs in tasks.items() if pairs)

    def exchange() -> Exchange:
        name = draw.choice(names)
        question, answer = draw.choice(tasks[name])
        return draw.choice(REQUESTS[name]).format(question), answer

    return [render([exchange() for _ in range(2 if draw.random() < 0.2 else 1)]) for _ in range(count)]
