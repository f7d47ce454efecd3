"""Position-keyed Gumbel noise: a pure function of (request seed, position, token id), the same on every device and batch.

`argmax(score + gumbel)` draws a token from the softmax of the scores. Because the noise belongs to the position and not to
the step, plain decoding and any speculation draw the very same token. The hash works in 32-bit integers, which wrap alike
everywhere; its Gumbel is computed in float64 and rounded to float32, so that a device's last bit of `log` does not show.
Source: counter-based generation after Salmon et al., Parallel Random Numbers (SC 2011); the mixing constants are those of
splitmix64 (Steele et al., 2014) for the key and of Wellons' two-round 32-bit hash for the token. ADR 0001 has the cost.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import TypeVar

import numpy as np
import torch

LARGEST_GUMBEL = 22.88
"""No noise exceeds it: -log(-log(1 - 2**-33)) = 22.874."""

_WORD = 0xFFFFFFFF
_LONG = 0xFFFFFFFFFFFFFFFF
_PROBES = 64
SMALL = 8192
"""Up to this many tokens all are noised: filtering them would cost more."""
_TILE = 16384
"""Tokens hashed at once: what stays in the innermost cache costs half."""
ORDINARY_HASH = 2**31 - 2**26
"""One hash in 64 reaches it."""
ORDINARY = 4.16
"""Noise of any hash below it is smaller: -log(-log(1 - 1/64)) = 4.151."""

Array = TypeVar("Array", torch.Tensor, np.ndarray)
"""The hash is written once for both: on a CPU an operation on a small numpy array costs a quarter of torch's."""


def _mix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _LONG
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _LONG
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _LONG
    return x ^ (x >> 31)


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


def _shift(x: Array, bits: int) -> Array:
    # shifts of signed integers are arithmetic; the mask makes them logical
    return (x >> bits) & ((1 << (32 - bits)) - 1)


def _mix32(x: Array) -> Array:
    x = (x ^ _shift(x, 16)) * _signed(0x7FEB352D)
    x = (x ^ _shift(x, 15)) * _signed(0x846CA68B)
    return x ^ _shift(x, 16)


def key(seed: int, position: int) -> int:
    """The 64-bit key of one position of one request. position: index in the whole sequence, prompt included."""
    return _mix64((_mix64(seed & _LONG) + position) & _LONG)


def signed_seed(seed: int) -> int:
    """The low 64 bits of a seed as a signed integer, the form that compiled code takes."""
    word = seed & _LONG
    return word - (1 << 64) if word >> 63 else word


@lru_cache(maxsize=8192)
def stream(seed: int, name: str, node: int = 0, trial: int = 0) -> int:
    """The seed of a separate stream, independent of `seed` and of every other stream.

    Draws that are not the target's choice use such streams: drafts, acceptance tests and residuals, each at the position of
    the root and at its node. So no draft depends on the noise with which it is judged.
    """
    mixed = _mix64(seed & _LONG)
    text = name.encode()
    # the whole name, eight bytes a word: two models whose long paths begin alike are still two sources
    words = [int.from_bytes(text[at : at + 8], "little") for at in range(0, len(text), 8)]
    for word in (len(text), *words, node, trial):
        mixed = _mix64(mixed ^ _mix64(word & _LONG))
    return mixed


def told_apart(*texts: Iterable[int]) -> int:
    """A hash below 2^63 of these texts, given as token ids."""
    told = blake2b(digest_size=8)
    for text in texts:
        ids = np.fromiter(text, "<i8")
        told.update(len(ids).to_bytes(8, "little"))
        told.update(ids.tobytes())
    return int.from_bytes(told.digest(), "little") >> 1


def uniform(seed: int, position: int) -> float:
    """A number between 0 and 1, neither included, from 52 of the bits of `key`."""
    return ((key(seed, position) >> 12) + 0.5) * 2.0**-52


def hashed(seed: int, position: int, tokens: Array) -> Array:
    """int32, the shape of `tokens` (int64 or int32 token ids): 32 uniformly mixed bits per token."""
    bits = key(seed, position)
    ids = tokens.to(torch.int32) if isinstance(tokens, torch.Tensor) else tokens.astype(np.int32, copy=False)
    return _mix32(_mix32(ids ^ _signed(bits & _WORD)) + _signed(bits >> 32))


def gumbel(seed: int, position: int, tokens: Array) -> Array:
    """float32, the shape of `tokens`: standard Gumbel noise of these token ids at this position."""
    return _gumbel_of(hashed(seed, position, tokens))


def _gumbel_of(words: Array) -> Array:
    if isinstance(words, torch.Tensor):
        uniform = (words.to(torch.float64) + (2147483648.0 + 0.5)) * 2.0**-32
        return (-(-uniform.log()).log()).to(torch.float32)
    uniform = (words + (2147483648.0 + 0.5)) * 2.0**-32
    return (-np.log(-np.log(uniform))).astype(np.float32)


def noised_best(scores: torch.Tensor, seed: int, position: int, count: int = 1) -> list[int]:
    """The `count` token ids with the largest score + noise, best first; fewer where fewer scores are finite, none where one is
    NaN.

    scores: float32 [V], log-probabilities up to a constant, -inf for what cannot be chosen.
    """
    if scores.device.type != "cpu":
        # a GPU adds noise to a whole vocabulary sooner than it reports which tokens need it
        noised = scores.double() + gumbel(seed, position, torch.arange(scores.shape[0], device=scores.device))
        best = noised.topk(min(count, scores.shape[0]))
        tokens, values = best.indices.tolist(), best.values.tolist()
        if not values[0] > -torch.inf:
            # NaN comes first
            return []
        return [token for token, value in zip(tokens, values, strict=True) if value > -torch.inf]
    row = scores.numpy()
    if not row.max() > -np.inf:
        return []
    tokens = np.arange(len(row), dtype=np.int32) if len(row) <= SMALL else _contenders(row, seed, position, count)
    noised = row[tokens] + gumbel(seed, position, tokens).astype(np.float64)
    places = [noised.argmax()] if count == 1 else torch.from_numpy(noised).topk(min(count, len(noised))).indices.tolist()
    return [int(tokens[place]) for place in places if noised[place] > -np.inf]


def _contenders(scores: np.ndarray, seed: int, position: int, count: int) -> np.ndarray:
    """int [C]: every token that may be among the `count` best, usually few. The shortcut is exact, for noise is bounded.

    The best-scored tokens of equal stretches of the vocabulary give a value to beat. A token whose score is at most `ORDINARY`
    below it may win with ordinary noise; any other needs one of the rare hashes from `ORDINARY_HASH` on. So logarithms are
    computed for few tokens, and hashes for those in range.
    """
    probes = max(_PROBES, count)
    width = len(scores) // probes
    first = scores[: width * probes].reshape(probes, width).argmax(1) + np.arange(probes) * width
    noised = np.sort(scores[first] + gumbel(seed, position, first).astype(np.float64))
    to_beat = float(noised[-count])
    if to_beat == -np.inf:
        return np.flatnonzero(scores > -np.inf)
    reach, ordinary = _under(to_beat - LARGEST_GUMBEL), _under(to_beat - ORDINARY)
    found = []
    for low in range(0, len(scores), _TILE):
        tile = scores[low : low + _TILE]
        within = tile >= reach
        near = np.count_nonzero(within)
        if near * 4 < len(tile):
            ids = np.flatnonzero(within)
            tile = tile[ids]
        else:
            # tokens out of range cannot win, so including them does no harm
            ids = np.arange(len(tile), dtype=np.int32)
        kept = (hashed(seed, position, ids + low) >= ORDINARY_HASH) | (tile >= ordinary)
        found.append(ids[kept] + low)
    return np.concatenate(found)


def _under(bound: float) -> np.float32:
    """A float32 surely not above `bound`: far from zero, rounding could raise a bound above a score that reaches it."""
    return np.nextafter(np.float32(bound), np.float32(-np.inf))
