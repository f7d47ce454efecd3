"""Mutants of the native backend: in the arguments Python passes to compiled code, and in the cache behind it.

Compiled code itself is not patched: a patch would have no effect on it. No mutant accesses memory outside its buffers.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence as Many
from dataclasses import replace
from typing import Any

import pytest

from mutants import mutant
from paceline.cache import base as cache_base, slabs
from paceline.cache.panels import PanelCache, PanelSlab
from paceline.kernels.choices.shapes import shape_of
from paceline.kernels.native import layout
from paceline.models import forms, native, native_drafts, packing
from paceline.models.families import Family
from paceline.models.forms import LayerForm
from paceline.models.llama_tensors import LlamaTensors, Weighted
from paceline.models.native_drafts import Drafts
from paceline.models.packing import Weights
from paceline.models.rotation import STILL, Rotation
from paceline.noise import signed_seed
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.step import Segment, Step, Verdict


@mutant("native trees")
def a_commit_of_panels_moves_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PanelSlab, "move", lambda self, slots, to: None)


@mutant("native trees")
def a_commit_of_panels_moves_keys_only(patch: pytest.MonkeyPatch) -> None:
    honest = PanelSlab.move

    def lossy(self: PanelSlab, slots: list[int], to: int) -> None:
        values = self.values.copy()
        honest(self, slots, to)
        self.values[:] = values

    patch.setattr(PanelSlab, "move", lossy)


@mutant("native trees")
def a_commit_of_panels_moves_values_only(patch: pytest.MonkeyPatch) -> None:
    honest = PanelSlab.move

    def lossy(self: PanelSlab, slots: list[int], to: int) -> None:
        keys = self.keys.copy()
        honest(self, slots, to)
        self.keys[:] = keys

    patch.setattr(PanelSlab, "move", lossy)


@mutant("native trees")
def slots_are_moved_one_by_one_from_the_last(patch: pytest.MonkeyPatch) -> None:
    """Some slots are overwritten before they are moved."""
    honest = PanelSlab.move

    def lossy(self: PanelSlab, slots: list[int], to: int) -> None:
        for place in reversed(range(len(slots))):
            honest(self, [slots[place]], to + place)

    patch.setattr(PanelSlab, "move", lossy)


@mutant("native trees")
def only_the_first_layer_is_moved(patch: pytest.MonkeyPatch) -> None:
    honest = PanelSlab.move

    def lossy(self: PanelSlab, slots: list[int], to: int) -> None:
        keys, values = self.keys[1:].copy(), self.values[1:].copy()
        honest(self, slots, to)
        self.keys[1:], self.values[1:] = keys, values

    patch.setattr(PanelSlab, "move", lossy)


@mutant("native trees")
def the_chain_of_a_step_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    """The accepted path is moved over the root."""

    def lossy(step: Step, verdicts: Many[Verdict]) -> list[tuple[int, list[int]]]:
        return [(length - 1, slots) for length, slots in cache_base.kept_slots(step, verdicts)]

    patch.setattr(slabs, "kept_slots", lossy)


@mutant("native trees")
def a_slab_that_doubles_forgets_its_last_panel(patch: pytest.MonkeyPatch) -> None:
    honest = PanelSlab.grow

    def lossy(self: PanelSlab, slots: int) -> None:
        last = self.length // self.shape.panel
        honest(self, slots)
        self.keys[:, :, last] = 0

    patch.setattr(PanelSlab, "grow", lossy)


@mutant("native trees")
def a_fork_shares_its_slots(patch: pytest.MonkeyPatch) -> None:
    honest = PanelCache.fork

    def lossy(self: PanelCache, key: int, new_key: int) -> None:
        honest(self, key, new_key)
        shared, fork = self.slab(key), self.slab(new_key)
        fork.keys, fork.values, fork.capacity, fork.place = shared.keys, shared.values, shared.capacity, shared.place

    patch.setattr(PanelCache, "fork", lossy)


@mutant("native trees")
def a_truncated_sequence_keeps_a_token(patch: pytest.MonkeyPatch) -> None:
    honest = PanelCache.truncate
    patch.setattr(PanelCache, "truncate", lambda self, key, length: honest(self, key, length + 1))


@mutant("native trees")
def a_node_hangs_below_the_row_before_its_parent(patch: pytest.MonkeyPatch) -> None:
    honest = Segment.row_parents.__get__
    patch.setattr(Segment, "row_parents", property(lambda self: tuple(max(parent - 1, -1) for parent in honest(self))))


@mutant("native trees")
def the_parents_of_a_tree_are_counted_from_its_root(patch: pytest.MonkeyPatch) -> None:
    """Right if a step feeds only the root, wrong behind a chunk."""

    def counted(self: Segment) -> tuple[int, ...]:
        chain = tuple(range(-1, self.chain - 1))
        return chain + (self.tree.parents[1:] if self.tree else ())

    patch.setattr(Segment, "row_parents", property(counted))


@mutant("native trees")
def every_draft_is_taken_for_a_chain(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Segment, "is_chain", property(lambda self: True))


@mutant("native trees")
def the_tree_begins_a_row_early(patch: pytest.MonkeyPatch) -> None:
    """The last committed row before the root is looked up among the ancestors."""
    honest = native._records

    def lossy(segments: Iterable[tuple[int, int, int, int, PanelSlab]]) -> Any:
        shifted = [(low, rows, start, chain + (chain < rows), slab) for low, rows, start, chain, slab in segments]
        return honest(shifted)

    patch.setattr(native, "_records", lossy)


@mutant("native trees")
def a_second_sequence_reads_the_rows_of_the_first(patch: pytest.MonkeyPatch) -> None:
    honest = native._records
    patch.setattr(native, "_records", lambda segments: honest((0, *rest) for _, *rest in segments))


@mutant("native trees")
def the_wanted_rows_are_one_off(patch: pytest.MonkeyPatch) -> None:
    honest = Step.wanted_rows.__get__
    patch.setattr(Step, "wanted_rows", property(lambda self: tuple(max(row - 1, 0) for row in honest(self))))


@mutant("native families")
def gates_and_what_they_gate_change_places(patch: pytest.MonkeyPatch) -> None:
    honest = packing.Alternating
    patch.setattr(packing, "Alternating", lambda gate, up: honest(up, gate))


@mutant("native families")
def biases_are_left_out(patch: pytest.MonkeyPatch) -> None:
    honest = Weights._matrix
    patch.setattr(Weights, "_matrix", lambda self, weight, bias=None, paired=False: honest(self, weight, None, paired))


@mutant("native families")
def a_window_does_not_count_the_row_itself(patch: pytest.MonkeyPatch) -> None:
    honest = forms._layers

    def lossy(config: Any, family: Family) -> tuple[LayerForm, ...]:
        return tuple(replace(layer, window=layer.window and layer.window + 1) for layer in honest(config, family))

    patch.setattr(forms, "_layers", lossy)


@mutant("native families")
def layers_slide_in_reverse_order(patch: pytest.MonkeyPatch) -> None:
    honest = forms._layers
    patch.setattr(forms, "_layers", lambda config, family: honest(config, family)[::-1])


@mutant("native families")
def all_layers_rotate_as_the_sliding_ones(patch: pytest.MonkeyPatch) -> None:
    honest = Rotation.tables
    patch.setattr(Rotation, "tables", lambda self, positions, kind: honest(self, positions, kind.replace("full_", "sliding_")))


@mutant("native families")
def rotation_counts_from_one_in_some_layers(patch: pytest.MonkeyPatch) -> None:
    """In all layers it would have no effect: only position differences matter."""
    honest, asked = Weights.rotate_up_to, "rotate_up_to"

    def lossy(self: Weights, positions: int) -> None:
        honest(self, positions)
        half = self.form.rotary // 2
        self.layers["cosine"][-1] += 4 * half

    patch.setattr(Weights, asked, lossy)


def _formed(patch: pytest.MonkeyPatch, **change: Any) -> None:
    honest = native.form_of
    patch.setattr(native, "form_of", lambda config: replace(honest(config), **change))


def _of_another_family(patch: pytest.MonkeyPatch, **change: Any) -> None:
    honest = native.form_of

    def form_of(config: Any) -> forms.Form:
        form = honest(config)
        return replace(form, family=replace(form.family, **change))

    patch.setattr(native, "form_of", form_of)


@mutant("native families")
def norms_of_gemma_lack_their_one(patch: pytest.MonkeyPatch) -> None:
    _of_another_family(patch, offset=0.0)


@mutant("native families")
def layers_without_positions_rotate(patch: pytest.MonkeyPatch) -> None:
    honest = Rotation.tables
    patch.setattr(Rotation, "tables", lambda self, positions, kind: honest(self, positions, "" if kind == STILL else kind))


@mutant("native families")
def neighbours_are_rotated_as_halves(patch: pytest.MonkeyPatch) -> None:
    _of_another_family(patch, interleaved=False)


@mutant("native families")
def queries_do_not_grow(patch: pytest.MonkeyPatch) -> None:
    _formed(patch, query_growth=None)


@mutant("native families")
def logits_are_not_scaled(patch: pytest.MonkeyPatch) -> None:
    _formed(patch, logit_scale=1.0)


def _with_other_norms(
    patch: pytest.MonkeyPatch, changed: Callable[[list[Weighted | None], forms.Form], list[Weighted | None]]
) -> None:
    honest = LlamaTensors.norms
    patch.setattr(LlamaTensors, "norms", lambda self, layer: changed(honest(self, layer), self._form))


@mutant("native families")
def norms_of_all_heads_begin_anew(patch: pytest.MonkeyPatch) -> None:
    """Every head has the norm weights of the first."""

    def changed(found: list[Weighted | None], form: forms.Form) -> list[Weighted | None]:
        *common, query, key = found
        if not form.family.wide_norms or query is None:
            return found
        return [*common, (query[0][: form.head_size].repeat(form.heads), query[1]), key]

    _with_other_norms(patch, changed)


def _with_other_experts(patch: pytest.MonkeyPatch, **change: Any) -> None:
    honest = native.form_of

    def form_of(config: Any) -> forms.Form:
        form = honest(config)
        return replace(form, experts=form.experts and replace(form.experts, **change))

    patch.setattr(native, "form_of", form_of)


@mutant("native families")
def weights_of_experts_are_those_among_all(patch: pytest.MonkeyPatch) -> None:
    _with_other_experts(patch, whole_weights=False)


@mutant("native families")
def only_the_likeliest_expert_is_asked(patch: pytest.MonkeyPatch) -> None:
    _with_other_experts(patch, chosen=1)


@mutant("native families")
def scores_are_not_capped(patch: pytest.MonkeyPatch) -> None:
    _formed(patch, score_cap=0.0)


@mutant("native families")
def logits_are_not_capped(patch: pytest.MonkeyPatch) -> None:
    _formed(patch, logit_cap=0.0)


@mutant("native families")
def embeddings_are_not_scaled(patch: pytest.MonkeyPatch) -> None:
    _formed(patch, embedding_scale=1.0)


@mutant("native families")
def scores_are_scaled_by_the_size_of_a_head(patch: pytest.MonkeyPatch) -> None:
    _formed(patch, score_scale=16**-0.5)


@mutant("native families")
def whole_heads_are_rotated(patch: pytest.MonkeyPatch) -> None:
    honest = native.form_of
    patch.setattr(native, "form_of", lambda config: replace(honest(config), rotary=honest(config).head_size))


@mutant("native families")
def norms_behind_blocks_come_before_them(patch: pytest.MonkeyPatch) -> None:
    def changed(found: list[Weighted | None], form: forms.Form) -> list[Weighted | None]:
        before, behind, before_mlp, after_mlp, *own = found
        return found if after_mlp is None else [before, behind, after_mlp, before_mlp, *own]

    _with_other_norms(patch, changed)


@mutant("native drafts", "native branches")
def drafts_draw_with_the_noise_of_another_request(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(native_drafts, "signed_seed", lambda seed: signed_seed(seed ^ 1))


@mutant("native drafts", "native branches")
def drafts_are_chosen_at_another_temperature(patch: pytest.MonkeyPatch) -> None:
    honest = Drafts._tell_of

    def warmer(self: Drafts, sequences: list[Sequence]) -> None:
        self._of = ()
        honest(self, sequences)
        self._sequences["temperature"][: len(sequences)] *= 1.5

    patch.setattr(Drafts, "_tell_of", warmer)


@mutant("native drafts")
def drafts_know_nothing_of_biases(patch: pytest.MonkeyPatch) -> None:
    nothing = shape_of(Sequence(0, (0,), SamplingParams(), 0))
    patch.setattr(native_drafts, "shape_of", lambda sequence: nothing)


@mutant("native drafts")
def drafts_know_nothing_of_penalties(patch: pytest.MonkeyPatch) -> None:
    def without(sequence: Sequence) -> array[float]:
        told = shape_of(sequence)
        told[layout.REPETITION], told[layout.FREQUENCY], told[layout.PRESENCE] = 1.0, 0.0, 0.0
        return told

    patch.setattr(native_drafts, "shape_of", without)


@mutant("native drafts")
def drafts_know_nothing_of_top_p(patch: pytest.MonkeyPatch) -> None:
    honest = native_drafts._told_cuts
    patch.setattr(native_drafts, "_told_cuts", lambda params: honest(params.model_copy(update={"top_p": 1.0})))


@mutant("native drafts")
def chains_record_the_distributions_of_other_nodes(patch: pytest.MonkeyPatch) -> None:
    honest = Drafts._chain
    patch.setattr(Drafts, "_chain", lambda self, *rest: honest(self, *rest[:-1], rest[-1][::-1]))


@mutant("native drafts")
def the_last_token_drafted_is_counted_as_fed(patch: pytest.MonkeyPatch) -> None:
    honest = PanelCache.advance
    patch.setattr(PanelCache, "advance", lambda self, key, length: honest(self, key, length + 1))


@mutant("native drafts")
def a_drafter_forgets_where_its_cache_ends(patch: pytest.MonkeyPatch) -> None:
    """Rows are fed from the first slots on, whatever is committed there."""
    honest = native._records
    patch.setattr(
        native, "_records", lambda segments: honest((low, rows, 0, chain, slab) for low, rows, _, chain, slab in segments)
    )


@mutant("native branches")
def trees_draw_from_the_streams_of_other_nodes(patch: pytest.MonkeyPatch) -> None:
    honest = native_drafts.stream
    patch.setattr(native_drafts, "stream", lambda seed, name, node, trial: honest(seed, name, node + 1, trial))


@mutant("native branches")
def trees_record_the_distributions_of_other_nodes(patch: pytest.MonkeyPatch) -> None:
    honest = Drafts._tree
    patch.setattr(Drafts, "_tree", lambda self, *rest: honest(self, *rest[:-1], rest[-1][::-1]))


@mutant("native branches")
def of_a_tree_other_nodes_stay_cached(patch: pytest.MonkeyPatch) -> None:
    honest = native_drafts._fed_path
    patch.setattr(native_drafts, "_fed_path", lambda nodes, order: honest(nodes, order)[::-1])


@mutant("native trees")
def nodes_look_for_their_parents_among_those_of_the_first_sequence(patch: pytest.MonkeyPatch) -> None:
    honest = native._records
    patch.setattr(native, "_records", lambda segments: [(*record[:-1], 0) for record in honest(segments)])
