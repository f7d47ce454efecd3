"""Verifier: a pure function from the target's scores to verdicts, and what it promises about them.

Three ways to reach a verdict are shared. `follow_choices` follows the target's own choices, as every exact verifier does for
greedy requests. `NodeByNode` tests the children of a node one after another and walks on from the one that was accepted: most
verifiers that keep the law differ only in the tests. `LongestPath` takes the longest path of tokens that are good enough: the
lossy verifiers differ only in what is good enough.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence as Many
from enum import Enum
from itertools import accumulate, islice

import numpy as np
import torch

from paceline.draws import drawn, happens
from paceline.kernels.choices.distributions import DISTRIBUTION, distribution
from paceline.kernels.choices.tree_walk import chosen, walked
from paceline.kernels.compiled import Kernel
from paceline.kernels.device import give_up, served
from paceline.sampling import Context, checked, largest, largest_of_each
from paceline.sequence import Sequence
from paceline.shortage import memory_ended
from paceline.step import Verdict
from paceline.tree import DraftTree, Proposal
from paceline.trials import Group, Trials, groups_below, recursive


class Exactness(Enum):
    """What a verifier keeps of plain decoding; it keeps nothing for a kind of proposal that it does not declare."""

    TEXT = "text"
    """Token for token the same."""
    LAW = "law"
    """The same distribution, other tokens."""


class Verifier(ABC):
    """exactness: per kind of proposal; greedy requests keep their text under every verifier that declares any.

    prefers: kinds a drafter should produce for it, the best first; POINT is always possible. amateur: True where it needs the
    drafter's own distribution, untouched by sampling parameters, at every node, those without children included. law: whose
    distribution the tokens have, the target's own or one made from it. reads_chain: whether it looks only at a tree's path of
    first children when it samples. kernels: compiled code that it uses beside that for the target's choices.
    """

    name: str
    exactness: Mapping[Proposal, Exactness]
    prefers: tuple[Proposal, ...] = (Proposal.COUPLED, Proposal.POINT)
    amateur: bool = False
    law: str = "target"
    reads_chain: bool = False
    kernels: tuple[Kernel, ...] = ()

    @abstractmethod
    def __call__(self, sequences: Many[Sequence], trees: Many[DraftTree], logits: Many[torch.Tensor]) -> list[Verdict]:
        """One verdict per sequence. logits: per sequence float32 [N, V], the target's at every candidate of its tree.

        Raises LogitsError, with the sequence, where a row to sample from does not hold numbers.
        """


class NodeByNode(Verifier):
    """Tests the children of a node in turn; a subclass defines the probabilities (`tested`).

    The law is kept for every kind of proposal. Drawn tokens are tested against what they were drawn from. All others count as
    point masses, also those COUPLED by the position's noise: no test here reads that noise, so given the noise they are as
    fixed as any choice, and the law holds under every noise. All randomness comes from separate streams, keyed by node.
    """

    exactness = dict.fromkeys(Proposal, Exactness.LAW)
    kernels = (DISTRIBUTION,)

    def __call__(self, sequences: Many[Sequence], trees: Many[DraftTree], logits: Many[torch.Tensor]) -> list[Verdict]:
        return greedy_or(self.walked, sequences, trees, logits)

    def tested(self, target_probs: np.ndarray, group: Group) -> Trials:
        """The tests of children that one source chose together. target_probs: float64 [V]."""
        return recursive(target_probs, group)

    def trials(self, target_probs: np.ndarray, groups: Iterator[Group]) -> Trials:
        """The tests of all children of a node, or of the first where the verifier reads a chain: what one group leaves of the
        target is the target of the next."""
        for group in (group.first() for group in islice(groups, 1)) if self.reads_chain else groups:
            target_probs = yield from self.tested(target_probs, group)
        return target_probs

    def target_probs(
        self, sequence: Sequence, ancestors: tuple[int, ...], row: torch.Tensor, amateur: torch.Tensor | None
    ) -> np.ndarray:
        """float64 [V]: the law at one node. row: its logits, float32 [V]. amateur: the drafter's distribution there, float32
        [V], where the verifier asks for it and there is one."""
        return distribution(row, Context(sequence, ancestors))

    def walked(self, sequence: Sequence, tree: DraftTree, logits: torch.Tensor) -> Verdict:
        """The verdict on one tree. logits: float32 [N, V]."""
        tip, twins, tokens = 0, (0,), ()
        while True:
            law = self.target_probs(sequence, tokens, logits[tip], _shown(tree, twins) if self.amateur else None)
            child, law = _settled(self.trials(law, groups_below(tree, twins)), sequence)
            if child is None:
                last = drawn(law, sequence, "residual", tip)
                path = tree.path(tip)
                return Verdict(path, (*tokens, last), len(path))
            token = tree.tokens[child]
            # equal siblings stand for the same text: what was drafted behind any of them counts as drafted behind this one
            equal = [node for at in twins for node in tree.siblings[at] if tree.tokens[node] == token and node != child]
            tip, twins, tokens = child, (child, *equal), (*tokens, token)


def _shown(tree: DraftTree, nodes: Many[int]) -> torch.Tensor | None:
    return next((row for (at, _), row in tree.proposals.items() if at in nodes), None)


def _settled(trials: Trials, sequence: Sequence) -> tuple[int | None, np.ndarray]:
    """The child that was accepted, if any, and the law of what is emitted if none was."""
    try:
        while True:
            child, probability = next(trials)
            if happens(probability, sequence, "accept", child):
                return child, np.empty(0)
    except StopIteration as ended:
        return None, ended.value


class LongestPath(Verifier):
    """Accepts every token that is good enough behind accepted ones, and takes the longest path; of equally long ones that with
    the largest probability. Lossy.

    A path that ends the text does not count as short: where a stop token is the likeliest, the path counts as one of the longest,
    with its probability without that token, whether the token was drafted or not. Other stop tokens are treated like any token,
    and must be drafted and make their path the longest: an answer should not end with a token that is merely good enough.
    """

    exactness: Mapping[Proposal, Exactness] = {}
    prefers = (Proposal.POINT,)
    kernels = (DISTRIBUTION,)

    def __call__(self, sequences: Many[Sequence], trees: Many[DraftTree], logits: Many[torch.Tensor]) -> list[Verdict]:
        return [self.longest(*one) for one in _on_host(list(zip(sequences, trees, logits, strict=True)))]

    @abstractmethod
    def worth(self, probs: np.ndarray) -> np.ndarray:
        """float64 [V]: the log-probability of every token that is good enough, -inf for the others. probs: the target's
        distribution, float64 [V]."""

    @abstractmethod
    def last(self, row: torch.Tensor, context: Context) -> int:
        """The token that is emitted behind the accepted path. row: logits, float32 [V]."""

    def longest(self, sequence: Sequence, tree: DraftTree, logits: torch.Tensor) -> Verdict:
        """The verdict on one tree. logits: float32 [N, V]."""
        totals: dict[int, float] = {0: 0.0}
        texts: dict[int, tuple[int, ...]] = {0: ()}
        behind: dict[int, tuple[np.ndarray, int]] = {}

        def judged_at(node: int) -> tuple[np.ndarray, int]:
            """The worth of every token behind an accepted node, and the likeliest token there."""
            if node not in behind:
                probs = distribution(logits[node], Context(sequence, texts[node]))
                behind[node] = self.worth(probs), int(probs.argmax())
            return behind[node]

        for node in range(1, tree.candidates):
            parent, token = tree.parents[node], tree.tokens[node]
            if parent in totals and (value := judged_at(parent)[0][token]) > -np.inf:
                totals[node], texts[node] = totals[parent] + value, (*texts[parent], token)
        ending = [bool(node) and token in sequence.stop_ids for node, token in enumerate(tree.tokens)]
        # policies leave stop tokens out of trees, and the outcome must be the same
        deepest = max(tree.depth[node] for node in range(tree.candidates) if not ending[node])

        def rank(node: int) -> tuple[int, float, int]:
            """The number of levels its path counts for, its log-probability, and its real number of levels."""
            level, parent = tree.depth[node], tree.parents[node]
            if ending[node]:
                if judged_at(parent)[1] == tree.tokens[node]:
                    return deepest, totals[parent], level
            elif level < deepest and sequence.stop_ids and judged_at(node)[1] in sequence.stop_ids:
                return deepest, totals[node], level
            return level, totals[node], level

        tip = max(totals, key=rank)
        path, text = tree.path(tip), texts[tip]
        return Verdict(path, (*text, self.last(logits[tip], Context(sequence, text))), len(path))


def logarithms(probs: np.ndarray) -> np.ndarray:
    """float64 [V]: the natural logarithms of probs, float64 [V]; -inf where a probability is 0."""
    return np.log(probs, out=np.full(len(probs), -np.inf), where=probs > 0.0)


def greedy_or(
    sampled: Callable[[Sequence, DraftTree, torch.Tensor], Verdict],
    sequences: Many[Sequence],
    trees: Many[DraftTree],
    logits: Many[torch.Tensor],
) -> list[Verdict]:
    """One verdict per sequence: the target's own choices where it is greedy, else what `sampled` returns.

    logits: for each sequence float32 [N, V], one row per node of its tree. sampled: gets one sequence, its tree and its logits,
    on the host.
    """
    work = list(zip(sequences, trees, logits, strict=True))
    greedy = [one for one in work if one[0].params.temperature == 0.0]
    rest = _on_host([one for one in work if one[0].params.temperature != 0.0])
    if not greedy:
        return [sampled(*one) for one in rest]
    followed, others = iter(follow_choices(*zip(*greedy, strict=True))), (sampled(*one) for one in rest)
    return [next(followed if one[0].params.temperature == 0.0 else others) for one in work]


def _on_host(work: list[tuple[Sequence, DraftTree, torch.Tensor]]) -> list[tuple[Sequence, DraftTree, torch.Tensor]]:
    """`work` with logits on the host, where compiled code makes distributions of them: one copy in place of a wait per row."""
    if not work or work[0][2].is_cpu:
        return work
    sequences, trees, logits = zip(*work, strict=True)
    rows = _in_one(logits).cpu().split([len(rows) for rows in logits])
    return list(zip(sequences, trees, rows, strict=True))


def follow_choices(sequences: Many[Sequence], trees: Many[DraftTree], logits: Many[torch.Tensor]) -> list[Verdict]:
    """Walk from the root to the child that carries the token plain decoding picks, as far as there is one; one verdict each.

    logits: for each sequence float32 [N, V], one row per node of its tree.
    """
    if all(sequence.plain_greedy for sequence in sequences):
        return [_followed(tree, choice) for tree, choice in zip(trees, _greedy_choices(sequences, logits), strict=True)]
    choices = _device_choices(sequences, trees, logits) if served(logits[0].device) else None
    if choices is not None:
        return [_followed(tree, choice) for tree, choice in zip(trees, choices, strict=True)]
    found = [walk and Verdict(*walk, len(walk[0])) for walk in walked(sequences, trees, logits)]
    work = zip(sequences, trees, logits, strict=True)
    left = [one for one, verdict in zip(work, found, strict=True) if verdict is None]
    rest = iter(_level_by_level(*zip(*left, strict=True)) if left else ())
    return [verdict or next(rest) for verdict in found]


def _in_one(logits: Many[torch.Tensor]) -> torch.Tensor:
    """float32 [R, V]: the rows of all tensors, concatenated; without a copy if there is only one."""
    return torch.cat(list(logits)) if len(logits) > 1 else logits[0]


def _greedy_choices(sequences: Many[Sequence], logits: Many[torch.Tensor]) -> Iterator[Callable[[int], int]]:
    """Per sequence, node -> the target's token there. A CPU reads only the rows that are asked for; a GPU reads all at once."""
    if logits[0].is_cpu:
        # numpy finds the largest number in less time than it takes to pass one sequence to compiled code
        for sequence, rows in zip(sequences, logits, strict=True):
            yield lambda node, sequence=sequence, rows=rows.numpy(): checked(largest(rows[node]), sequence)
        return
    chosen = iter(largest_of_each(_in_one(logits)))
    for sequence, rows in zip(sequences, logits, strict=True):
        found = list(islice(chosen, len(rows)))
        yield lambda node, sequence=sequence, found=found: checked(found[node], sequence)


def _device_choices(
    sequences: Many[Sequence], trees: Many[DraftTree], logits: Many[torch.Tensor]
) -> list[Callable[[int], int]] | None:
    """Per sequence, node -> the target's token there: every node is sampled at once, since waiting takes longer than sampling.

    None where the kernel does not run: the host chooses the same tokens.
    """
    contexts = [
        Context(sequence, tuple(tree.tokens[at] for at in tree.path(node)))
        for sequence, tree in zip(sequences, trees, strict=True)
        for node in range(tree.candidates)
    ]
    try:
        # imports Triton
        from paceline.kernels.fused_sampling import Choices

        choices = Choices(_in_one([rows[: tree.candidates] for tree, rows in zip(trees, logits, strict=True)]), contexts)
    # Triton's compiler has no error class of its own to catch
    except Exception as error:
        if not memory_ended(error):
            give_up(logits[0].device, error)
        return None
    starts = accumulate((tree.candidates for tree in trees), initial=0)
    return [lambda node, first=first: choices(first + node) for first, _ in zip(starts, trees, strict=False)]


def _followed(tree: DraftTree, choice: Callable[[int], int]) -> Verdict:
    path, tokens, node = [], [choice(0)], 0
    if tree.is_chain:
        # most drafts are one, and most trees of a batch the root alone
        while (node := node + 1) < tree.candidates and tree.tokens[node] == tokens[-1]:
            tokens.append(choice(node))
        return Verdict(tuple(range(1, node)), tuple(tokens), node - 1)
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
        rows = _in_one([logits[i][node : node + 1] for i, node in live.items()])
        contexts = [Context(sequences[i], tuple(tokens[i])) for i in live]
        for i, token in zip(list(live), chosen(rows, contexts), strict=True):
            tokens[i].append(token)
            child = trees[i].children[live.pop(i)].get(token)
            if child is not None:
                paths[i].append(child)
                live[i] = child
    return [Verdict(tuple(p), tuple(t), len(p)) for p, t in zip(paths, tokens, strict=True)]
