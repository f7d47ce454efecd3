"""Ranking: which tokens a model's draft goes on with, and how likely the model holds each of them.

On a CPU a row is ranked when it is handed over. Where rows lie on a GPU all those of a level are ranked there at once: whoever
drafts waits once a level, and reads a few numbers in place of whole rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Many

import numpy as np
import torch

from paceline.noise import gumbel, noised_best

_FEW = 8192
"""Up to so many tokens all are noised."""
_FAR = 12.0
"""Tokens whose scores are further than this below the largest count for nothing in a confidence where there are more."""

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
        if len(row) <= _FEW:
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
    """What the nodes of one level go on with, in the order in which they are put here. together: rank all rows at once, where
    they lie."""

    def __init__(self, together: bool) -> None:
        self._together = together
        self._found: list[Ranked] = []
        self._rows: list[torch.Tensor] = []
        self._places: list[tuple[int, int]] = []
        """Of each row to be ranked with the others: its place among what is found, and how many tokens are wanted."""

    def put(self, chosen: Ranked) -> None:
        """A node whose tokens are chosen."""
        self._found.append(chosen)

    def rank(self, scores: torch.Tensor, count: int, noise: Noise | None) -> None:
        """A node that goes on with the `count` largest of a row, the position's noise included where there is one; with none
        where the row holds what is no number. scores: float32 [V]."""
        if self._together:
            self._places.append((len(self._found), count))
            self._rows.append(scores.double() if noise is None else noise.added_to(scores))
            self._found.append([])
        else:
            self._found.append(_ranked(scores.cpu().numpy(), count) if noise is None else noise.ranked(scores, count))

    def found(self) -> Iterator[Ranked]:
        """One for each node; waits for the device, where there is one."""
        if self._rows:
            rows = torch.stack(self._rows)
            values, tokens = rows.topk(min(max(count for _, count in self._places), rows.shape[-1]))
            shares = (values - rows.logsumexp(-1, keepdim=True)).exp()
            # every token id is a float64, and one tensor is one wait
            for (place, count), (ids, of) in zip(self._places, torch.stack([tokens.double(), shares], 1).tolist(), strict=True):
                # what cannot be chosen has no share, and where there is no number no share is one
                self._found[place] = [(int(token), share) for token, share in zip(ids[:count], of, strict=False) if share > 0.0]
        return iter(self._found)


def chosen_shares(row: np.ndarray, tokens: Many[int], noise: tuple[int, int] | None) -> np.ndarray:
    """Shares of tokens in the softmax of what they were chosen by. row: float [V], the scores. noise: seed and position of that
    which was added to them; None for none."""
    # noise lifts some of those far below, too: where there are few tokens all of them count, as where they were ranked
    few = noise is not None and len(row) <= _FEW
    near = np.arange(len(row)) if few else np.union1d(np.flatnonzero(row >= row.max() - _FAR), tokens)
    chosen_by = row[near].astype(np.float64)
    if noise is not None:
        chosen_by += gumbel(*noise, near)
    return _shares(chosen_by)[np.searchsorted(near, tokens)]


def _ranked(row: np.ndarray, count: int) -> Ranked:
    """The `count` largest of a row, the first of equals first."""
    if not np.isfinite(row.max()):
        # no number, or none that the answer's grammar allows
        return []
    shares, found = _shares(row), []
    left = row if count == 1 else row.copy()
    for _ in range(min(count, len(row))):
        token = int(left.argmax())
        # what is no number is never above
        if not left[token] > -np.inf:
            break
        found.append((token, float(shares[token])))
        if count > 1:
            left[token] = -np.inf
    return found


def _shares(row: np.ndarray) -> np.ndarray:
    weights = np.exp(row - row.max())
    return weights / weights.sum()
