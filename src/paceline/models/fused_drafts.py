"""Fused drafts: a model on a GPU drafts chains in one call: each level writes its tokens where the next one reads them, and the
host waits once for all levels."""

from __future__ import annotations

from collections.abc import Callable, Sequence as Many

import torch

from paceline.budget import Budget
from paceline.cache.paged import PagedCache
from paceline.growth import Growth
from paceline.kernels.chain_tables import ChainTables, extent_of
from paceline.kernels.draft_choices import choose_drafts
from paceline.kernels.step_tables import Extent, RowTables
from paceline.kernels.work_items import Division
from paceline.sequence import Sequence
from paceline.step import Feed, Step, Verdict
from paceline.tree import DraftTree, Proposal

Forward = Callable[[RowTables, torch.Tensor | None], torch.Tensor]
"""Tables, and the rows whose logits are wanted, int64 [W], or None for all -> logits, float32 [W, V]."""


def is_fused(sequence: Sequence, growth: Growth) -> bool:
    """Whether a draft's tokens can be chosen on the device, level by level: chains that are greedy or coupled, where only
    temperature and noise affect the choice."""
    params = sequence.params
    settled = params.temperature == 0.0 or (growth.kind is Proposal.COUPLED and not params.cuts)
    return growth.chain is not None and not growth.amateur and settled and not params.shapes_logits and params.grammar is None


class ChainDraft:
    """A draft of several sequences in flight. work: sequence, budget and number of levels to draft. step: the step to stage: the
    tokens missing from the cache, and room for all drafted tokens but the last."""

    def __init__(self, work: Many[tuple[Sequence, Budget, int]], cache: PagedCache) -> None:
        self._work, self.levels = work, max(depth for *_, depth in work)
        feeds = []
        for sequence, _, depth in work:
            held = cache.length(sequence.key)
            room = DraftTree.chain(sequence.root, [sequence.root] * (depth - 1), "")
            feeds.append(Feed(sequence, held, tuple(sequence.tokens[held:]), room))
        self.step = Step.of(feeds)

    def extent(self, cache: PagedCache, division: Division, least: Extent) -> Extent:
        """The extent of its tables, once it is staged."""
        return extent_of(self.step, cache.blocks_of(self.step), cache.page_size, division, least)

    def trees(self, found: torch.Tensor, source: str) -> list[DraftTree]:
        """found: as `drafted` returns it, on the host."""
        tokens, confidences = found[0].T.tolist(), found[1].view(torch.float32).T.tolist()
        # entries after these are the bucket's padding
        work = zip(self._work, tokens, confidences, strict=False)
        return [_tree(*one, chosen, shares, source) for one, chosen, shares in work]

    def verdicts(self, trees: Many[DraftTree]) -> list[Verdict]:
        """Verdicts that make the cache keep all fed tokens of each draft."""
        kept = []
        for segment, tree in zip(self.step.segments, trees, strict=True):
            fed = min(len(tree) - 1, segment.nodes - 1)
            # a verdict's last token is not cached: a placeholder here
            kept.append(Verdict(tuple(range(1, fed + 1)), (*tree.tokens[1 : fed + 1], 0), fed))
        return kept


def _tree(sequence: Sequence, budget: Budget, depth: int, tokens: Many[int], confidences: Many[float], source: str) -> DraftTree:
    """The tokens that a draft with a wait per level would have: it stops after a token that ends the text, or that is too
    unlikely for the budget."""
    kept, reach, stopping = 0, 1.0, budget.stopping
    for token, confidence in zip(tokens[:depth], confidences, strict=False):
        # a row with NaN has NaN as its share
        if not confidence > 0.0:
            break
        kept += 1
        if confidence < budget.floor or token in sequence.stop_ids:
            break
        if stopping is not None:
            reach = stopping.reach(reach, kept, confidence)
            if not stopping.goes_on(kept, reach):
                break
    kind = Proposal.POINT if sequence.params.temperature == 0.0 else Proposal.COUPLED
    return DraftTree.chain(sequence.root, tokens[:kept], source, kind, confidences[:kept])


def drafted(forward: Forward, tables: ChainTables, level: int, vocab_size: int, buffer: torch.Tensor) -> torch.Tensor:
    """Draft one level and write its tokens where the next level reads them. Returns `buffer`: int32 [2, levels, S], tokens, and
    the bits of their float32 probabilities."""
    here, after = tables.levels[level], tables.levels[level + 1 : level + 2]
    logits = forward(here.tables, None if level else tables.wanted.long())
    read = after[0].tables.token_ids if after else None
    choose_drafts(logits, here.choices, vocab_size, buffer[0, level], buffer[1, level].view(torch.float32), read)
    return buffer
