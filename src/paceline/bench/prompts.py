"""From tasks to token ids: chat turns answered by plain decoding, and solved examples put in front as context."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.bench.contest import Decoder, answer
from paceline.bench.tasks import Item, Task
from paceline.models.base import LanguageModel
from paceline.models.tokenizer import Tokenizer


@dataclass(frozen=True)
class Prepared:
    """A task as every decoder gets it. prompts: token ids, one prompt per turn that fits. left_out: number of turns left out as
    too long for the model."""

    name: str
    prompts: tuple[tuple[int, ...], ...]
    left_out: int


class Preparer:
    """context_tokens: most tokens of solved examples that are put before each prompt of a task that has them.

    plain: decodes the answers that later turns follow, so that every engine gets the same text.
    """

    def __init__(
        self, tokenizer: Tokenizer, target: LanguageModel, longest: int, plain: Decoder, max_tokens: int, context_tokens: int
    ) -> None:
        self._tokenizer, self._plain, self._max_tokens = tokenizer, plain, max_tokens
        self._ends, self._longest, self._context_tokens = target.eos_token_ids, longest, context_tokens

    def __call__(self, task: Task) -> Prepared:
        """Raises ModelError if a prompt is not text."""
        context = self._context(task.examples)
        prompts: list[tuple[int, ...]] = []
        left_out = 0
        for item in task.items:
            ids = self._turns(item)
            fitting = [tuple(context + turn) for turn in ids if 0 < len(context) + len(turn) <= self._longest - self._max_tokens]
            prompts += fitting
            left_out += len(item.texts) - len(fitting)
        return Prepared(task.name, tuple(prompts), left_out)

    def _context(self, examples: tuple[str, ...]) -> list[int]:
        """As many whole examples as fit, each followed by an end of text."""
        found: list[int] = []
        for example in examples:
            ids = [*self._tokenizer.encode(example), *sorted(self._ends)[:1]]
            if len(found) + len(ids) > self._context_tokens:
                break
            found += ids
        return found

    def _turns(self, item: Item) -> list[list[int]]:
        """The prompt of each turn, up to the first one that is too long to be answered."""
        said: list[dict[str, str]] = []
        turns: list[list[int]] = []
        for text in item.texts:
            said.append({"role": "user", "content": text})
            turns.append(self._rendered(said, item.chat))
            if len(turns) == len(item.texts) or len(turns[-1]) > self._longest - self._max_tokens:
                break
            answered = answer(self._plain.decode(turns[-1], self._max_tokens).token_ids, self._ends)
            said.append({"role": "assistant", "content": self._tokenizer.decode(answered)})
        return turns

    def _rendered(self, said: list[dict[str, str]], chat: bool) -> list[int]:
        if chat and self._tokenizer.has_chat_template:
            return self._tokenizer.chat(said)
        return self._tokenizer.encode("\n".join(message["content"] for message in said))
