"""A smaller model drafts: a chain of its own choices, with the runners-up at every node where a tree is asked for.

Under `match` it chooses with the very noise the target will choose with (coupled draws), so that two models that agree on the
distribution agree on the token. Its cache obeys the one invariant: it holds a prefix of the committed text and is fed what it
lacks; what it drafted stays cached and counts as far as it came true. Past its own context it drafts less, then nothing.

Source: Leviathan et al. (arXiv:2211.17192), section 2; Chen et al. (arXiv:2302.01318); coupling: Daliri et al.
(arXiv:2408.07978).
Proposals: POINT, COUPLED
Taps: none
Branching: CHAIN, or TREE with width above 1
Trained: no (any checkpoint with the target's tokenizer)
Cost: one forward of the small model per level, and one over what it has not seen
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from paceline.drafters.base import Drafter, Surroundings
from paceline.models.base import LanguageModel
from paceline.sequence import Sequence
from paceline.spec import SpecError
from paceline.tree import Budget, DraftTree, Proposal


class Options(BaseModel):
    """path: the checkpoint's directory, Hub id or embedded name. depth: levels drafted. width: children per level."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    path: Annotated[str, Field(min_length=1)]
    depth: Annotated[int, Field(ge=1, le=64)] = 4
    width: Annotated[int, Field(ge=1, le=16)] = 1


class ModelDrafter(Drafter):
    name = "model"
    kinds = frozenset({Proposal.POINT, Proposal.COUPLED})
    costly = True

    def __init__(self, model: LanguageModel, vocab_size: int, options: Options) -> None:
        self.model, self.vocab_size, self.options = model, vocab_size, options
        self.budget = Budget(nodes=options.depth * options.width, depth=options.depth)
        self._cache = model.new_cache()
        self._cached: dict[int, list[int]] = {}

    def propose(self, sequences: Many[Sequence], budgets: Many[Budget]) -> list[DraftTree]:
        width = self.options.width
        for sequence in sequences:
            self._keep_what_came_true(sequence)
        depths = [
            min(budget.depth, self.options.depth, -(-budget.nodes // width)) if self._reads(sequence) else 0
            for sequence, budget in zip(sequences, budgets, strict=True)
        ]
        trees = self.model.extend(sequences, depths, self._cache, width=width, vocab_size=self.vocab_size, source=self.name)
        for sequence, tree in zip(sequences, trees, strict=True):
            self._remember(sequence, tree)
        return [tree.pruned(budget) for tree, budget in zip(trees, budgets, strict=True)]

    def _reads(self, sequence: Sequence) -> bool:
        """Whether this model knows every token: checkpoints of one tokenizer may round their vocabulary differently."""
        if self.model.vocab_size >= self.vocab_size:
            return True
        return max(sequence.tokens[self._cache.length(sequence.key) :]) < self.model.vocab_size

    def _keep_what_came_true(self, sequence: Sequence) -> None:
        """Truncate the cache to the longest prefix of the committed text; the last token is always left to feed."""
        drafted = self._cached.pop(sequence.key, [])
        held = self._cache.length(sequence.key)
        right = held - len(drafted)
        for token in drafted:
            if right >= len(sequence.tokens) or sequence.tokens[right] != token:
                break
            right += 1
        self._cache.truncate(sequence.key, min(right, len(sequence.tokens) - 1))

    def _remember(self, sequence: Sequence, tree: DraftTree) -> None:
        """Note which cached tokens are drafts: those behind the committed text, a chain of first children."""
        chain, node = [], 0
        for _ in range(self._cache.length(sequence.key) - len(sequence.tokens)):
            node = min(tree.children[node].values())
            chain.append(tree.tokens[node])
        self._cached[sequence.key] = chain

    def truncate(self, key: int, length: int) -> None:
        # what was only drafted goes too: nobody would remember that it never came true
        drafted = self._cached.pop(key, [])
        self._cache.truncate(key, min(length, self._cache.length(key) - len(drafted)))

    def fork(self, key: int, new_key: int) -> None:
        self._cache.fork(key, new_key)
        self._cached[new_key] = list(self._cached.get(key, []))

    def release(self, key: int) -> None:
        self._cached.pop(key, None)
        self._cache.release(key)

    @property
    def held_bytes(self) -> int:
        return self._cache.held_bytes


def build(options: Options, surroundings: Surroundings) -> ModelDrafter:
    model, tokenizer = surroundings.load(options.path)
    if not tokenizer.same_vocabulary(surroundings.tokenizer):
        raise SpecError(f"'{options.path}' cannot draft for this target: their tokenizers differ")
    return ModelDrafter(model, surroundings.target.vocab_size, options)
