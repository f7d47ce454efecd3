"""Tokens of a smaller model: a chain of its own choices, with runners-up at each level if asked for, or a tree.

Under `match` it chooses with the same noise as the target (coupled sampling), so two models that agree on the distribution agree
on the token. For a verifier that tests sampled tokens it samples them, and records the distribution that they were sampled from.
`tree=static` has the optimal shape for how often each rank among siblings was accepted so far; `tree=dynamic` grows where the
model is confident; `samples=k` drafts k chains in parallel. A model with another tokenizer drafts the tokens that both
vocabularies share or, with `bridge=text`, text. `model:PATH@int8` holds its weights in that format: a draft need not be exact.

Its cache holds a prefix of the committed text, and is first fed the tokens it lacks; draft tokens that were accepted stay
cached. Near the end of its own context window it drafts less, and beyond it nothing.

Source: Leviathan et al. (arXiv:2211.17192), section 2; Chen et al. (arXiv:2302.01318); coupling: Daliri et al.
(arXiv:2408.07978); samples: SpecInfer (arXiv:2305.09781), section 3; static: Sequoia (arXiv:2402.12374), section 4.1; dynamic:
EAGLE-2 (arXiv:2406.16858), section 4; other tokenizers: Timor et al. (arXiv:2502.05202).
Proposals: POINT, COUPLED, IID, WITHOUT_REPLACEMENT, HUB
Taps: none
Branching: REPLAY, or TREE with tree, samples, or width above 1
Trained: no (any checkpoint)
Cost: one forward pass of the small model per level, and one over the tokens it has not seen
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from paceline.budget import NOTHING, Budget
from paceline.cache.base import Branching
from paceline.drafters.base import Drafter, Surroundings
from paceline.growth import Growth
from paceline.models.base import LanguageModel, Scores
from paceline.models.embedded import draft_of
from paceline.models.pieces import Pieces
from paceline.models.retokenized import RetokenizedModel
from paceline.models.translated import TranslatedModel, Translation
from paceline.sequence import Sequence
from paceline.spec import SpecError
from paceline.step import Verdict
from paceline.tree import DraftTree, Proposal
from paceline.tree_shapes import Ranks, Shape, brush, caterpillar, optimal_tree


class Options(BaseModel):
    """path: the checkpoint's directory, Hub id or embedded name; if left out, the draft model embedded for the target. depth:
    levels drafted; if left out, the policies `bass` and `confidence` may set it for a chain. width: children per level of a
    chain, or per node of a dynamic tree. samples: chains in parallel. tree: a `chain`, or a `static` or `dynamic` tree of
    `nodes` nodes. nodes: size of such a tree. bridge: how a model with another tokenizer drafts, by shared `tokens` or by
    `text`."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    path: Annotated[str, Field(min_length=1)] | None = None
    depth: Annotated[int, Field(ge=1, le=64)] = 4
    width: Annotated[int, Field(ge=1, le=16)] | None = None
    samples: Annotated[int, Field(ge=1, le=16)] = 1
    tree: Literal["chain", "static", "dynamic"] = "chain"
    nodes: Annotated[int, Field(ge=1, le=64)] = 12
    bridge: Literal["tokens", "text"] = "tokens"

    @model_validator(mode="after")
    def _fitting(self) -> Options:
        if "nodes" in self.model_fields_set and self.tree == "chain":
            raise ValueError("nodes needs tree=static or tree=dynamic; a chain has depth and width")
        if self.width is not None and (self.tree == "static" or self.samples > 1):
            raise ValueError("width is that of a chain or of a dynamic tree")
        if self.samples > 1 and self.tree != "chain":
            raise ValueError("samples are chains: leave tree out")
        if self.bridge == "text" and (self.tree != "chain" or self.children > 1 or self.samples > 1):
            raise ValueError("what goes through text is a chain: leave tree, width and samples out")
        return self

    @property
    def children(self) -> int:
        """Children per level of a chain, or per node of a dynamic tree."""
        return self.width or (_CHILDREN if self.tree == "dynamic" else 1)

    @property
    def trees_by(self) -> str:
        """The option that asks for trees, as in a spec; "" for none."""
        if self.tree != "chain":
            return f"tree={self.tree}"
        if self.samples > 1:
            return f"samples={self.samples}"
        return f"width={self.width}" if self.children > 1 else ""

    @property
    def budget(self) -> Budget:
        """The size of a whole draft."""
        return Budget(self.depth * self.children * self.samples if self.tree == "chain" else self.nodes, self.depth)


_CHILDREN = 3


class ModelDrafter(Drafter):
    """kind: how tokens are chosen at a temperature. amateur: whether to record its own distribution at every node."""

    name = "model"
    costly = True
    ends_early = True
    amateur = True

    def __init__(
        self,
        model: LanguageModel,
        vocab_size: int,
        options: Options,
        kind: Proposal = Proposal.COUPLED,
        amateur: bool = False,
    ) -> None:
        self.model, self.vocab_size, self.options = model, vocab_size, options
        self.known_tokens = model.vocab_size
        self.kinds = frozenset({Proposal.POINT, kind})
        self._ranks = Ranks() if options.tree == "static" else None
        self._growth = Growth(kind, self._shape(), options.children, amateur)
        self.budget, self.trees_by = options.budget, options.trees_by
        self.drafts_whole = model.drafts_whole and self._growth.chain is not None
        self._cache = model.new_cache()
        self._cached: dict[int, list[int]] = {}
        """Per sequence, the tokens of its last draft that are in the cache."""
        self._drafts: dict[int, DraftTree] = {}

    @property
    def measured_as(self) -> str:
        return self.model.measured_as

    def _shape(self) -> Shape | None:
        options = self.options
        if options.tree == "dynamic":
            return None
        if self._ranks is not None:
            return optimal_tree(self._ranks.acceptance, options.nodes, options.depth)
        return brush(options.samples, options.depth) if options.samples > 1 else caterpillar(options.depth, options.children)

    def suits(self, sequence: Sequence) -> bool:
        return len(sequence.tokens) <= self.model.context_length

    def propose(self, sequences: Many[Sequence], budgets: Many[Budget]) -> list[DraftTree]:
        try:
            return self._proposed(sequences, budgets)
        except BaseException:
            # tokens drafted by then are cached, and would later be taken for text
            for sequence in sequences:
                self._keep_what_came_true(sequence)
            raise

    def _proposed(self, sequences: Many[Sequence], budgets: Many[Budget]) -> list[DraftTree]:
        for sequence in sequences:
            self._keep_what_came_true(sequence)
        readable = [b if self._reads(s) else NOTHING for s, b in zip(sequences, budgets, strict=True)]
        options = {"growth": self._growth, "vocab_size": self.vocab_size, "source": self.name}
        trees = self.model.extend(sequences, readable, self._cache, **options)
        for sequence, tree in zip(sequences, trees, strict=True):
            self._remember(sequence, tree)
        return trees

    def observe(self, sequences: Many[Sequence], trees: Many[DraftTree], verdicts: Many[Verdict], scores: Scores) -> None:
        if self._ranks is None:
            return
        for sequence, verdict in zip(sequences, verdicts, strict=True):
            draft = self._drafts.pop(sequence.key, None)
            if draft is not None and self._ranks.observe(draft, verdict.tokens):
                self._growth = replace(self._growth, shape=self._shape())

    def _reads(self, sequence: Sequence) -> bool:
        """Whether this model knows every token: checkpoints of one tokenizer may pad their vocabulary differently."""
        if self.known_tokens >= self.vocab_size:
            return True
        return max(sequence.tokens[self._cache.length(sequence.key) :]) < self.known_tokens

    def _keep_what_came_true(self, sequence: Sequence) -> None:
        """Truncate the cache to the longest prefix of the committed text; the last token is always left to feed."""
        drafted = self._cached.get(sequence.key, [])
        held = self._cache.length(sequence.key)
        # after an interrupt of an earlier call none of them may be cached any more
        right = max(held - len(drafted), 0)
        for token in drafted:
            if right >= len(sequence.tokens) or sequence.tokens[right] != token:
                break
            right += 1
        self._cache.truncate(sequence.key, min(right, len(sequence.tokens) - 1))
        self._cached.pop(sequence.key, None)

    def _remember(self, sequence: Sequence, tree: DraftTree) -> None:
        """Note which cached tokens are drafts: those behind the committed text, a chain of first children."""
        size = max(self._cache.length(sequence.key) - len(sequence.tokens), 0)
        self._cached[sequence.key] = [tree.tokens[node] for node in tree.first_path()[:size]]
        if self._ranks is not None:
            self._drafts[sequence.key] = tree

    def truncate(self, key: int, length: int) -> None:
        # drafted tokens are dropped too: they would later be taken for text
        drafted = self._cached.pop(key, [])
        self._cache.truncate(key, min(length, self._cache.length(key) - len(drafted)))

    def fork(self, key: int, new_key: int, length: int) -> None:
        # drafted tokens are left out, as in `truncate`
        self._cache.fork(key, new_key, min(length, self._cache.length(key) - len(self._cached.get(key, []))))

    def move(self, key: int, new_key: int, length: int) -> None:
        self.truncate(key, length)
        self._cache.move(key, new_key)
        self.release(key)

    def forget(self) -> None:
        self.model.forget()
        if self._ranks is not None:
            self._ranks = Ranks()
            self._growth = replace(self._growth, shape=self._shape())

    def settle(self, key: int) -> None:
        self._drafts.pop(key, None)
        self._cache.shrink(key)
        self.model.settle(key)

    def release(self, key: int) -> None:
        self._cached.pop(key, None)
        self._drafts.pop(key, None)
        self._cache.release(key)

    @property
    def sequence_bytes(self) -> int:
        return self._cache.held_bytes


class TextDrafter(Drafter):
    """A model whose drafts go through text (`models.retokenized`): chains of its greedy choices, as deep as granted, since a
    stopping rule applies to the target's tokens."""

    name = "model"
    kinds = frozenset({Proposal.POINT})
    costly = True

    def __init__(self, model: RetokenizedModel, options: Options) -> None:
        self._model, self.budget = model, options.budget

    @property
    def measured_as(self) -> str:
        return self._model.measured_as

    def suits(self, sequence: Sequence) -> bool:
        return self._model.suits(sequence)

    def propose(self, sequences: Many[Sequence], budgets: Many[Budget]) -> list[DraftTree]:
        return self._model.extend(sequences, [budget.within(self.budget) for budget in budgets], self.name)

    def truncate(self, key: int, length: int) -> None:
        self._model.truncate(key, length)

    def fork(self, key: int, new_key: int, length: int) -> None:
        self._model.fork(key, new_key, length)

    def forget(self) -> None:
        self._model.forget()

    def settle(self, key: int) -> None:
        self._model.settle(key)

    def release(self, key: int) -> None:
        self._model.release(key)

    @property
    def sequence_bytes(self) -> int:
        return self._model.held_bytes


_ENOUGH = 0.1
"""Least share of the smaller vocabulary that both must have: with less, nearly nothing could be drafted by token."""


def _embedded(surroundings: Surroundings) -> str:
    """The checkpoint of the draft model that is embedded for the target."""
    # a target's tokenizer is in the target's folder
    path = draft_of(surroundings.tokenizer.path)
    if path is None:
        raise SpecError(f"'model' needs path: no draft is embedded for '{surroundings.target.name}', so name one as model:PATH")
    return str(path)


def build(options: Options, surroundings: Surroundings) -> Drafter:
    """Raises SpecError where there is no such draft, or where it cannot draft so for this target or this verifier; ModelError."""
    path = options.path or _embedded(surroundings)
    model, tokenizer = surroundings.load(path)
    deepest = surroundings.deepest(model.drafts_whole)
    if deepest and "depth" not in options.model_fields_set and options.tree == "chain" and options.samples == 1:
        options = options.model_copy(update={"depth": deepest})
    kind, amateur, vocab_size = surroundings.prefers[0], surroundings.amateur, surroundings.target.vocab_size
    if not tokenizer.same_vocabulary(surroundings.tokenizer):
        own, target = Pieces(tokenizer, model.vocab_size), Pieces(surroundings.tokenizer, vocab_size)
        if options.bridge == "text":
            return TextDrafter(RetokenizedModel(model, own, target), options)
        if model.is_cascade:
            raise SpecError(f"'{path}' has another tokenizer, and what drafts for it would be lost: add bridge=text")
        translation = Translation(target, own)
        if translation.shared < _ENOUGH:
            raise SpecError(
                f"the tokenizer of '{path}' shares {translation.shared:.0%} of its tokens with the target's, too few to"
                " draft by token: try bridge=text"
            )
        model = TranslatedModel(model, translation)
    wide = options.tree != "chain" or options.samples > 1 or (options.children > 1 and amateur)
    if wide and model.branching < Branching.TREE:
        raise SpecError(f"'{path}' can draft only chains: leave out tree, samples and width")
    if options.tree == "dynamic" and kind.drawn:
        raise SpecError("tree=dynamic looks at tokens before it decides, but this verifier needs blind draws: try tree=static")
    return ModelDrafter(model, vocab_size, options, kind, amateur)
