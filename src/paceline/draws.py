"""Draws that are not the target's choice: drafts, acceptance tests, residuals; each from a stream of its own.

A stream is keyed (seed and number of the request, name, position behind the root, node, trial), never by the position-keyed noise
alone: a draft that depended on the number with which it is judged would not be a sample of its proposal. A caller that draws
twice at one node of one step uses another name or trial.
"""

from __future__ import annotations

import numpy as np
import torch

from paceline.noise import noised_best, stream, uniform
from paceline.sequence import Sequence
from paceline.tree import Proposal

_STRETCH = 512
"""Tokens per block: the sums of all blocks are computed first, then a token is searched for within one block."""


def chance(sequence: Sequence, name: str, node: int) -> float:
    """A number between 0 and 1 for one test at a node of the tree below this sequence's root."""
    return uniform(stream(sequence.draws_seed, name, node), len(sequence.tokens))


def happens(probability: float, sequence: Sequence, name: str, node: int) -> bool:
    """The outcome of a test that succeeds with this probability."""
    return chance(sequence, name, node) < probability


def drawn(probs: np.ndarray, sequence: Sequence, name: str, node: int) -> int:
    """A token drawn from `probs`, float64 [V], not negative and with a sum above 0: the one in whose interval of the cumulative
    sum a uniform number falls. Noise for every token would take four times as long, and so would one cumulative sum over all."""
    begins = range(0, len(probs), _STRETCH)
    sums = np.add.reduceat(probs, begins).cumsum()
    aim = chance(sequence, name, node) * sums[-1]
    # a product may be rounded to the sum itself
    at = min(int(sums.searchsorted(aim, side="right")), int(sums.searchsorted(sums[-1])))
    stretch = probs[begins[at] : begins[at] + _STRETCH]
    within = stretch.cumsum()
    token = int(within.searchsorted(aim - (sums[at - 1] if at else 0.0), side="right"))
    return begins[at] + (token if token < len(stretch) else int(stretch.nonzero()[0][-1]))


def likeliest(probs: torch.Tensor) -> int:
    """The token of the largest probability in probs, float32 [V]; the smallest id of equal ones. Drawing and verifying both use
    it as the hub."""
    return int(probs.cpu().numpy().argmax())


def siblings(probs: torch.Tensor, kind: Proposal, count: int, sequence: Sequence, name: str, node: int) -> list[int]:
    """Up to `count` children of a node drawn from its proposal in the way of `kind`, in the order of their draws.

    probs: float32 [V], a distribution. IID: independently. WITHOUT_REPLACEMENT: by the largest noised scores (Gumbel-top-k,
    Kool et al., arXiv:1903.06059), fewer where the support ends. HUB: two, coupled as SpecHub asks (arXiv:2411.05289):
    the first is drawn; the second is the likeliest token, or, where the first was that one, drawn among the others.
    """
    scores = _scores(probs)
    if kind is Proposal.IID:
        return [_drawn(scores, sequence, name, node, trial) for trial in range(count)]
    if kind is Proposal.WITHOUT_REPLACEMENT:
        return noised_best(scores, stream(sequence.draws_seed, name, node), len(sequence.tokens), count)
    if kind is not Proposal.HUB:
        raise ValueError(f"tokens of kind {kind.name} are chosen, not drawn")
    first, hub = _drawn(scores, sequence, name, node, 0), likeliest(probs)
    if count == 1:
        return [first]
    if first != hub:
        return [first, hub]
    others = scores.clone()
    others[hub] = -torch.inf
    return [first, _drawn(others, sequence, name, node, 1)] if bool((others > -torch.inf).any()) else [first]


def _scores(probs: torch.Tensor) -> torch.Tensor:
    if probs.device.type != "cpu":
        return probs.double().log().float()
    # numpy: a few thousand numbers are not worth waking torch's threads for
    row = probs.numpy()
    logs = np.log(row, out=np.full(len(row), -np.inf), where=row > 0, dtype=np.float64)
    return torch.from_numpy(logs.astype(np.float32))


def _drawn(scores: torch.Tensor, sequence: Sequence, name: str, node: int, trial: int) -> int:
    return noised_best(scores, stream(sequence.draws_seed, name, node, trial), len(sequence.tokens))[0]
