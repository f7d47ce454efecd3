"""Ranking: which tokens a model's draft goes on with, and the model's confidence in each of them.

On a CPU a row is ranked when it is added. On a GPU all rows of a level are ranked there at once: the host waits once per level,
and reads a few numbers in place of whole rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Many

import numpy as np
import torch

from paceline.noise import SMALL, gumbel, noised_best

_FAR = 12.0
"""In larger vocabularies, tokens whose scores are further than this below the largest are ignored in confidences."""

Ranked = list[tuple[int, float]]
"""Tokens, best first, and their shares in the softmax of what they were ranked by."""


class Noise:
    """The noise of one position of one request, made when it is first asked for: all nodes of a level share it."""

    def __init__(self, seed: int, position: int) -> None:
        self.seed, self.position = seed, position
        self._all: np.ndarray | None = None
        self._on_device: torch.Tensor | None = None

    def ranked(self, scores: torch.Tensor, count: int) -> Ranked:
        """The `count` tokens with the largest scores + noise. scores: float32 [V]."""
        row = scores.cpu().numpy()
        if len(row) <= SMALL:
            if self._all is None:
                self._all = gumbel(self.seed, self.position, np.arange(len(row), dtype=np.int32)).astype(np.float64)
            return _ranked(row + self._all, count)
        best = noised_best(scores, self.seed, self.position, count)
        if not best:
            return []
        shares = chosen_shares(row, best, (self.seed, self.position))
        return list(zip(best, shares.tolist(), strict=True))

    def added_to(self, scores: torch.Tensor) -> torch.Tensor:
        """float64 [V]: scores + noise, on the device of the scores. scores: float32 [V]."""
        if self._on_device is None:
            self._on_device = gumbel(self.seed, self.position, torch.arange(len(scores), device=scores.device)).double()
        return scores + self._on_device


class Ranking:
    """The tokens that the nodes of one level go on with, in the order in which nodes are added. together: rank all rows at once,
    on their device."""

    def __init__(self, together: bool) -> None:
        self._together = together
        self._found: list[Ranked] = []
        self._rows: list[torch.Tensor] = []
        self._places: list[tuple[int, int]] = []
        """For each row to be ranked with the others: its place in `_found`, and how many tokens are wanted."""

    def put(self, chosen: Ranked) -> None:
        """Add a node whose tokens are already chosen."""
        self._found.append(chosen)

    def rank(self, scores: torch.Tensor, count: int, noise: Noise | None) -> None:
        """Add a node that goes on with the `count` largest scores of a row, the position's noise included if given; with none
        where the row holds NaN. scores: float32 [V]."""
        if self._together:
            self._places.append((len(self._found), count))
            self._rows.append(scores.double() if noise is None else noise.added_to(scores))
            self._found.append([])
        else:
            self._found.append(_ranked(scores.cpu().numpy(), count) if noise is None else noise.ranked(scores, count))

    def found(self) -> Iterator[Ranked]:
        """The tokens of each node; waits for the GPU, if there is one."""
        if self._rows:
            rows = torch.stack(self._rows)
            values, tokens = rows.topk(min(max(count for _, count in self._places), rows.shape[-1]))
            shares = (values - rows.logsumexp(-1, keepdim=True)).exp()
            # float64 holds every token id exactly, and one tensor is one wait
            for (place, count), (ids, of) in zip(self._places, torch.stack([tokens.double(), shares], 1).tolist(), strict=True):
                # tokens that cannot be chosen have share 0, and in a row with NaN every share is NaN
                self._found[place] = [(int(token), share) for token, share in zip(ids[:count], of, strict=False) if share > 0.0]
        return iter(self._found)


def chosen_shares(row: np.ndarray, tokens: Many[int], noise: tuple[int, int] | None) -> np.ndarray:
    """Shares of tokens in the softmax of what they were chosen by. row: float [V], the scores. noise: seed and position of the
    noise that was added to them; None for none."""
    # noise may lift low scores too: in small vocabularies all tokens count, as they did in the ranking
    few = noise is not None and len(row) <= SMALL
    near = np.arange(len(row)) if few else np.union1d(np.flatnonzero(row >= row.max() - _FAR), tokens)
    chosen_by = row[near].astype(np.float64)
    if noise is not None:
        chosen_by += gumbel(*noise, near)
    return _shares(chosen_by)[np.searchsorted(near, tokens)]


def _ranked(row: np.ndarray, count: int) -> Ranked:
    """The `count` largest of a row, the first of equals first."""
    if not np.isfinite(row.max()):
        # NaN, or no token that the answer's grammar allows
        return []
    shares, found = _shares(row), []
    left = row if count == 1 else row.copy()
    for _ in range(min(count, len(row))):
        token = int(left.argmax())
        # this holds for NaN too
        if not left[token] > -np.inf:
            break
        found.append((token, float(shares[token])))
        if count > 1:
            left[token] = -np.inf
    return found


def _shares(row: np.ndarray) -> np.ndarray:
    weights = np.exp(row - row.max())
    return weights / weights.sum()
