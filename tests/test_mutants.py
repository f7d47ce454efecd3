"""Teeth: every way of being lossy that we know of must be caught by a named check.

A mutant is a small change to the real code. Each check passes on the code as it is and must fail on its mutants; a check that
cannot see a fault proves nothing by passing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence as Many
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import reference
import torch
from fakes import BlindTreeDrafter, ChainDrafter, DenseTableCache, FakeTokenizer, MixedDrafter, TableModel, TreeDrafter
from laws import PROMPT, Outcome, bulk, drawn, obeys
from serving import engine_of, served, wanted

from paceline import noise, sampling, speculative
from paceline.cache import base as cache_base
from paceline.cache import dense
from paceline.engine.scheduler import Limits
from paceline.engine.stops import StopChecker
from paceline.sampling import Context, SamplingParams
from paceline.sequence import Sequence
from paceline.step import Segment, Verdict
from paceline.tree import DraftTree
from paceline.verifiers import match

TOKENIZER = FakeTokenizer([*(bytes([97 + token]) for token in range(5)), b""], special=(5,))
REQUESTS = [
    SamplingParams(max_tokens=16, ignore_eos=True),
    SamplingParams(max_tokens=16, temperature=1.0, seed=11, ignore_eos=True),
    SamplingParams(max_tokens=16, temperature=1.3, top_p=0.75, seed=12, ignore_eos=True),
    SamplingParams(max_tokens=16, temperature=0.8, repetition_penalty=1.6, frequency_penalty=0.9, seed=13, ignore_eos=True),
    SamplingParams(max_tokens=16, frequency_penalty=1.5, presence_penalty=0.5, ignore_eos=True),
    SamplingParams(max_tokens=16, temperature=1.0, min_tokens=8, stop_token_ids=frozenset({2}), seed=14),
    SamplingParams(max_tokens=16, temperature=1.0, stop=("ab", "cc", "dae"), seed=15, ignore_eos=True),
    SamplingParams(max_tokens=16, temperature=1.0, seed=16),
    SamplingParams(max_tokens=3, temperature=1.0, seed=17, ignore_eos=True),
]
PROMPTS = [[1, 2, 3, 4, 0, 1, 2], [3, 3, 1], [4]]


def equality() -> bool:
    """Texts, tokens and reasons of a crowded engine equal the oracle's, for chains and trees, in both caches."""
    for make, store in [(ChainDrafter, DenseTableCache), (TreeDrafter, DenseTableCache), (MixedDrafter, None), (TreeDrafter, None)]:
        options: dict[str, Any] = {} if store is None else {"cache": store}
        model = TableModel(6, eos=(5,), sharpness=1.5, context_length=60, **options)
        limits = Limits(batch=4, chunk=5, cache_tokens=60)
        requests = [(prompt, params) for prompt in PROMPTS for params in REQUESTS]
        for (prompt, params), (sequence, views) in zip(requests, served(engine_of(model, make(model), limits, TOKENIZER), requests), strict=True):
            if (sequence.generated, views[-1], sequence.finish_reason) != oracle(tuple(prompt), params, sequence.seed):
                return False
    return True


@cache
def _answer(prompt: tuple[int, ...], params: str, seed: int) -> tuple[list[int], str, str]:
    model = TableModel(6, eos=(5,), sharpness=1.5, context_length=60)
    answer = wanted(model, TOKENIZER, prompt, SamplingParams.model_validate_json(params), seed, 60)
    return answer.tokens, answer.text, answer.finish


def oracle(prompt: tuple[int, ...], params: SamplingParams, seed: int) -> tuple[list[int], str, str]:
    # a greedy answer does not depend on its seed, which is drawn afresh
    return _answer(prompt, params.model_dump_json(), seed if params.temperature else 0)


LAW_PARAMS = SamplingParams(temperature=1.1, top_p=0.85, frequency_penalty=0.5)
LAW_MODEL = TableModel(5, sharpness=1.5, seed=3)


@cache
def law_wanted() -> dict[Outcome, float]:
    return reference.law(lambda tokens: LAW_MODEL.row(tokens).double().numpy(), PROMPT, LAW_PARAMS, 3)


def law() -> bool:
    """Joint law of three tokens behind random trees, 4,000 seeds, false-alarm rate 1e-6."""
    with bulk():
        return obeys(drawn(LAW_MODEL, BlindTreeDrafter(LAW_MODEL), LAW_PARAMS, range(4_000)), law_wanted())


CHECKS: dict[str, Callable[[], bool]] = {"equality": equality, "law": law}
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


def rewritten(change: Callable[[Sequence, DraftTree, Verdict, torch.Tensor], Verdict]) -> Patch:
    """A verifier whose verdicts are changed afterwards."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        honest = match.Match.__call__

        def lossy(self: match.Match, sequences: Many[Sequence], trees: Many[DraftTree], logits: Many[torch.Tensor]) -> list[Verdict]:
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
        other.tokens, other.generated_counts = sequence.tokens, sequence.generated_counts
        return replace(verdict, tokens=(*verdict.tokens[:-1], *sampling.choose(logits[[node]], [Context(other, verdict.tokens[:-1])])))

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


@mutant("equality", "law")
def every_position_has_the_same_noise(patch: pytest.MonkeyPatch) -> None:
    honest = noise.key
    patch.setattr(noise, "key", lambda seed, position: honest(seed, 0))


@mutant("equality")
def the_noise_counts_generated_tokens_instead_of_positions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Context, "position", property(lambda self: len(self.sequence.generated) + len(self.ancestors)))


def _with_params(patch: pytest.MonkeyPatch, change: Callable[[SamplingParams], dict[str, Any]]) -> None:
    honest = sampling.target_scores

    def lossy(logits: torch.Tensor, context: Context) -> torch.Tensor:
        sequence = context.sequence
        other = replace(sequence, params=sequence.params.model_copy(update=change(sequence.params)))
        other.tokens, other.generated_counts = sequence.tokens, sequence.generated_counts
        return honest(logits, Context(other, context.ancestors))

    patch.setattr(sampling, "target_scores", lossy)


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
        cut = sampling._top_p(logits, top_p) if top_p < 1 else logits
        return honest(cut, context)

    patch.setattr(sampling, "target_scores", lossy)
    _with_params(patch, lambda params: {"top_p": 1.0} if False else {})


def _without_ancestors(patch: pytest.MonkeyPatch, only: Callable[[SamplingParams], bool]) -> None:
    honest = sampling._shaped

    def lossy(logits: torch.Tensor, context: Context) -> torch.Tensor:
        return honest(logits, Context(context.sequence) if only(context.sequence.params) else context)

    patch.setattr(sampling, "_shaped", lossy)


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
    """Both caches keep other slots than the verdict says."""
    honest = cache_base.kept_slots

    def lossy(step: Any, verdicts: Many[Verdict]) -> list[tuple[int, list[int]]]:
        return [
            (length, change(segment, verdict, length, slots))
            for segment, verdict, (length, slots) in zip(step.segments, verdicts, honest(step, verdicts), strict=True)
        ]

    import fakes

    patch.setattr(dense, "kept_slots", lossy)
    patch.setattr(fakes, "kept_slots", lossy)


@mutant("equality")
def a_commit_keeps_the_first_slots_instead_of_the_accepted_ones(patch: pytest.MonkeyPatch) -> None:
    _keep(patch, lambda segment, verdict, length, slots: list(range(length, length + len(slots))))


@mutant("equality")
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
def a_rejected_draft_stays_in_the_cache(patch: pytest.MonkeyPatch) -> None:
    """After a rollback the cache claims the token that was drafted where another was emitted: one stale slot."""

    def change(segment: Segment, verdict: Verdict, length: int, slots: list[int]) -> list[int]:
        stale = segment.tree is not None and segment.rows > segment.chain and len(slots) < len(verdict.tokens) - 1
        rejected = segment.tree is not None and not slots and segment.rows > segment.chain and len(verdict.tokens) == 1
        return [length] if stale or rejected else slots

    _keep(patch, change)
    # the engine then feeds nothing for the root it believes cached: let it feed from there, as a naive engine would
    honest = speculative._feed

    def feed(item: speculative.Work, tree: DraftTree | None) -> Any:
        return honest(item, tree)

    patch.setattr(speculative, "_feed", feed)


@mutant("equality", "law")
def siblings_see_each_other(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Segment, "ancestors", property(lambda self: torch.ones(self.rows, self.rows, dtype=torch.bool).tril()))


@mutant("equality", "law")
def a_node_stands_at_the_position_of_its_slot(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Segment, "positions", property(lambda self: torch.arange(self.start, self.end)))


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

    patch.setattr(match, "_walked", match._walked)
    patch.setattr(DraftTree, "children", property(shifted))


@pytest.mark.parametrize("check", CHECKS)
def test_the_code_as_it_is_passes(check: str) -> None:
    assert CHECKS[check]()


@pytest.mark.parametrize(("one", "check"), [(one, check) for one in MUTANTS for check in one.caught_by], ids=lambda value: getattr(value, "name", value))
def test_a_mutant_is_caught(one: Mutant, check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one.apply(monkeypatch)
    assert not CHECKS[check]()


def test_there_are_mutants_enough() -> None:
    assert len({one.name for one in MUTANTS}) == len(MUTANTS) >= 20
