"""Match: at every node the target picks the token it would have picked there in plain decoding; the walk follows it.

At the root the target chooses with its own distribution and that position's noise (argmax when greedy); a child that carries
the token is accepted and chooses next; where none does, the token is emitted and the walk ends. So the text depends on nothing
but the request: not on the drafter, the tree, the batch or a preemption.

Source: drafter-invariant verification, Daliri et al. (arXiv:2408.07978); for trees SpecInfer (arXiv:2305.09781),
section 4.3 (sample, then match).
Exactness: text for every kind of proposal
Lossless: yes
"""

from __future__ import annotations

from collections.abc import Sequence as Many

import torch

from paceline.sampling import Context, choose
from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.tree import DraftTree, Proposal
from paceline.verifiers.base import Exactness, Verifier


class Match(Verifier):
    name = "match"
    exactness = dict.fromkeys(Proposal, Exactness.TEXT)

    def __call__(self, sequences: Many[Sequence], trees: Many[DraftTree], logits: Many[torch.Tensor]) -> list[Verdict]:
        if all(sequence.params.plain_greedy for sequence in sequences):
            chosen = torch.cat(list(logits)).argmax(-1).tolist()
            verdicts, low = [], 0
            for tree in trees:
                verdicts.append(_walked(tree, chosen[low : low + len(tree)]))
                low += len(tree)
            return verdicts
        return _level_by_level(sequences, trees, logits)


def _walked(tree: DraftTree, chosen: list[int]) -> Verdict:
    """chosen: the target's token at every node."""
    path, tokens, node = [], [chosen[0]], 0
    while (child := tree.children[node].get(tokens[-1])) is not None:
        path.append(child)
        tokens.append(chosen[child])
        node = child
    return Verdict(tuple(path), tuple(tokens), len(path))


def _level_by_level(sequences: Many[Sequence], trees: Many[DraftTree], logits: Many[torch.Tensor]) -> list[Verdict]:
    """Choose only at the nodes the walks reach, one level of all sequences at a time: sampling a row is not free."""
    paths: list[list[int]] = [[] for _ in sequences]
    tokens: list[list[int]] = [[] for _ in sequences]
    live = dict.fromkeys(range(len(sequences)), 0)
    while live:
        rows = torch.stack([logits[i][node] for i, node in live.items()])
        contexts = [Context(sequences[i], tuple(tokens[i])) for i in live]
        for i, token in zip(list(live), choose(rows, contexts), strict=True):
            tokens[i].append(token)
            child = trees[i].children[live.pop(i)].get(token)
            if child is not None:
                paths[i].append(child)
                live[i] = child
    return [Verdict(tuple(p), tuple(t), len(p)) for p, t in zip(paths, tokens, strict=True)]


def build() -> Match:
    return Match()
