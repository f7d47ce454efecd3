"""Drafting: a whole chain of draft tokens for every sequence of a batch in one call, without returning to Python in between.

Each level is a step of the model and a choice per sequence (`choosing`): the largest logit, or, at a temperature, what the noise
of a key makes the largest: the key of the position, so that draft and target choose with the same numbers, or that of a stream of
the draft's own.
"""

from __future__ import annotations

import numpy as np

from paceline.kernels.native.choosing import chosen as chosen_of, key_of, likeliest
from paceline.kernels.native.judging import ends_text, reached, share, share_noised
from paceline.kernels.native.layout import CALL, COUPLED, DRAFT, LIKELIEST, MOST_KEPT, SEGMENT
from paceline.kernels.native.memory import barrier, carray, helper, pointer, run_part
from paceline.kernels.native.shaping import shaped

_f = np.float32


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
        last = token < 0 or level + 1 >= depths[owner] or confidence < floors[owner] or ends_text(token, ends, bounds, owner)
        if not last and chances[owner] != 0:
            reaches[owner] = reached(chances[owner], odds[owner], reaches[owner], level, confidence)
            last = reaches[owner] < least[place]
        if last:
            depths[owner] = level + 1
            continue
        slot = segments[row].start + segments[row].rows
        segments[following].keys, segments[following].values = segments[row].keys, segments[row].values
        segments[following].capacity = segments[row].capacity
        segments[following].low, segments[following].start = following, slot
        segments[following].rows = segments[following].chain = 1
        segments[following].first, segments[following].family = 0, following
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
    top_ps = carray(pointer(job.top_ps), count, np.float64)
    log_min_ps = carray(pointer(job.log_min_ps), count, np.float32)
    seeds = carray(pointer(job.seeds), count, np.int64)
    nexts = carray(pointer(job.positions), count, np.int64)
    shapes = carray(pointer(job.shapes), count, np.int64)
    held = job.held + 4 * MOST_KEPT * thread
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
            if shapes[owner] != 0:
                shaped(line, job.vocabulary, shapes[owner], job.chosen + 8 * owner * deepest, level)
            temperature, choice = temperatures[owner], job.choice
            if temperature == 0:
                temperature, choice = _f(1), LIKELIEST
            key = key_of(seeds[owner], nexts[owner] + level) if choice == COUPLED else keys[place]
            if choice == LIKELIEST:
                token = likeliest(line, job.vocabulary)
            else:
                token = chosen_of(
                    line, job.vocabulary, temperature, key, top_ks[owner], top_ps[owner], log_min_ps[owner], held
                )  # fmt: skip
            if token >= 0 and choice == COUPLED:
                confidences[place] = share_noised(line, job.vocabulary, temperature, key, token)
            elif token >= 0:
                confidences[place] = share(line, job.vocabulary, temperature, token)
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
