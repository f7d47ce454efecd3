"""Drafting: a whole chain of draft tokens for every sequence of a batch in one call, without returning to Python in between.

Each level is a step of the model and a choice per sequence: the largest logit, or, at a temperature, the largest logit plus the
noise of a key (`paceline.noise`, the same hash): that of the position, so that draft and target choose with the same numbers, or
that of a stream of the draft's own.
"""

from __future__ import annotations

import math

import numpy as np

from paceline.kernels.native.arithmetic import exponential
from paceline.kernels.native.layout import CALL, COUPLED, DRAFT, LIKELIEST, SEGMENT
from paceline.kernels.native.memory import HELPER, barrier, bits_of, carray, float_of, floats, helper, pointer, run_part
from paceline.noise import LARGEST_GUMBEL, ORDINARY, ORDINARY_HASH
from paceline.stopping import CLASSES, DEEPEST, LIKELIEST as LIKELIEST_TO_COME_TRUE, shifted

import numba  # isort: skip  (after `vectors`)

_f = np.float32
_RARE_HASH, _ORDINARY, _LARGEST = np.int32(ORDINARY_HASH), _f(ORDINARY), _f(LARGEST_GUMBEL)
"""Only hashes from the first on give noise above the second; none gives more than the third."""

_shifted = helper(shifted)
"""The same, for compiled code."""


@helper
def _mixed(x):
    x = np.int32(np.int32(x ^ ((x >> np.int32(16)) & np.int32(0xFFFF))) * np.int32(0x7FEB352D))
    x = np.int32(np.int32(x ^ ((x >> np.int32(15)) & np.int32(0x1FFFF))) * np.int32(-2073254261))
    return np.int32(x ^ ((x >> np.int32(16)) & np.int32(0xFFFF)))


@helper
def _hashed(key, token):
    low, high = np.int32(key & 0xFFFFFFFF), np.int32(key >> 32)
    return _mixed(np.int32(_mixed(np.int32(np.int32(token) ^ low)) + high))


@helper
def _likeliest(row, count):
    """The first of the largest logits; -1 where none is a number."""
    logits, best, top = floats(row), -1, _f(-np.inf)
    for token in range(count):
        if logits[token] > top:
            best, top = token, logits[token]
    return best


@helper
def _drawn(row, count, temperature, key, above):
    """The token with the largest logit / temperature + noise, of those whose logit is above one that is not the largest.

    Logarithms are taken only where the noise can decide.
    """
    logits = floats(row)
    best, top = _likeliest(row, count), -np.inf
    if best < 0:
        return best
    # the likeliest first: it sets a value to beat that few can reach
    first = best
    for turn in range(-1, count):
        token = first if turn < 0 else turn
        if not logits[token] > above:
            continue
        score = logits[token] / temperature
        if not score + _LARGEST > top:
            continue
        word = _hashed(key, token)
        if word < _RARE_HASH and score + _ORDINARY < top:
            continue
        uniform = (np.float64(word) + (2147483648.0 + 0.5)) * 2.0**-32
        noised = np.float64(score) + np.float64(_f(-math.log(-math.log(uniform))))
        if noised > top:
            best, top = token, noised
    return best


_inline = numba.njit(**HELPER, inline="always")
_loops = numba.njit(**HELPER, fastmath={"reassoc", "contract", "nsz", "arcp"})


@_inline
def _logarithm(x):
    """log of a positive float32, to 2e-6."""
    bits = bits_of(x)
    mantissa = float_of(np.int32((bits & np.int32(0x7FFFFF)) | np.int32(0x3F800000)))
    s = (mantissa - _f(1)) / (mantissa + _f(1))
    square = s * s
    series = _f(1) + square * (_f(1 / 3) + square * (_f(1 / 5) + square * (_f(1 / 7) + square * _f(1 / 9))))
    return _f(np.int32(bits >> np.int32(23)) - np.int32(127)) * _f(0.69314718) + _f(2) * s * series


@_inline
def _weight_of_noise(word):
    """exp of the noise of a hash, -1 / log(uniform), from 31 of its bits; both ends of the range keep their precision."""
    high = np.int32(np.int32(word >> np.int32(1)) + np.int32(1 << 30))
    rest = (_f(np.int32(np.int32(0x7FFFFFFF) - high)) + _f(0.5)) * _f(2.0**-31)
    near_one = rest * (_f(1) + rest * (_f(1 / 2) + rest * (_f(1 / 3) + rest * _f(1 / 4))))
    return _f(1) / (near_one if rest < _f(0.03) else -_logarithm((_f(high) + _f(0.5)) * _f(2.0**-31)))


@_loops
def _larger(row, count, bound):
    """How many logits are larger than a bound."""
    logits, number = floats(row), 0
    for token in range(count):
        number += logits[token] > bound
    return number


@_loops
def _share_above(row, count, temperature, bound, top):
    """The share in the softmax of logits / temperature of those that are larger than a bound. top: the largest."""
    logits, scale, part, total = floats(row), _f(1) / temperature, _f(0), _f(0)
    for token in range(count):
        weight = exponential((logits[token] - top) * scale)
        total += weight
        part += weight if logits[token] > bound else _f(0)
    return part / total


@helper
def _drawn_within(row, count, temperature, key, top_k, top_p, min_p):
    """The same, of those that top-k, top-p and min-p leave. -1 where no logit is a number.

    No order is made for it: what is drawn is kept if few enough, or little enough, stands before it; else it is drawn anew from
    what does. top-p is taken of all tokens, where the target takes it of those that top-k leaves: a draft may differ.
    """
    logits = floats(row)
    best = _likeliest(row, count)
    if best < 0:
        return best
    top = logits[best]
    above = top + temperature * _f(math.log(min_p)) if min_p > 0 else _f(-np.inf)
    while True:
        token = _drawn(row, count, temperature, key, above)
        bound = logits[token]
        few = top_k == 0 or _larger(row, count, bound) < top_k
        # before the likeliest nothing stands, whatever numbers a share overflows to
        if token == best or (few and (top_p >= 1 or _share_above(row, count, temperature, bound, top) < top_p)):
            return token
        above = bound


@_loops
def _share(row, count, temperature, token):
    """The share of a token in the softmax of logits / temperature."""
    logits = floats(row)
    own, scale, total = logits[token], _f(1) / temperature, _f(0)
    for other in range(count):
        total += exponential((logits[other] - own) * scale)
    return _f(1) / total


@_loops
def _share_noised(row, count, temperature, key, token):
    """The share of a token in the softmax of logits / temperature + noise."""
    logits = floats(row)
    own, scale, total = logits[token], _f(1) / temperature, _f(0)
    for other in range(count):
        weight = exponential((logits[other] - own) * scale) * _weight_of_noise(_hashed(key, other))
        total += weight if other != token else _f(0)
    return _f(1) / (_f(1) + total / _weight_of_noise(_hashed(key, token)))


@helper
def _ends(token, ends, bounds, owner):
    """Whether a token ends the text of its sequence: nothing can come true behind it."""
    for place in range(bounds[owner], bounds[owner + 1]):  # noqa: SIM110  (compiled: no generators)
        if ends[place] == token:
            return True
    return False


@helper
def _goes_on(chances, odds, reaches, least, owner, place, level, confidence):
    """Whether a draft is likely enough to come true so far (`paceline.stopping`)."""
    if chances[owner] == 0:
        return True
    judged = min(confidence * _f(CLASSES), _f(CLASSES - 1)) if confidence < _f(1) else _f(CLASSES - 1)
    at = min(level, DEEPEST - 1) * CLASSES + int(max(judged, _f(0)))
    reaches[owner] *= min(_shifted(floats(chances[owner])[at], odds[owner]), LIKELIEST_TO_COME_TRUE)
    return reaches[owner] >= least[place]


@helper
def _to_next_level(
    call, segments, tokens, positions, parents, wanted, owners, chosen, confidences, floors, ends, bounds, chances, odds,
    reaches, least, depths, deepest, level,
):  # fmt: skip
    """Make the sequences that go on the next step's: one row each, the token just chosen, behind all that is fed."""
    following = 0
    for row in range(call.wanted_count):
        owner, place = owners[row], owners[row] * deepest + level
        token, confidence = chosen[place], confidences[place]
        last = token < 0 or level + 1 >= depths[owner] or confidence < floors[owner] or _ends(token, ends, bounds, owner)
        if last or not _goes_on(chances, odds, reaches, least, owner, place, level, confidence):
            depths[owner] = level + 1
            continue
        slot = segments[row].start + segments[row].rows
        segments[following].keys, segments[following].values = segments[row].keys, segments[row].values
        segments[following].capacity = segments[row].capacity
        segments[following].low, segments[following].start = following, slot
        segments[following].rows = segments[following].chain = 1
        tokens[following], positions[following], parents[following] = token, slot, -1
        wanted[following], owners[following] = following, owner
        following += 1
    return following


def draft(thread, address):
    """One thread's part of a draft. address: of a DRAFT record."""
    job = carray(pointer(address), 1, DRAFT)[0]
    calls = carray(pointer(job.call), 1, CALL)
    call = calls[0]
    count, deepest, threads = job.sequences, job.deepest, call.threads
    segments = carray(pointer(call.segments), count, SEGMENT)
    tokens = carray(pointer(call.tokens), call.rows, np.int64)
    positions = carray(pointer(call.positions), call.rows, np.int64)
    parents = carray(pointer(call.parents), call.rows, np.int64)
    wanted = carray(pointer(call.wanted), count, np.int64)
    counters = carray(pointer(call.scratch.counter), 2, np.int64)
    owners = carray(pointer(job.owners), count, np.int64)
    depths = carray(pointer(job.depths), count, np.int64)
    keys = carray(pointer(job.keys), count * deepest, np.int64)
    temperatures = carray(pointer(job.temperatures), count, np.float32)
    top_ks = carray(pointer(job.top_ks), count, np.int64)
    top_ps = carray(pointer(job.top_ps), count, np.float32)
    min_ps = carray(pointer(job.min_ps), count, np.float32)
    floors = carray(pointer(job.floors), count, np.float32)
    bounds = carray(pointer(job.end_bounds), count + 1, np.int64)
    ends = carray(pointer(job.ends), bounds[count], np.int64)
    chances = carray(pointer(job.chances), count, np.int64)
    odds = carray(pointer(job.odds), count, np.float32)
    reaches = carray(pointer(job.reaches), count, np.float32)
    least = carray(pointer(job.least), count * deepest, np.float32)
    chosen = carray(pointer(job.chosen), count * deepest, np.int64)
    confidences = carray(pointer(job.confidences), count * deepest, np.float32)
    met, level = 0, 0
    while calls[0].rows > 0:
        run_part(job.step, thread, job.call)
        for row in range(thread, calls[0].wanted_count, threads):
            owner = owners[row]
            line = call.logits + 4 * row * job.logits_width
            place = owner * deepest + level
            temperature, choice = temperatures[owner], job.choice
            if temperature == 0:
                temperature, choice = _f(1), LIKELIEST
            if choice == LIKELIEST:
                token = _likeliest(line, job.vocabulary)
            elif job.cuts == 0:
                token = _drawn(line, job.vocabulary, temperature, keys[place], _f(-np.inf))
            else:
                token = _drawn_within(line, job.vocabulary, temperature, keys[place], top_ks[owner], top_ps[owner], min_ps[owner])
            if token >= 0 and choice == COUPLED:
                confidences[place] = _share_noised(line, job.vocabulary, temperature, keys[place], token)
            elif token >= 0:
                confidences[place] = _share(line, job.vocabulary, temperature, token)
            chosen[place] = token
        met += 1
        barrier(counters[1:].ctypes.data, met, threads)
        if thread == 0:
            following = _to_next_level(
                calls[0], segments, tokens, positions, parents, wanted, owners, chosen, confidences, floors, ends, bounds,
                chances, odds, reaches, least, depths, deepest, level,
            )  # fmt: skip
            calls[0].rows = calls[0].segment_count = calls[0].wanted_count = following
            calls[0].logits += job.level_bytes
            counters[0] = 0
        met += 1
        barrier(counters[1:].ctypes.data, met, threads)
        level += 1
