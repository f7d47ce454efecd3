"""Grammars for tests: a constraint without a tokenizer, and an engine on fakes that follows a real grammar."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence as Many
from contextlib import contextmanager, nullcontext
from functools import cache
from itertools import count, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from fakes import ChainDrafter, MixedDrafter, TableModel, TreeDrafter
from paceline.drafters.base import Drafter
from paceline.drafters.grammar import GrammarDrafter, Options
from paceline.drafters.merge import MergedDrafter
from paceline.drafters.none import NullDrafter
from paceline.engine.engine import Engine
from paceline.engine.scheduler import Limits
from paceline.models.grammar_constraint import GrammarConstraint, _Place
from paceline.models.tokenizer import Tokenizer
from paceline.params import Grammar, SamplingParams
from paceline.policies.fixed import FixedPolicy
from paceline.sequence import Sequence
from paceline.speculative import Speculative
from paceline.verifiers.base import Verifier
from paceline.verifiers.match import Match
from tiny import BOS, EOS, save_tokenizer

Prompt = Many[int]


class Rule:
    """A constraint given as a function: generated tokens -> allowed next tokens, bool [V]."""

    def __init__(self, follows: Callable[[tuple[int, ...]], np.ndarray]) -> None:
        self._follows, self._read = follows, ()

    def allowed(self, ancestors: tuple[int, ...]) -> np.ndarray:
        mask = self._follows((*self._read, *ancestors))
        return mask if mask.any() else np.ones_like(mask)

    def checked(self, tokens: tuple[int, ...]) -> int:
        return len(tokens)

    def forced(self, count: int) -> tuple[int, ...]:
        return ()

    def readable(self, tokens: tuple[int, ...]) -> int:
        return next((at for at, token in enumerate(tokens) if not self.allowed(tokens[:at])[token]), len(tokens))

    def commit(self, tokens: tuple[int, ...]) -> None:
        self._read = (*self._read, *tokens)

    def over(self, ancestors: tuple[int, ...]) -> str | None:
        return None


def rising(size: int) -> Rule:
    """A token differs from the one before, and after two rising tokens a smaller one follows."""

    def follows(tokens: tuple[int, ...]) -> np.ndarray:
        mask = np.ones(size, bool)
        if tokens:
            mask[tokens[-1]] = False
        if len(tokens) > 1 and tokens[-2] < tokens[-1]:
            mask[tokens[-1] :] = False
        return mask

    return Rule(follows)


@cache
def tokenizer() -> Tokenizer:
    """Bytes, three merges and three special tokens, of which `EOS` is one."""
    with TemporaryDirectory() as folder:
        save_tokenizer(Path(folder))
        made = Tokenizer(folder)
        # loaded lazily: loaded here, since the folder is deleted on return
        _ = made.library
        return made


VOCABULARY = 3 + 256 + 3
SENTENCE = r"(the (inner|thin|other) th[a-e]{2,4}( in)?; ){2,6}"
"""Forced runs, free choices, and tokens that straddle both."""
WORD = "the|inner|thin|other|in;|th[a-e]{2,4};?"


def model_of(seed: int = 0, eos: tuple[int, ...] = (EOS,), padding: int = 5) -> TableModel:
    return TableModel(VOCABULARY + padding, eos=eos, sharpness=2.0, seed=seed, context_length=200)


def engine_of(
    model: TableModel, drafter: Drafter | None = None, limits: Limits | None = None, verifier: Verifier | None = None
) -> Engine:
    speculative = Speculative(model, drafter or NullDrafter(), verifier or Match(), FixedPolicy())
    return Engine(speculative, tokenizer(), limits or Limits())


def answers(engine: Engine, requests: Many[tuple[Prompt, SamplingParams]]) -> list[Sequence]:
    """Serves all requests at once; returns their sequences."""
    sequences = [engine.add(prompt, params) for prompt, params in requests]
    while engine.has_work:
        engine.step()
    return sequences


def drafters(model: TableModel) -> dict[str, Drafter]:
    chain, tree, mixed = ChainDrafter(model), TreeDrafter(model), MixedDrafter(model)
    return {
        "chain": chain,
        "tree": tree,
        "mixed": mixed,
        "grammar": GrammarDrafter(Options()),
        "both": MergedDrafter([GrammarDrafter(Options()), TreeDrafter(model)]),
    }


def whole(sequence: Sequence, expression: str = SENTENCE) -> bool:
    """Whether the generated text is a sentence or, if cut short, a possible beginning of one."""
    text = tokenizer().decode([token for token in sequence.generated if token != EOS])
    if sequence.finish_reason == "stop":
        return re.fullmatch(expression, text) is not None
    return sequence.finish_reason == "length" and all(re.fullmatch(WORD, word) for word in text.split(" ")[:-1])


REQUESTS = [
    ([BOS, *prompt], SamplingParams(max_tokens=limit, temperature=heat, seed=seed, grammar=Grammar(kind="regex", text=SENTENCE)))
    for prompt in ([60, 61, 62], [75] * 9, [])
    for limit, heat, seed in [(60, 0.0, 1), (60, 1.0, 2), (60, 1.3, 3), (9, 1.0, 4)]
]


@contextmanager
def speechless() -> Iterator[None]:
    """A grammar returns no mask at first for every third position behind a draft."""
    looked_up, asked = GrammarConstraint._looked_up, count()

    def nothing(self: GrammarConstraint, ancestors: tuple[int, ...]) -> Any:
        return _Place(self._everything, checked=False) if ancestors and next(asked) % 3 == 0 else looked_up(self, ancestors)

    def asked_again(self: GrammarConstraint, ancestors: tuple[int, ...]) -> Any:
        # another matcher would give the same result
        return self._read_off(ancestors) or _Place(self._everything, "length")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GrammarConstraint, "_looked_up", nothing)
        patch.setattr(GrammarConstraint, "_asked", asked_again)
        yield


def grammar() -> bool:
    """Answers equal plain decoding and satisfy their grammar behind chains, trees and forced tokens, crowded and preempted, and
    where drafts end for lack of a mask."""
    model = model_of()
    try:
        plain = [answers(engine_of(model), [request])[0] for request in REQUESTS]
        if not all(map(whole, plain)):
            return False
        for spoken, name in product((nullcontext, speechless), drafters(model)):
            with spoken():
                drafter = drafters(model)[name]
                found = answers(engine_of(model, drafter, Limits(batch=4, chunk=5, cache_tokens=200)), REQUESTS)
            for one, other in zip(plain, found, strict=True):
                if (one.generated, one.finish_reason) != (other.generated, other.finish_reason):
                    return False
    except (IndexError, ValueError):
        # the engine's own guards
        return False
    return True
