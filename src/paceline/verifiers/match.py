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

from collections.abc import Callable, Sequence as Many
from itertools import islice

import torch
from pydantic import BaseModel

from paceline.sampling import Context, choose
from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.tree import DraftTree, Proposal
from paceline.verifiers.base import Exactness, Verifier


class Options(BaseModel):
    """None."""


class Match(Verifier):
    name = "match"
    exactness = dict.fromkeys(Proposal, Exactness.TEXT)

    def __call__(self, sequences: Many[Sequence], trees: Many[DraftTree], logits: Many[torch.Tensor]) -> list[Verdict]:
        if all(sequence.params.plain_greedy for sequence in sequences):
            return [_walked(tree, choice) for tree, choice in zip(trees, _greedy_choices(logits), strict=True)]
        return _level_by_level(sequences, trees, logits)


def _greedy_choices(logits: Many[torch.Tensor]) -> list[Callable[[int], int]]:
    """Per sequence, node -> the target's token there. A CPU reads only the rows that are asked for; a device answers once."""
    if logits[0].device.type == "cpu":
        # torch takes over ten times as long as numpy to find the largest of a row
        return [lambda node, rows=rows.numpy(): int(rows[node].argmax()) for rows in logits]
    chosen = iter(torch.cat(list(logits)).argmax(-1).tolist())
    return [list(islice(chosen, len(rows))).__getitem__ for rows in logits]


def _walked(tree: DraftTree, choice: Callable[[int], int]) -> Verdict:
    path, tokens, node = [], [choice(0)], 0
    while (child := tree.children[node].get(tokens[-1])) is not None:
        path.append(child)
        tokens.append(choice(child))
        node = child
    return Verdict(tuple(path), tuple(tokens), len(path))


def _level_by_level(sequences: Many[Sequence], trees: Many[DraftTree], logits: Many[torch.Tensor]) -> list[Verdict]:
    """Choose only at the nodes the walks reach, one level of all sequences at a time: sampling a row is not free."""
    paths: list[list[int]] = [[] for _ in sequences]
    tokens: list[list[int]] = [[] for _ in sequences]
    live = dict.fromkeys(range(len(sequences)), 0)
    while live:
        # a single row needs no copy
        rows = [logits[i][node] for i, node in live.items()]
        rows = torch.stack(rows) if len(rows) > 1 else rows[0][None]
        contexts = [Context(sequences[i], tuple(tokens[i])) for i in live]
        for i, token in zip(list(live), choose(rows, contexts), strict=True):
            tokens[i].append(token)
            child = trees[i].children[live.pop(i)].get(token)
            if child is not None:
                paths[i].append(child)
                live[i] = child
    return [Verdict(tuple(p), tuple(t), len(p)) for p, t in zip(paths, tokens, strict=True)]


def build(options: Options) -> Match:
    return Match()
