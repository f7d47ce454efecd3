"""Position-keyed Gumbel noise: a pure function of (request seed, position, token id), the same on every device and batch.

`argmax(score + gumbel)` draws a token from the softmax of the scores. Because the noise belongs to the position and not to
the step, plain decoding and any speculation draw the very same token. The hash works in 32-bit integers, which wrap alike
everywhere; its Gumbel is computed in float64 and rounded to float32, so that a device's last bit of `log` does not show.
Source: counter-based generation after Salmon et al., Parallel Random Numbers (SC 2011); the mixing constants are those of
splitmix64 (Steele et al., 2014) for the key and of Wellons' two-round 32-bit hash for the token. ADR 0001 has the cost.
"""

from __future__ import annotations

import torch

LARGEST_GUMBEL = 22.88
"""No noise exceeds it: -log(-log(1 - 2**-33)) = 22.874."""

_WORD = 0xFFFFFFFF
_LONG = 0xFFFFFFFFFFFFFFFF
_PROBE = 64
_SMALL = 8192
"""Up to this many tokens all are noised: filtering them would cost more."""
_ORDINARY_HASH = 2**31 - 2**26
"""One hash in 64 reaches it."""
_ORDINARY = 4.16
"""Noise of any hash below it is smaller: -log(-log(1 - 1/64)) = 4.151."""


def _mix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _LONG
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _LONG
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _LONG
    return x ^ (x >> 31)


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


def _shift(x: torch.Tensor, bits: int) -> torch.Tensor:
    # int32 shifts are arithmetic in torch; the mask makes them logical
    return (x >> bits) & ((1 << (32 - bits)) - 1)


def _mix32(x: torch.Tensor) -> torch.Tensor:
    x = (x ^ _shift(x, 16)) * _signed(0x7FEB352D)
    x = (x ^ _shift(x, 15)) * _signed(0x846CA68B)
    return x ^ _shift(x, 16)


def key(seed: int, position: int) -> int:
    """The 64-bit key of one position of one request. position: index in the whole sequence, prompt included."""
    return _mix64((_mix64(seed & _LONG) + position) & _LONG)


def hashed(seed: int, position: int, tokens: torch.Tensor) -> torch.Tensor:
    """int32, the shape of `tokens` (int64 or int32 token ids): 32 uniformly mixed bits per token."""
    bits = key(seed, position)
    return _mix32(_mix32(tokens.to(torch.int32) ^ _signed(bits & _WORD)) + _signed(bits >> 32))


def gumbel(seed: int, position: int, tokens: torch.Tensor) -> torch.Tensor:
    """float32, the shape of `tokens`: standard Gumbel noise of these token ids at this position."""
    word = hashed(seed, position, tokens).to(torch.float64)
    uniform = (word + (2147483648.0 + 0.5)) * 2.0**-32
    return (-(-uniform.log()).log()).to(torch.float32)


def noised_best(scores: torch.Tensor, seed: int, position: int, count: int = 1) -> list[int]:
    """The `count` token ids with the largest score + noise, best first; fewer where fewer scores are finite.

    scores: float32 [V], log-probabilities up to a constant, -inf for what cannot be chosen.
    """
    tokens = _contenders(scores, seed, position, count)
    noised = scores[tokens].double() + gumbel(seed, position, tokens)
    best = noised.topk(min(count, tokens.shape[0]))
    return [t for t, v in zip(tokens[best.indices].tolist(), best.values.tolist(), strict=True) if v > -torch.inf]


def _contenders(scores: torch.Tensor, seed: int, position: int, count: int) -> torch.Tensor:
    """int64 [C]: every token that may be among the `count` best, usually few. The shortcut is exact, for noise is bounded.

    The best-scored tokens give a value to beat. A token whose score alone reaches it less `_ORDINARY` may win with ordinary
    noise; any other must have drawn one of the rare hashes above that. So logarithms are taken of few, hashes of those in range.
    """
    size = scores.shape[0]
    if size <= _SMALL:
        return torch.arange(size, device=scores.device)
    first = scores.topk(max(_PROBE, count)).indices
    noised = scores[first].double() + gumbel(seed, position, first)
    to_beat = float(noised.topk(count).values[-1])
    if to_beat == -torch.inf:
        return first
    in_range = scores >= to_beat - LARGEST_GUMBEL
    if int(in_range.sum()) > _SMALL:
        every = torch.arange(size, dtype=torch.int32, device=scores.device)
        in_range &= (hashed(seed, position, every) >= _ORDINARY_HASH) | (scores >= to_beat - _ORDINARY)
    return in_range.nonzero().flatten()
