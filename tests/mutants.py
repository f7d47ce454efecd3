"""Mutants: lossy behaviours, each a small change to the real code, and the checks of `test_mutants` that must catch it."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Sequence as Many
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fakes
from paceline import noise, sampling
from paceline.cache import base as cache_base, dense, slabs
from paceline.engine.stops import StopChecker
from paceline.kernels.choices import tree_walk
from paceline.models.grammar_constraint import GrammarConstraint
from paceline.params import SamplingParams
from paceline.sampling import Context
from paceline.sequence import Sequence
from paceline.speculative import Speculative
from paceline.step import Segment, Verdict
from paceline.tree import DraftTree
from paceline.verifiers import base, match

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    """caught_by: the checks that must fail."""

    name: str
    apply: Patch
    caught_by: tuple[str, ...]


MUTANTS: list[Mutant] = []


def mutant(*caught_by: str) -> Callable[[Patch], Patch]:
    def listed(apply: Patch) -> Patch:
        MUTANTS.append(Mutant(apply.__name__, apply, caught_by))
        return apply

    return listed


def altered(function: Callable[..., Any], text: str, by: str) -> Callable[..., Any]:
    """The function with a piece of its source, which occurs once, replaced."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(text) == 1, f"{function.__name__} has no such text to replace"
    made: dict[str, Any] = {}
    exec(source.replace(text, by), function.__globals__, made)
    return made[function.__name__]


def rewritten(change: Callable[[Sequence, DraftTree, Verdict, torch.Tensor], Verdict]) -> Patch:
    """A patch of `match` that changes its verdicts."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        honest = match.Match.__call__

        def lossy(
            self: match.Match, sequences: Many[Sequence], trees: Many[DraftTree], logits: Many[torch.Tensor]
        ) -> list[Verdict]:
            verdicts = honest(self, sequences, trees, logits)
            return [change(*one) for one in zip(sequences, trees, verdicts, logits, strict=True)]

        patch.setattr(match.Match, "__call__", lossy)

    return apply


def _first_path(tree: DraftTree) -> tuple[int, ...]:
    path, node = [], 0
    while tree.children[node]:
        node = min(tree.children[node].values())
        path.append(node)
    return tuple(path)


@mutant("equality", "law")
def any_drafted_token_is_accepted(patch: pytest.MonkeyPatch) -> None:
    def change(sequence: Sequence, tree: DraftTree, verdict: Verdict, logits: torch.Tensor) -> Verdict:
        path = _first_path(tree)
        tokens = tuple(tree.tokens[node] for node in path)
        last = sampling.choose(logits[[path[-1] if path else 0]], [Context(sequence, tokens)])
        return Verdict(path, (*tokens, *last), len(path))

    rewritten(change)(patch)


@mutant("equality", "law")
def on_rejection_the_draft_is_emitted(patch: pytest.MonkeyPatch) -> None:
    def change(sequence: Sequence, tree: DraftTree, verdict: Verdict, logits: torch.Tensor) -> Verdict:
        children = tree.children[verdict.path[-1] if verdict.path else 0]
        return replace(verdict, tokens=(*verdict.tokens[:-1], next(iter(children)))) if children else verdict

    rewritten(change)(patch)


@mutant("equality", "law")
def a_rejected_draw_is_thrown_away_and_drawn_afresh(patch: pytest.MonkeyPatch) -> None:
    def change(sequence: Sequence, tree: DraftTree, verdict: Verdict, logits: torch.Tensor) -> Verdict:
        node = verdict.path[-1] if verdict.path else 0
        if not tree.children[node]:
            return verdict
        other = replace(sequence, seed=sequence.seed ^ 2**40)
        other.tokens = sequence.tokens
        return replace(
            verdict,
            tokens=(*verdict.tokens[:-1], *sampling.choose(logits[[node]], [Context(other, verdict.tokens[:-1])])),
        )

    rewritten(change)(patch)


@mutant("equality", "law")
def the_bonus_token_is_drawn_without_the_transforms(patch: pytest.MonkeyPatch) -> None:
    def change(sequence: Sequence, tree: DraftTree, verdict: Verdict, logits: torch.Tensor) -> Verdict:
        node = verdict.path[-1] if verdict.path else 0
        if not verdict.path or tree.children[node]:
            return verdict
        position = len(sequence.tokens) + len(verdict.path)
        return replace(verdict, tokens=(*verdict.tokens[:-1], noise.noised_best(logits[node], sequence.seed, position)[0]))

    rewritten(change)(patch)


@mutant("equality")
def the_noise_is_that_of_the_root_at_every_node(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Context, "position", property(lambda self: len(self.sequence.tokens)))
    _long_way(patch)


@mutant("equality", "law")
def every_position_has_the_same_noise(patch: pytest.MonkeyPatch) -> None:
    honest = noise.key
    patch.setattr(noise, "key", lambda seed, position: honest(seed, 0))
    _long_way(patch)


@mutant("equality")
def the_noise_counts_generated_tokens_instead_of_positions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Context, "position", property(lambda self: len(self.sequence.generated) + len(self.ancestors)))
    _long_way(patch)


def replaced(sequence: Sequence, **change: Any) -> Sequence:
    """The same sequence with other parameters."""
    other = replace(sequence, params=sequence.params.model_copy(update=change))
    other.tokens = sequence.tokens
    return other


def _with_params(patch: pytest.MonkeyPatch, change: Callable[[SamplingParams], dict[str, Any]]) -> None:
    honest = sampling.target_scores

    def lossy(logits: torch.Tensor, context: Context) -> torch.Tensor:
        return honest(logits, Context(replaced(context.sequence, **change(context.sequence.params)), context.ancestors))

    patch.setattr(sampling, "target_scores", lossy)
    _walked_otherwise(patch, lambda sequence: replaced(sequence, **change(sequence.params)))


def _walked_otherwise(patch: pytest.MonkeyPatch, change: Callable[[Sequence], Sequence]) -> None:
    """Compiled code chooses for changed sequences."""
    honest = base.walked
    patch.setattr(base, "walked", lambda sequences, *rest: honest([change(sequence) for sequence in sequences], *rest))


def _one_longer(sequence: Sequence) -> Sequence:
    other = replaced(sequence)
    other.tokens = [*sequence.tokens, 0]
    return other


def _long_way(patch: pytest.MonkeyPatch) -> None:
    """Compiled code, which orders transforms and computes noise itself, is not used."""
    patch.setattr(base, "walked", lambda sequences, *rest: [None] * len(sequences))
    patch.setattr(base, "chosen", sampling.choose)


def _of_another_seed(sequence: Sequence) -> Sequence:
    other = replaced(sequence)
    other.seed += 1
    return other


@mutant("equality")
def compiled_code_chooses_with_the_noise_of_the_next_position(patch: pytest.MonkeyPatch) -> None:
    _walked_otherwise(patch, _one_longer)


@mutant("equality")
def compiled_code_chooses_with_the_noise_of_another_seed(patch: pytest.MonkeyPatch) -> None:
    _walked_otherwise(patch, _of_another_seed)


@mutant("equality")
def compiled_code_knows_nothing_of_top_p(patch: pytest.MonkeyPatch) -> None:
    _walked_otherwise(patch, lambda sequence: replaced(sequence, top_p=1.0))


@mutant("equality")
def compiled_code_knows_nothing_of_top_k(patch: pytest.MonkeyPatch) -> None:
    _walked_otherwise(patch, lambda sequence: replaced(sequence, top_k=0))


@mutant("equality")
def compiled_code_knows_nothing_of_min_p(patch: pytest.MonkeyPatch) -> None:
    _walked_otherwise(patch, lambda sequence: replaced(sequence, min_p=0.0))


@mutant("equality")
def compiled_code_knows_nothing_of_penalties(patch: pytest.MonkeyPatch) -> None:
    _walked_otherwise(
        patch, lambda sequence: replaced(sequence, repetition_penalty=1.0, frequency_penalty=0.0, presence_penalty=0.0)
    )


@mutant("equality")
def compiled_code_counts_a_token_of_the_prompt_as_new(patch: pytest.MonkeyPatch) -> None:
    def change(sequence: Sequence) -> Sequence:
        other = replaced(sequence)
        other.generated_counts, other.prompt_set = sequence.generated_counts, frozenset()
        return other

    _walked_otherwise(patch, change)


@mutant("equality")
def compiled_code_knows_nothing_of_min_tokens(patch: pytest.MonkeyPatch) -> None:
    _walked_otherwise(patch, lambda sequence: replaced(sequence, min_tokens=0))


@mutant("grammar")
def compiled_code_chooses_where_a_grammar_has_a_say(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tree_walk, "is_compiled", lambda sequence, logits: True)


@mutant("equality")
def the_temperature_is_three_per_cent_off(patch: pytest.MonkeyPatch) -> None:
    _with_params(patch, lambda params: {"temperature": params.temperature * 1.03})


@mutant("equality", "law")
def the_temperature_is_ten_per_cent_off(patch: pytest.MonkeyPatch) -> None:
    _with_params(patch, lambda params: {"temperature": params.temperature * 1.1})


@mutant("equality", "law")
def top_p_is_taken_before_the_temperature(patch: pytest.MonkeyPatch) -> None:
    honest = sampling.target_scores

    def lossy(logits: torch.Tensor, context: Context) -> torch.Tensor:
        top_p = context.sequence.params.top_p
        scores = honest(logits, Context(replaced(context.sequence, top_p=1.0), context.ancestors))
        kept = sampling._top_p(scores * context.sequence.params.temperature, top_p) if top_p < 1 else scores
        return scores.masked_fill(kept == -torch.inf, -torch.inf)

    patch.setattr(sampling, "target_scores", lossy)
    _long_way(patch)


def _without_ancestors(patch: pytest.MonkeyPatch, only: Callable[[SamplingParams], bool]) -> None:
    honest = sampling.shaped

    def lossy(logits: torch.Tensor, context: Context) -> torch.Tensor:
        return honest(logits, Context(context.sequence) if only(context.sequence.params) else context)

    patch.setattr(sampling, "shaped", lossy)
    _long_way(patch)


@mutant("equality", "law")
def penalties_count_committed_tokens_only(patch: pytest.MonkeyPatch) -> None:
    _without_ancestors(patch, lambda params: not params.min_tokens)


@mutant("equality")
def min_tokens_counts_committed_tokens_only(patch: pytest.MonkeyPatch) -> None:
    _without_ancestors(patch, lambda params: bool(params.min_tokens))


@mutant("equality")
def penalties_see_one_token_of_each_step(patch: pytest.MonkeyPatch) -> None:
    honest = Sequence.commit

    def lossy(self: Sequence, tokens: tuple[int, ...], sources: tuple[str, ...]) -> None:
        honest(self, tokens, sources)
        self.generated_counts.subtract(tokens[:-1])

    patch.setattr(Sequence, "commit", lossy)


def _keep(patch: pytest.MonkeyPatch, change: Callable[[Segment, Verdict, int, list[int]], list[int]]) -> None:
    """All caches keep other slots than the verdict's."""
    honest = cache_base.kept_slots

    def lossy(step: Any, verdicts: Many[Verdict]) -> list[tuple[int, list[int]]]:
        return [
            (length, change(segment, verdict, length, slots))
            for segment, verdict, (length, slots) in zip(step.segments, verdicts, honest(step, verdicts), strict=True)
        ]

    patch.setattr(slabs, "kept_slots", lossy)
    patch.setattr(fakes, "kept_slots", lossy)


@mutant("equality", "native trees")
def a_commit_keeps_the_first_slots_instead_of_the_accepted_ones(patch: pytest.MonkeyPatch) -> None:
    _keep(patch, lambda segment, verdict, length, slots: list(range(length, length + len(slots))))


@mutant("equality", "native trees")
def a_commit_keeps_the_slot_before_the_accepted_one(patch: pytest.MonkeyPatch) -> None:
    _keep(patch, lambda segment, verdict, length, slots: [slot - 1 for slot in slots])


@mutant("equality")
def a_commit_of_dense_slabs_moves_nothing(patch: pytest.MonkeyPatch) -> None:
    def lossy(self: dense.DenseCache, verdicts: Many[Verdict]) -> None:
        assert self._staged is not None
        for segment, (length, slots) in zip(self._staged.segments, cache_base.kept_slots(self._staged, verdicts), strict=True):
            self._slabs[segment.sequence.key].length = length + len(slots)
        self._staged = None

    patch.setattr(dense.DenseCache, "commit", lossy)


@mutant("equality")
def what_was_drafted_stays_in_its_slot_after_a_rollback(patch: pytest.MonkeyPatch) -> None:
    honest, written = dense.DenseCache.store, {}

    def lossy(self: dense.DenseCache, layer: int, segment: Segment, keys: torch.Tensor, values: torch.Tensor) -> Any:
        slab = self._slabs[segment.sequence.key]
        high = written.get(slab, segment.start)
        stale = slab.layers[layer][0][:, segment.start : min(high, segment.end)].clone() if slab.layers else None
        seen = honest(self, layer, segment, keys, values)
        if stale is not None:
            seen[0][:, segment.start : segment.start + stale.shape[1]] = stale
        written[slab] = max(high, segment.end)
        return seen

    patch.setattr(dense.DenseCache, "store", lossy)


@mutant("equality", "law")
def siblings_see_each_other(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Segment, "ancestors", property(lambda self: torch.ones(self.rows, self.rows, dtype=torch.bool).tril()))


@mutant("equality", "law", "native trees")
def a_node_stands_at_the_position_of_its_slot(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Segment, "row_positions", property(lambda self: tuple(range(self.start, self.end))))


@mutant("equality")
def stops_are_looked_for_at_the_last_token_of_a_step_only(patch: pytest.MonkeyPatch) -> None:
    honest = StopChecker.cut

    def lossy(self: StopChecker, sequence: Sequence, verdict: Verdict) -> Verdict:
        stream = self.stream(sequence)
        for token in verdict.tokens[:-1]:
            stream.append(token)
        cut = honest(self, replace_tokens(sequence, verdict.tokens[:-1]), Verdict((), verdict.tokens[-1:], 0))
        return replace(verdict, finish=cut.finish)

    patch.setattr(StopChecker, "cut", lossy)


def replace_tokens(sequence: Sequence, more: tuple[int, ...]) -> Sequence:
    other = replace(sequence)
    other.tokens = [*sequence.tokens, *more]
    return other


@mutant("equality")
def a_cut_forgets_the_token_that_stops(patch: pytest.MonkeyPatch) -> None:
    honest = Verdict.cut
    patch.setattr(Verdict, "cut", lambda self, count, finish: honest(self, max(count - 1, 1), finish))


@mutant("equality")
def a_token_behind_a_stop_is_kept(patch: pytest.MonkeyPatch) -> None:
    honest = Verdict.cut
    patch.setattr(Verdict, "cut", lambda self, count, finish: honest(self, min(count + 1, len(self.tokens)), finish))


@mutant("equality")
def the_wrong_child_is_followed(patch: pytest.MonkeyPatch) -> None:
    honest = DraftTree.children.func  # pyright: ignore[reportAttributeAccessIssue]

    def shifted(self: DraftTree) -> tuple[dict[int, int], ...]:
        return tuple(dict.fromkeys(row, min(row.values())) if row else {} for row in honest(self))

    patch.setattr(DraftTree, "children", property(shifted))
    _long_way(patch)


@mutant("equality")
def compiled_code_follows_the_wrong_child(patch: pytest.MonkeyPatch) -> None:
    honest = base.walked

    def crooked(tree: DraftTree) -> Any:
        """Siblings have swapped their tokens."""
        tokens = list(tree.tokens)
        for children in tree.siblings:
            for child, other in zip(children, (*children[1:], *children[:1]), strict=True):
                tokens[child] = tree.tokens[other]
        return SimpleNamespace(tokens=tuple(tokens), parents=tree.parents, candidates=tree.candidates)

    patch.setattr(base, "walked", lambda sequences, trees, logits: honest(sequences, [*map(crooked, trees)], logits))


@mutant("grammar")
def a_grammar_sees_committed_tokens_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GrammarConstraint, "allowed", lambda self, ancestors: self._at(()).allowed)


@mutant("grammar")
def a_grammar_sees_one_token_of_each_step(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GrammarConstraint, "allowed", lambda self, ancestors: self._at(ancestors[-1:]).allowed)


@mutant("grammar")
def a_grammar_reads_what_was_rejected(patch: pytest.MonkeyPatch) -> None:
    honest = Speculative._commit

    def commit(self: Speculative, sequence: Sequence, draft: Any, verdict: Verdict) -> None:
        honest(self, sequence, draft, verdict)
        drafted = tuple(draft.tree.tokens[node] for node in _first_path(draft.tree))
        if sequence.constraint is not None and drafted != verdict.tokens[: len(drafted)]:
            sequence.constraint.commit(drafted)

    patch.setattr(Speculative, "_commit", commit)


@mutant("grammar")
def what_is_known_of_a_place_outlives_a_commit(patch: pytest.MonkeyPatch) -> None:
    honest = GrammarConstraint.commit

    def commit(self: GrammarConstraint, tokens: tuple[int, ...]) -> None:
        places = dict(self._places)
        honest(self, tokens)
        self._places = {**places, **self._places}

    patch.setattr(GrammarConstraint, "commit", commit)


@mutant("grammar")
def what_was_chosen_without_a_mask_is_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GrammarConstraint, "checked", lambda self, tokens: len(tokens))


@mutant("grammar")
def a_bias_lifts_what_a_grammar_does_not_allow(patch: pytest.MonkeyPatch) -> None:
    honest = sampling._within
    patch.setattr(sampling, "_within", lambda mask, size: honest(mask, size).index_fill(0, torch.tensor([70]), True))
