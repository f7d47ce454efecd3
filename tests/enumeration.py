"""Exact laws of verifiers: every outcome of drafting times every outcome of the verifier's tests, with their probabilities.

Nothing is sampled. Dice that take every side in turn draw the draft; then the real verifier judges it, its own random draws
replaced by such dice. The last token it emits is not drawn: its whole distribution is recorded.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence as Many
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, TypeVar

import numpy as np
import pytest
import torch

from fakes import TableModel
from paceline.constraint import Constraint
from paceline.draws import likeliest
from paceline.params import SamplingParams
from paceline.sampling import Context, probabilities, target_scores
from paceline.sequence import Sequence
from paceline.tree import DraftTree, Proposal
from paceline.trials import Group, Trials, recorded
from paceline.union import union
from paceline.verifiers import base, block
from paceline.verifiers.base import NodeByNode, Verifier

Result = TypeVar("Result")
PROMPT = (0, 1, 2)
Tokens = tuple[int, ...]


class Dice:
    """Follows a trace of choices, then takes the first possible side each time; records the sides not taken."""

    def __init__(self, trace: tuple[int, ...]) -> None:
        self._trace, self._fallen = trace, list[int]()
        self.weight, self.untaken = 1.0, list[tuple[int, ...]]()

    def pick(self, weights: Many[float]) -> int:
        at, possible = len(self._fallen), [side for side, weight in enumerate(weights) if weight > 0.0]
        if at < len(self._trace):
            side = self._trace[at]
        else:
            side = possible[0]
            self.untaken += [(*self._fallen, other) for other in possible[1:]]
        self._fallen.append(side)
        self.weight *= float(weights[side])
        return side


def every(program: Callable[[Dice], Result]) -> Iterator[tuple[float, Result]]:
    """The program's result for every outcome of the dice, with the outcome's probability."""
    traces: list[tuple[int, ...]] = [()]
    while traces:
        dice = Dice(traces.pop())
        result = program(dice)
        traces += dice.untaken
        yield dice.weight, result


@dataclass(frozen=True)
class Source:
    """One drafter: its model, how it draws, and the number of children of each node, by level. amateur: it records its
    distribution at every node. floor: it drafts nothing below a token less likely than this."""

    model: TableModel
    kind: Proposal
    widths: tuple[int, ...]
    name: str = "one"
    amateur: bool = False
    floor: float = 0.0

    def beside(self, tree: DraftTree) -> Source:
        """The source that drafts after other sources have drafted `tree`."""
        return self

    def tree(self, sequence: Sequence, dice: Dice) -> DraftTree:
        tokens, parents, proposals = [sequence.root], [-1], {}
        texts, level, ended = [tuple(sequence.tokens)], [0], set[int]()
        for width in (*self.widths, 0):
            below = []
            for node in level:
                row, count = self.model.row(texts[node]).softmax(-1), 0 if node in ended else width
                if self.amateur or (self.kind.drawn and count):
                    proposals[node, self.name] = row
                for token in _siblings(row, self.kind, count, dice):
                    if row[token] < self.floor:
                        ended.add(len(tokens))
                    below.append(len(tokens))
                    tokens.append(token)
                    parents.append(node)
                    texts.append((*texts[node], token))
            level = below
        return DraftTree(
            tuple(tokens), tuple(parents), self.kind, proposals, ("", *[self.name] * (len(tokens) - 1))
        )  # fmt: skip


def _siblings(row: torch.Tensor, kind: Proposal, width: int, dice: Dice) -> list[int]:
    """Children by the definition of each kind, independent of the code that draws them."""
    if not kind.drawn:
        return row.topk(width).indices.tolist()
    probs, found = recorded(row), list[int]()
    for place in range(width):
        if kind is Proposal.HUB and place == 1 and found[0] != likeliest(row):
            found.append(likeliest(row))
            continue
        if not probs.any():
            break
        found.append(dice.pick((probs / probs.sum()).tolist()))
        if kind is not Proposal.IID:
            probs[found[-1]] = 0.0
    return found


@dataclass
class Blocks:
    """The output of one step. by_text: emitted tokens -> probability. accepted: expected number of accepted tokens."""

    by_text: dict[Tokens, float] = field(default_factory=lambda: defaultdict(float))
    accepted: float = 0.0
    all_accepted: float = 0.0
    """The probability that a draft was accepted to its deepest node."""


def blocks(
    verifier: Verifier,
    model: TableModel,
    sources: Many[Source],
    params: SamplingParams,
    constraint: Callable[[], Constraint] | None = None,
) -> Blocks:
    """constraint: makes a constraint that has read nothing."""
    sequence, found = _sequence(params, constraint), Blocks()
    drafts: dict[int, tuple[float, DraftTree]] = {}
    for weight, tree in every(lambda dice: _drafted(sources, sequence, dice)):
        same = hash((tree.tokens, tree.parents, tree.sources))
        drafts[same] = (drafts.get(same, (0.0, tree))[0] + weight, tree)
    assert abs(sum(weight for weight, _ in drafts.values()) - 1) < 1e-12
    for weight, tree in drafts.values():
        logits = torch.stack([model.row([*PROMPT, *(tree.tokens[n] for n in tree.path(at))]) for at in range(len(tree))])
        for chance, (path, tokens, law) in every(lambda dice, t=tree, rows=logits: _judged(verifier, sequence, t, rows, dice)):
            found.accepted += weight * chance * len(path)
            found.all_accepted += weight * chance * (len(path) == tree.deepest)
            for last, probability in enumerate(law):
                found.by_text[*tokens[:-1], last] += weight * chance * float(probability)
    return found


def _drafted(sources: Many[Source], sequence: Sequence, dice: Dice) -> DraftTree:
    """The union of the drafts of all sources, drafted one after the other."""
    return reduce(
        lambda tree, source: union(tree, source.beside(tree).tree(sequence, dice)), sources, DraftTree.root(sequence.root)
    )


def _judged(
    verifier: Verifier, sequence: Sequence, tree: DraftTree, logits: torch.Tensor, dice: Dice
) -> tuple[Tokens, Tokens, np.ndarray]:
    """One verdict: its path, its tokens, and the distribution of the last token."""
    laws, used = list[np.ndarray](), set[tuple[Any, ...]]()

    def happens(probability: float, owner: Sequence, *stream: Any) -> bool:
        assert owner is sequence
        assert stream not in used, "one random number decides two tests"
        assert -1e-12 < probability < 1 + 1e-12
        used.add(stream)
        return dice.pick([probability, 1.0 - probability]) == 0

    def drawn(probs: np.ndarray, owner: Sequence, *stream: Any) -> int:
        assert stream not in used, "one random number decides two draws"
        laws.append(probs / probs.sum())
        return int(probs.argmax())

    with pytest.MonkeyPatch.context() as patch:
        for room in (base, block):
            patch.setattr(room, "happens", happens)
            patch.setattr(room, "drawn", drawn)
        verdict = verifier([sequence], [tree], [logits])[0]
    assert len(laws) == 1
    assert verdict.tokens[:-1] == tuple(tree.tokens[node] for node in verdict.path)
    assert verdict.accepted == len(verdict.path)
    assert all(tree.parents[node] == above for above, node in itertools.pairwise((0, *verdict.path)))
    return verdict.path, verdict.tokens, laws[0]


Law = Callable[[Tokens], np.ndarray]
"""Generated tokens -> float64 [V], the distribution of the next one."""


def _sequence(params: SamplingParams, constraint: Callable[[], Constraint] | None) -> Sequence:
    return Sequence(0, PROMPT, params, seed=0, constraint=constraint() if constraint else None)


def target_law(model: TableModel, params: SamplingParams, constraint: Callable[[], Constraint] | None = None) -> Law:
    """The law of plain decoding: everything before the row is committed."""

    def law(tokens: Tokens) -> np.ndarray:
        sequence = _sequence(params, constraint)
        sequence.commit(tokens, ("",) * len(tokens))
        return probabilities(target_scores(model.row(sequence.tokens), Context(sequence)), sequence)

    return law


def contrastive_law(
    target: TableModel, amateur: TableModel, alpha: float = 0.1, beta: float = 0.5, temperature: float = 1.0
) -> Law:
    """The law of `contrastive`, by its formula."""

    def law(tokens: Tokens) -> np.ndarray:
        expert = target.row([*PROMPT, *tokens]).double().softmax(-1).numpy()
        # a drafter's recorded distribution is float32
        other = amateur.row([*PROMPT, *tokens]).softmax(-1).double().numpy()
        weights = np.where(expert >= alpha * expert.max(), expert ** (1 + beta) / other**beta, 0.0) ** (1 / temperature)
        return weights / weights.sum()

    return law


def error(found: Blocks, law: Law, size: int, length: int) -> float:
    """The largest deviation in the joint law of `length` tokens: tokens a step emits, continued by the law itself."""
    conditionals: dict[Tokens, np.ndarray] = {}
    worst = 0.0
    for text in itertools.product(range(size), repeat=length):
        for at in range(length):
            if text[:at] not in conditionals:
                conditionals[text[:at]] = law(text[:at])
        steps = [float(conditionals[text[:at]][text[at]]) for at in range(length)]
        got = sum(found.by_text.get(text[:at], 0.0) * float(np.prod(steps[at:])) for at in range(1, length + 1))
        worst = max(worst, abs(got - float(np.prod(steps))))
    return worst


@dataclass
class Node:
    """Results of the tests at one node. emitted: float64 [V], the law of its token. accepted: chance that a child is accepted."""

    emitted: np.ndarray
    accepted: float


def node_law(rule: NodeByNode, target_probs: np.ndarray, draws: Many[tuple[float, list[Group]]]) -> Node:
    """draws: every draw of children as (its probability, its groups). Returns the law of the emitted token over all of them."""
    found = Node(np.zeros(len(target_probs)), 0.0)
    for weight, groups in draws:
        tokens = {node: token for group in groups for node, token in zip(group.nodes, group.tokens, strict=True)}
        trials: Trials = rule.trials(target_probs, iter(groups))
        while True:
            try:
                child, chance = next(trials)
            except StopIteration as ended:
                found.emitted += weight * ended.value
                break
            assert -1e-12 < chance < 1 + 1e-12
            found.emitted[tokens[child]] += weight * chance
            found.accepted += weight * chance
            weight *= 1.0 - chance
    return found


def every_draw(proposal_probs: np.ndarray, kind: Proposal, count: int) -> list[tuple[float, list[Group]]]:
    """Every way to draw `count` children of one node. proposal_probs: float64 [V], a distribution."""
    row = torch.from_numpy(proposal_probs)
    hub = likeliest(row) if kind is Proposal.HUB else None
    draws = []
    for weight, tokens in every(lambda dice: _siblings(row, kind, count, dice)):
        probs = proposal_probs if kind.drawn else None
        draws.append((weight, [Group(tuple(range(1, len(tokens) + 1)), tuple(tokens), kind, probs, hub)]))
    return draws
