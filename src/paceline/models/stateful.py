"""Transformers models that keep their own per-sequence state, scored one sequence at a time.

For architectures that do not route attention through `AttentionInterface`, and for hybrids whose recurrent layers cannot be
laid out flat. `StatefulModel` removes rejected tokens in place (trees by an additive mask if the family accepts one, else
chains); `ReplayModel` cannot, and returns to snapshots.
"""

from __future__ import annotations

import copy
import inspect
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence as Many
from contextlib import nullcontext
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

from paceline.cache.base import Branching, KVCache
from paceline.cache.replay import ReplayCache
from paceline.cache.stateful import StatefulCache
from paceline.kernels.prepacked import held_bytes, outputs_of
from paceline.models.base import LanguageModel, Scores, weights_name
from paceline.models.taps import decoder_layers, tapped
from paceline.step import Segment, Step


class OwnStateModel(LanguageModel):
    """Base of both kinds: one forward pass over some rows of one sequence, through the model's own cache and attention."""

    def __init__(self, model: Any, name: str, context_length: int, eos_token_ids: frozenset[int] = frozenset()) -> None:
        self.model, self.name = model, name
        self.vocab_size, self.layers = outputs_of(model.get_output_embeddings()), len(decoder_layers(model))
        self.weights = weights_name(model.dtype)
        self.weights_bytes = held_bytes(model)
        self.context_length = context_length
        self.eos_token_ids = eos_token_ids
        self.returns_early = model.device.type == "cuda"
        accepted = inspect.signature(model.forward).parameters
        self._takes_positions = "position_ids" in accepted
        self._keeps_rows = "logits_to_keep" in accepted
        self._state_name = "cache_params" if "cache_params" in accepted else "past_key_values"

    @torch.inference_mode()
    def score(self, step: Step, cache: KVCache, taps: Iterable[int] = ()) -> Scores:
        wanted = tuple(taps)
        trees, prompts = list[Scores](), list[Scores]()
        for segment in step.segments:
            scored = _joined(list(self._score(step, segment, cache, wanted)))
            count = len(scored.logits)
            trees.append(_rows(scored, count - segment.nodes, count))
            prompts.append(_rows(scored, 0, segment.prompt_rows))
        return _joined(trees + prompts)

    @abstractmethod
    def _score(self, step: Step, segment: Segment, cache: Any, taps: Many[int]) -> Iterator[Scores]:
        """The wanted rows of one segment, in order, in one piece or more."""

    def _forward(
        self,
        state: Any,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        wanted: int,
        taps: Many[int],
        mask: torch.Tensor | None = None,
    ) -> tuple[Scores, Any]:
        """Feed n rows after `state` (None: an empty one that the model makes); the last `wanted` of them, and the state after.

        token_ids, positions: int64 [n]. mask: additive [1, 1, n, slots + n].
        """
        device = self.model.device
        rows = torch.arange(len(token_ids) - wanted, len(token_ids), device=device)
        arguments: dict[str, Any] = {"input_ids": token_ids[None].to(device), "use_cache": True, self._state_name: state}
        if self._takes_positions:
            arguments["position_ids"] = positions[None].to(device)
        if self._keeps_rows:
            arguments["logits_to_keep"] = rows
        if mask is not None:
            arguments["attention_mask"] = mask
        with tapped(decoder_layers(self.model), taps) if taps else nullcontext({}) as captured:
            output = self.model(**arguments)
        logits = output.logits[0] if self._keeps_rows else output.logits[0, rows]
        hidden = {layer: states[0, rows] for layer, states in captured.items()}
        return Scores(logits.float(), hidden), getattr(output, self._state_name)


class StatefulModel(OwnStateModel):
    """branching: TREE if the model accepts an additive 4-D mask and position ids, else CHAIN; the self-check finds out."""

    def __init__(
        self,
        model: Any,
        name: str,
        context_length: int,
        branching: Branching,
        eos_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(model, name, context_length, eos_token_ids)
        self.branching = branching

    def new_cache(self) -> StatefulCache[DynamicCache]:
        return StatefulCache(DynamicCache, _branched, _keep, _nbytes, self.branching)

    def _score(self, step: Step, segment: Segment, cache: StatefulCache[DynamicCache], taps: Many[int]) -> Iterator[Scores]:
        state = cache.state(segment.sequence.key)
        mask = None if segment.is_chain else self._additive(segment)
        rows = step.token_ids[segment.low : segment.high]
        yield self._forward(state, rows, segment.positions, _scored(segment), taps, mask)[0]

    def _additive(self, segment: Segment) -> torch.Tensor:
        """0 where a row may attend, the lowest finite number elsewhere: these families add their mask to the scores."""
        kind, device = self.model.dtype, self.model.device
        seen = torch.ones(segment.rows, segment.end, dtype=torch.bool)
        seen[:, segment.start :] = segment.ancestors
        mask = torch.zeros(segment.rows, segment.end, dtype=kind, device=device)
        return mask.masked_fill(~seen.to(device), torch.finfo(kind).min)[None, None]


class ReplayModel(OwnStateModel):
    """Runs on copies of snapshots. The committed tokens of a step are fed first, so that a snapshot can be taken after them.

    stepwise: for families that read one token at a time once they have a state; exact, but a draft then saves no forward pass.
    """

    branching = Branching.REPLAY

    def __init__(
        self,
        model: Any,
        name: str,
        context_length: int,
        eos_token_ids: frozenset[int] = frozenset(),
        *,
        stepwise: bool = False,
    ) -> None:
        super().__init__(model, name, context_length, eos_token_ids)
        self._stepwise = stepwise

    def new_cache(self) -> ReplayCache[Any]:
        return ReplayCache(_branched, _nbytes, _shared)

    def _score(self, step: Step, segment: Segment, cache: ReplayCache[Any], taps: Many[int]) -> Iterator[Scores]:
        key, state = segment.sequence.key, cache.working(segment.sequence.key)
        drafted = segment.rows - segment.chain
        # the root alone is not worth its own forward pass: if the draft is rejected, the next step feeds it again
        certain = 0 if drafted and segment.chain == 1 else segment.chain
        if certain:
            for scores, after in self._fed(state, step, segment, range(certain), taps):
                yield scores
                state = after
            cache.reach(key, segment.start + certain, state)
            # a copy goes on from here: the state itself was handed over
            state = _branched(state) if drafted else state
        if drafted:
            for scores, after in self._fed(state, step, segment, range(certain, segment.rows), taps):
                yield scores
                state = after
            cache.reach(key, segment.end, state)

    def _fed(self, state: Any, step: Step, segment: Segment, rows: range, taps: Many[int]) -> Iterator[tuple[Scores, Any]]:
        """Feed some rows of a segment after `state`, in one forward pass or in as many as the family needs; with the
        state after each."""
        first_wanted = segment.rows - _scored(segment)
        stride = 1 if self._stepwise and state is not None else len(rows)
        for low in rows[::stride]:
            high = min(low + stride, rows.stop)
            ids, positions = step.token_ids[segment.low + low : segment.low + high], segment.positions[low:high]
            scores, state = self._forward(state, ids, positions, min(max(high - first_wanted, 0), high - low), taps)
            yield scores, state


def _joined(scores: Many[Scores]) -> Scores:
    taps = {layer: torch.cat([one.taps[layer] for one in scores]) for layer in scores[0].taps}
    return Scores(torch.cat([one.logits for one in scores]), taps)


def _rows(scores: Scores, low: int, high: int) -> Scores:
    return Scores(scores.logits[low:high], {layer: hidden[low:high] for layer, hidden in scores.taps.items()})


def _scored(segment: Segment) -> int:
    """For how many of a segment's last rows the model computes logits: all if logits of committed tokens are wanted."""
    return segment.rows if segment.prompt_rows else segment.nodes


@torch.inference_mode()
def _branched(state: Any) -> Any:
    """A copy with its own recurrent states; attention layers, which grow by concatenation, share their tensors."""
    shared = {id(tensor): tensor for layer in _growing(state) for tensor in _pair(layer)}
    return copy.deepcopy(state, shared)


def _keep(state: DynamicCache, length: int, slots: Many[int]) -> None:
    """Keep, in place, the first `length` slots, and then `slots`."""
    for layer in _growing(state):
        # absolute slices, so that layers that a failed forward pass did not reach are cut correctly too
        keys, values = _pair(layer)
        layer.keys, layer.values = keys[..., :length, :], values[..., :length, :]
        if slots:
            chosen = torch.tensor(slots, device=keys.device)
            layer.keys = torch.cat([layer.keys, keys.index_select(-2, chosen)], -2)
            layer.values = torch.cat([layer.values, values.index_select(-2, chosen)], -2)


def _growing(state: Any) -> list[DynamicLayer]:
    """The layers of a transformers cache that hold a tensor of keys and one of values, and have been written to."""
    return [layer for layer in state.layers if isinstance(layer, DynamicLayer) and layer.is_initialized]


def _pair(layer: DynamicLayer) -> tuple[torch.Tensor, torch.Tensor]:
    assert layer.keys is not None
    assert layer.values is not None
    return layer.keys, layer.values


def _shared(older: Any, length: int, newer: Any, newer_length: int) -> None:
    """Make an older state's keys and values (of `length` tokens) views of a newer state's, to free the older tensors: a layer
    that grows by concatenation allocates all of them anew in every forward pass."""
    for layer, grown in zip(older.layers, newer.layers, strict=True):
        if not (isinstance(layer, DynamicLayer) and layer.is_initialized):
            continue
        keys, values = _pair(grown)
        # not if a sliding window keeps only the end of the text
        if (_pair(layer)[0].shape[-2], keys.shape[-2]) == (length, newer_length):
            layer.keys, layer.values = keys[..., :length, :], values[..., :length, :]


def _nbytes(*states: Any) -> int:
    """Bytes of all tensors of transformers caches, whatever attributes of layers hold them; shared storage counts once."""
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for state in states
        for layer in state.layers
        for value in vars(layer).values()
        for tensor in _tensors(value)
    }
    return sum(storages.values())


def _tensors(value: Any) -> list[torch.Tensor]:
    values = value.values() if isinstance(value, dict) else (value,)
    return [item for item in values if isinstance(item, torch.Tensor)]
