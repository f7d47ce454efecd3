"""An engine on fakes, and the expected answer of each request."""

from __future__ import annotations

from collections.abc import Sequence as Many

import reference
from fakes import FakeTokenizer, TableModel
from paceline.drafters.base import Drafter
from paceline.drafters.none import NullDrafter
from paceline.engine.engine import Engine
from paceline.engine.scheduler import Limits
from paceline.params import SamplingParams
from paceline.policies.fixed import FixedPolicy
from paceline.sequence import Sequence
from paceline.speculative import Speculative
from paceline.verifiers.match import Match


def engine_of(
    model: TableModel,
    drafter: Drafter | None = None,
    limits: Limits | None = None,
    tokenizer: FakeTokenizer | None = None,
) -> Engine:
    drafter = drafter or NullDrafter()
    speculative = Speculative(model, drafter, Match(), FixedPolicy())
    tokenizer = tokenizer or FakeTokenizer.of_letters(model.vocab_size)
    return Engine(speculative, tokenizer, limits or Limits())  # pyright: ignore[reportArgumentType]


def served(engine: Engine, requests: Many[tuple[Many[int], SamplingParams]]) -> list[tuple[Sequence, list[str]]]:
    """Serves all requests at once; returns each with its visible text after each step."""
    sequences = [engine.add(prompt, params) for prompt, params in requests]
    shown: dict[int, list[str]] = {sequence.key: [] for sequence in sequences}
    bound = sum(len(prompt) + 2 * params.max_tokens for prompt, params in requests)
    while engine.has_work:
        bound -= 1
        assert bound >= 0, "requests do not end"
        for progress in engine.step():
            shown[progress.sequence.key].append(progress.text)
    return [(sequence, shown[sequence.key]) for sequence in sequences]


def wanted(
    model: TableModel, tokenizer: FakeTokenizer, prompt: Many[int], params: SamplingParams, seed: int, longest: int
) -> reference.Answer:
    """The oracle's answer."""
    return reference.plain(
        lambda tokens: model.row(tokens).double().numpy(),
        tokenizer.decode,
        prompt,
        params,
        seed,
        eos=model.eos_token_ids,
        longest=longest,
    )
