"""The self-check at load: find the best backend on which the engine reproduces the loaded model's own logits.

A few random tokens are run through a prompt in two chunks, a draft, a commit and the step after it, two sequences at once,
and every row is compared with the logits of the loaded model for that text alone. Backends are tried from the best down: trees
in the flat step, on a GPU over pages first, trees by an additive mask, chains, replay, replay token by token. An architecture
that no backend serves is refused, naming the layers that failed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from logging import getLogger
from typing import Any

import torch

from paceline.cache.base import Branching
from paceline.kernels.device import served
from paceline.kernels.prepacked import prepack, unpack_what_is_read
from paceline.models.attention import NAME
from paceline.models.base import ROUGH, LanguageModel, ModelError
from paceline.models.hub import HubModel
from paceline.models.quiet import sentence
from paceline.models.stateful import ReplayModel, StatefulModel
from paceline.models.taps import decoder_layers
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.step import Feed, Step, Verdict
from paceline.tree import DraftTree

_PARENTS = (-1, 0, 0, 1, 1, 2)
_LONGEST = 11
"""Tokens of the longer prompt; less where the model's context is shorter."""
_EXACT = 1e-3
"""Allowed error in float32, relative to the spread of the logits; in half precision it is at most `ROUGH`."""
_FAILURES = (RuntimeError, TypeError, ValueError, AttributeError, LookupError, NotImplementedError, AssertionError)
"""Errors that a model may raise when it is called in a way that it was not written for."""


@dataclass(frozen=True)
class Identity:
    """What every backend needs to know about the model."""

    name: str
    context_length: int
    eos_token_ids: frozenset[int]
    kv_cache: str | None = None
    """Narrow format of keys and values; None for the model's own."""


def best_backend(model: Any, identity: Identity) -> LanguageModel:
    """The model as a `LanguageModel`, on the best backend that reproduces its logits.

    model: a causal LM in eval mode with its own attention. Raises ModelError if no backend does. Only the paged backend supports
    narrow keys and values: elsewhere the last bits of a key, and so its rounded value, may depend on the rows beside it.
    """
    own = model.config._attn_implementation
    try:
        trial = _Trial(model, identity.context_length)
    except _FAILURES as error:
        raise ModelError(f"{type(model).__name__} does not run: {sentence(error)}") from error
    # an id outside the vocabulary would never end a text, and banning it would ban another token
    known = frozenset(token for token in identity.eos_token_ids if token < trial.vocabulary)
    identity = replace(identity, eos_token_ids=known)
    prepack(model)
    reason, over_pages = "", served(model.device)
    for backend in _backends(model, identity):
        try:
            candidate = backend()
            reason = trial.objection(candidate)
            if not reason and identity.kv_cache:
                candidate = _paged(model, identity)
                reason = trial.objection(candidate, rounded=True)
            if not reason:
                unpack_what_is_read(model)
                return candidate
        except Exception as error:
            # a backend may raise anything: Triton's compiler has no error class of its own
            reason = f"it fails with '{sentence(error)}'"
        if identity.kv_cache:
            raise ModelError(f"'{identity.name}' cannot keep its keys and values as {identity.kv_cache} here: {reason}")
        model.set_attn_implementation(own)
        if over_pages:
            # the next backend gives the same text, only slower, so nobody would notice without a warning
            getLogger("paceline").warning("'%s' does not run on the kernels for this device: %s", identity.name, reason)
            over_pages = False
    layers = " and ".join(sorted({_mixer(layer) for layer in decoder_layers(model)}))
    raise ModelError(
        f"{type(model).__name__} is not supported: neither trees, chains nor replay work through {layers} ({reason})"
    )


def _backends(model: Any, identity: Identity) -> Iterator[Callable[[], LanguageModel]]:
    common = (model, identity.name, identity.context_length)
    by_length = _by_length(model)
    if served(model.device) and not by_length:
        # first unrounded: with rounded keys, errors are too large to tell a correct backend from a nearly correct one
        yield lambda: _paged(model, replace(identity, kv_cache=None))
    if not by_length:
        yield lambda: _flat(model, identity)
    if _free_of_slots(model) and not by_length:
        yield partial(StatefulModel, *common, Branching.TREE, identity.eos_token_ids)
    yield partial(StatefulModel, *common, Branching.CHAIN, identity.eos_token_ids)
    yield partial(ReplayModel, *common, identity.eos_token_ids)
    yield partial(ReplayModel, *common, identity.eos_token_ids, stepwise=True)


def _flat(model: Any, identity: Identity) -> HubModel:
    model.set_attn_implementation(NAME)
    return HubModel(model, identity.name, identity.context_length, identity.eos_token_ids)


def _paged(model: Any, identity: Identity) -> HubModel:
    # imports Triton
    from paceline.models.paged import PagedModel

    model.set_attn_implementation(NAME)
    backend = PagedModel(model, identity.name, identity.context_length, identity.eos_token_ids)
    backend.kv_cache = identity.kv_cache
    return backend


def _free_of_slots(model: Any) -> bool:
    """False if anything depends on cache slots instead of positions, so that no additive mask makes a tree correct.

    A window hides keys that a mask cannot restore, and the prompts of the self-check are shorter than any real window; linear
    biases (ALiBi) over a few tokens are small enough to pass for rounding in half precision. So the configuration decides.
    """
    config = model.config.get_text_config()
    windows = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    bound = any(windows) or "local" in (getattr(config, "attention_layers", None) or ()) or getattr(config, "alibi", False)
    return "position_ids" in inspect.signature(model.forward).parameters and not bound


def _by_length(model: Any) -> bool:
    """True if queries are scaled by the cache's length, as in Llama 4: that is a position only if the cache holds one text alone.
    The scaling begins at texts longer than the self-check's prompts, so the configuration decides."""
    return bool(getattr(model.config.get_text_config(), "attn_temperature_tuning", False))


def _mixer(layer: torch.nn.Module) -> str:
    """The class name of the part of a decoder layer that mixes tokens, the likely cause when a backend fails."""
    names = [type(part).__name__ for part in layer.children()]
    words = ("attention", "mixer", "mamba", "conv", "delta")
    mixing = [name for name in names if "Norm" not in name and any(word in name.lower() for word in words)]
    return (mixing or [type(layer).__name__])[0]


class _Trial:
    """The texts of the self-check, and the loaded model's logits for them, computed with its own attention."""

    def __init__(self, model: Any, context_length: int) -> None:
        self._model = model
        # the draft is two deep, one token follows it, and the chunked prompt needs two chunks
        longest = min(_LONGEST, context_length - 3)
        if longest < 2:
            raise ModelError(f"{type(model).__name__} has a context of {context_length} tokens, too short to be served")
        self.vocabulary = vocabulary = model.get_output_embeddings().weight.shape[0]
        order = torch.randperm(vocabulary, generator=torch.Generator().manual_seed(0)).tolist()
        ids = order * (_LONGEST * 3 // vocabulary + 1)
        self.chunked, self.drafted = tuple(ids[:longest]), tuple(ids[longest : 2 * longest - 1])
        nodes = ids[2 * longest : 2 * longest + len(_PARENTS) - 1]
        self.tree = DraftTree((self.drafted[-1], *nodes), _PARENTS)
        self.after = ids[0]
        self._answers: dict[tuple[int, ...], torch.Tensor] = {}
        self._ask(self.chunked)
        self._ask((*self.chunked, self.after))
        for path, after in (((2, 5), (self.after,)), ((1,), (self.after,)), ((1, 3), ()), ((1, 4), ())):
            self._ask((*self.drafted, *(self.tree.tokens[node] for node in path), *after))
        plain = self._answers[self.chunked]
        if not bool(plain.isfinite().all()):
            raise ModelError(f"the weights of this {type(model).__name__} give logits that are not finite numbers")
        self._spread = float(plain.std().clamp(min=1e-6))
        # reject half the error that a lost tree mask would cause
        self._rough = min(ROUGH, self._contrast() / 2)

    @torch.inference_mode()
    def _ask(self, tokens: tuple[int, ...]) -> torch.Tensor:
        """Store and return the logits after each prefix of `tokens`, by the model's own attention and without a cache; [n, V]."""
        ids = torch.tensor([tokens], device=self._model.device)
        rows = self._model(input_ids=ids, use_cache=False).logits[0].float()
        for count, row in enumerate(rows, 1):
            self._answers.setdefault(tokens[:count], row)
        return rows

    def _at(self, tree: DraftTree, node: int) -> torch.Tensor:
        return self._answers[*self.drafted, *(tree.tokens[step] for step in tree.path(node))]

    def _contrast(self) -> float:
        """The error of reading the tree as a chain, measured as in `objection`."""
        right = torch.stack([self._at(self.tree, node) for node in range(1, len(self.tree))])
        wrong = self._ask((*self.drafted, *self.tree.tokens[1:]))[-len(right) :]
        return float((right - wrong).square().mean(-1).sqrt()[1:].median()) / self._spread

    def objection(self, candidate: LanguageModel, *, rounded: bool = False) -> str:
        """Empty if the candidate reproduces the model's logits, else what is wrong with it.

        rounded: whether it rounds keys and values, so that its logits agree only roughly.
        """
        branches = candidate.branching is Branching.TREE
        tree, path = (self.tree, (2, 5)) if branches else (self.tree.first_chain(), (1,))
        wanted = self._wanted(tree, path)
        errors = (self._walk(candidate, tree, path) - wanted).square().mean(-1).sqrt() / self._spread
        layers = len(decoder_layers(self._model))
        if isinstance(candidate, HubModel) and candidate.attention_calls != layers:
            return f"{candidate.attention_calls} calls of its {layers} layers come through transformers' attention interface"
        if rounded:
            worst, allowed = float(errors.median()), ROUGH
        elif self._model.dtype in (torch.float32, torch.float64):
            worst, allowed = float(errors.max()), _EXACT
        else:
            # in half precision single rows may be far off, when two experts nearly tie; most may not, and a lost mask would
            # spoil more than half of the nodes
            crucial = errors[3:-2] if branches else errors
            worst, allowed = float(torch.stack([errors.median(), crucial.median()]).max()), self._rough
        # written so that NaN is an objection
        return "" if worst <= allowed else f"its logits are off by {worst:.1e} of their spread"

    def _wanted(self, tree: DraftTree, path: tuple[int, ...]) -> torch.Tensor:
        """float32 [1 + N + 2, V]: after the chunked prompt, at every node, and after one more token of that prompt and of the
        accepted path."""
        texts = (self.chunked, (*self.drafted, *(tree.tokens[node] for node in path)))
        last = [self._answers[*text, self.after] for text in texts]
        return torch.stack([self._answers[self.chunked], *(self._at(tree, node) for node in range(len(tree))), *last])

    def _walk(self, candidate: LanguageModel, tree: DraftTree, path: tuple[int, ...]) -> torch.Tensor:
        """The rows of `_wanted` as the engine computes them, in steps over one cache."""
        cache = candidate.new_cache()
        texts = (self.chunked, self.drafted)
        chunked, drafted = (Sequence(key, text, SamplingParams(), seed=0) for key, text in enumerate(texts))
        half = len(self.chunked) // 2
        self._step(candidate, cache, [Feed(chunked, 0, self.chunked[:half])], [Verdict()])
        start = len(self.drafted) - 1
        if start:
            self._step(candidate, cache, [Feed(drafted, 0, self.drafted[:-1])], [Verdict()])
        feeds = [
            Feed(chunked, half, self.chunked[half:], DraftTree.root(self.chunked[-1])),
            Feed(drafted, start, self.drafted[-1:], tree),
        ]
        tokens = (*(tree.tokens[node] for node in path), self.after)
        first = self._step(candidate, cache, feeds, [Verdict(), Verdict(path, tokens, len(path))])
        drafted.commit(tokens, ())
        chunked.commit((self.after,), ())
        # both decode: a step whose rows are all wanted
        feeds = [
            Feed(text, held, tuple(text.tokens[held:]), DraftTree.root(text.root))
            for text, held in ((text, cache.length(text.key)) for text in (chunked, drafted))
        ]
        second = self._step(candidate, cache, feeds, [Verdict(), Verdict()])
        return torch.cat([first, second])

    @staticmethod
    def _step(candidate: LanguageModel, cache: Any, feeds: list[Feed], verdicts: list[Verdict]) -> torch.Tensor:
        step = Step.of(feeds)
        cache.stage(step)
        logits = candidate.score(step, cache).logits
        cache.commit(verdicts)
        return logits
