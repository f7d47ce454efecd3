"""Branching: a whole draft tree for every sequence of a batch in one call, without returning to Python in between.

Each level is a step of the model over the nodes that are to have children, and a choice of those for each: the best few of its
row, or draws. Who has children is settled by a shape, or, where there is none, by what the model finds likely. A node is fed
once, into a slot of its own behind the text, where its descendants find it. What is chosen is what `growth.Draft` would choose.
"""

from __future__ import annotations

import numpy as np

from paceline.kernels.native.best import largest, largest_noised
from paceline.kernels.native.choosing import drawn, key_of, likeliest
from paceline.kernels.native.judging import ends_text, reached, share, share_noised
from paceline.kernels.native.layout import (
    CALL,
    CONFIDENCE,
    COUPLED,
    INDEPENDENT,
    LEVEL,
    LIKELIEST,
    MOST_KEPT,
    NODE_FIELDS,
    NODE_NUMBERS,
    PAIRED,
    PARENT,
    PLACE,
    REACH,
    REPLACED,
    SEGMENT,
    SHOWN,
    SPOT,
    TOKEN,
    TREES,
    WORTH,
)
from paceline.kernels.native.memory import barrier, carray, floats, helper, pointer, run_part

_f = np.float32
_ASKED, _WILLING = -2, -3
"""The spot of a node that is to have children and was not fed yet; and of one that might."""


@helper
def _siblings(line, count, temperature, choice, wanted, keys, held, values, tokens, seeds):
    """Write children that are drawn, in the order of their draws; how many there are, none where one is in doubt."""
    best, lowest = likeliest(line, count), _f(-np.inf)
    if best < 0 or not abs(floats(line)[best] / temperature) < _f(np.inf):
        return 0
    for at in range(1 if choice == PAIRED else wanted):
        tokens[at] = drawn(line, count, temperature, keys[at], best, lowest, lowest)
        if tokens[at] < 0:
            return 0
    if choice == INDEPENDENT or wanted == 1:
        return wanted
    # as SpecHub couples them: the likeliest, or, where that was drawn, one drawn among the others
    first = tokens[0]
    tokens[1] = best
    if first == best:
        size = largest_noised(line, count, temperature, keys[1], 2, held, values, tokens, seeds)
        tokens[1] = tokens[0] if tokens[0] != best else tokens[1]
        tokens[0] = first
        return size
    return 2


@helper
def _chosen(line, count, temperature, choice, wanted, noise, keys, held, values, tokens, seeds, shares):
    """Write the children of one node and how likely each is held; how many there are. noise: the key of the position. keys: those
    of the node's own draws."""
    if choice == LIKELIEST:
        size = largest(line, count, wanted, held, tokens)
    elif choice in (COUPLED, REPLACED):
        key = noise if choice == COUPLED else keys[0]
        size = largest_noised(line, count, temperature, key, wanted, held, values, tokens, seeds)
    else:
        size = _siblings(line, count, temperature, choice, wanted, keys, held, values, tokens, seeds)
    if size == 0:
        return 0
    logits = floats(line)
    if choice == COUPLED:
        whole = share_noised(line, count, temperature, noise, tokens[0])
    else:
        whole = share(line, count, temperature, tokens[0])
    for at in range(size):
        if choice == COUPLED:
            above = values[at] - values[0]
        else:
            above = np.float64((logits[tokens[at]] - logits[tokens[0]]) / temperature)
        shares[at] = _f(whole * np.exp(above))
    return size


@helper
def _hung(job, nodes, numbers, node, size, slots, found, shares, chances, odds):
    """Hang below a node what was chosen for it, behind the `size` nodes that there are; how many there are then."""
    first = slots[nodes[PLACE, node]] if job.beam == 0 else 0
    for at in range(job.wide):
        if found[at] < 0:
            break
        level, confidence = nodes[LEVEL, node], np.float64(shares[at])
        nodes[TOKEN, size], nodes[PARENT, size], nodes[LEVEL, size] = found[at], node, level + 1
        nodes[PLACE, size] = at if job.beam > 0 else slots[first + at]
        nodes[SPOT, size] = nodes[SHOWN, size] = -1
        numbers[CONFIDENCE, size], numbers[WORTH, size] = confidence, numbers[WORTH, node] * confidence
        numbers[REACH, size] = reached(chances, odds, numbers[REACH, node], level, shares[at]) if chances != 0 else 1.0
        size += 1
    return size


@helper
def _is_among_best(worths, size, node, limit):
    """Whether a node is one of the `limit` worthiest besides the root; of equals the older is."""
    before = 0
    for other in range(1, size):
        before += worths[other] > worths[node] or (worths[other] == worths[node] and other < node)
    return before < limit


@helper
def _asked_by_worth(nodes, worths, begin, size, beam, limit):
    """Ask of the nodes that might have children the worthiest: as many as the beam is wide, of those that fit in the budget."""
    for _ in range(beam):
        best = -1
        for node in range(begin, size):
            if nodes[SPOT, node] == _WILLING and (best < 0 or worths[node] > worths[best]):
                best = node
        if best < 0 or not _is_among_best(worths, size, best, limit):
            break
        nodes[SPOT, best] = _ASKED


@helper
def _ask(job, owner, nodes, numbers, begin, size, slots, depth, limit, floor, ends, bounds, chances, least):
    """Mark those of a new level that are to have children."""
    if begin == size or nodes[LEVEL, begin] == depth:
        return
    for node in range(begin, size):
        place, level = nodes[PLACE, node], nodes[LEVEL, node]
        goes_on = numbers[CONFIDENCE, node] >= floor and not ends_text(nodes[TOKEN, node], ends, bounds, owner)
        if chances != 0:
            goes_on = goes_on and numbers[REACH, node] >= least[level - 1]
        if job.beam == 0:
            goes_on = goes_on and slots[place + 1] > slots[place]
        if goes_on:
            nodes[SPOT, node] = _WILLING if job.beam > 0 else _ASKED
    if job.beam > 0:
        _asked_by_worth(nodes, numbers[WORTH], begin, size, job.beam, limit)


@helper
def _laid(job, nodes, fresh, counts, fed, families, lengths, slabs, asked, owners, segments, tokens, positions, wanted):
    """Lay out the step over the nodes that are asked for; its rows and segments."""
    rows = number = 0
    for owner in range(job.sequences):
        first = fed[owner]
        for node in range(fresh[owner], counts[owner]):
            if nodes[owner, SPOT, node] != _ASKED:
                continue
            parent = nodes[owner, PARENT, node]
            families[owner, fed[owner]] = nodes[owner, SPOT, parent]
            nodes[owner, SPOT, node] = fed[owner]
            tokens[rows], positions[rows] = nodes[owner, TOKEN, node], lengths[owner] - 1 + nodes[owner, LEVEL, node]
            wanted[rows], asked[rows], owners[rows] = rows, node, owner
            fed[owner] += 1
            rows += 1
        if fed[owner] > first:
            segments[number].low, segments[number].rows = rows - (fed[owner] - first), fed[owner] - first
            segments[number].start, segments[number].chain = lengths[owner], 0
            segments[number].first, segments[number].family = first, owner * job.most
            segments[number].keys, segments[number].values = slabs[owner, 0], slabs[owner, 1]
            segments[number].capacity = slabs[owner, 2]
            number += 1
    return rows, number


def branch(thread, address):
    """One thread's part of a draft. address: of a TREES record."""
    job = carray(pointer(address), 1, TREES)[0]
    calls = carray(pointer(job.call), 1, CALL)
    call = calls[0]
    count, most, wide, places, threads = job.sequences, job.most, job.wide, job.places, call.threads
    counters = carray(pointer(call.scratch.counter), 2, np.int64)
    nodes = carray(pointer(job.nodes), (count, NODE_FIELDS, most), np.int64)
    numbers = carray(pointer(job.numbers), (count, NODE_NUMBERS, most), np.float64)
    counts = carray(pointer(job.counts), count, np.int64)
    fed = carray(pointer(job.fed), count, np.int64)
    fresh = carray(pointer(job.fresh), count, np.int64)
    slots = carray(pointer(job.slots), count, np.int64)
    depths = carray(pointer(job.depths), count, np.int64)
    limits = carray(pointer(job.limits), count, np.int64)
    lengths = carray(pointer(job.lengths), count, np.int64)
    floors = carray(pointer(job.floors), count, np.float32)
    bounds = carray(pointer(job.end_bounds), count + 1, np.int64)
    ends = carray(pointer(job.ends), bounds[count], np.int64)
    chances = carray(pointer(job.chances), count, np.int64)
    odds = carray(pointer(job.odds), count, np.float32)
    least = carray(pointer(job.least), (count, job.deepest), np.float32)
    temperatures = carray(pointer(job.temperatures), count, np.float32)
    seeds = carray(pointer(job.seeds), count, np.int64)
    slabs = carray(pointer(job.slabs), (count, 3), np.int64)
    families = carray(pointer(job.families), (count, most), np.int64)
    room = count * most
    asked, owners = carray(pointer(job.asked), room, np.int64), carray(pointer(job.owners), room, np.int64)
    found = carray(pointer(job.found), (room, wide), np.int64)
    shares = carray(pointer(job.shares), (room, wide), np.float32)
    held = job.held + 4 * MOST_KEPT * thread
    values = carray(pointer(job.values), (threads, wide), np.float64)[thread]
    seeded = carray(pointer(job.seeded), (threads, wide), np.int64)[thread]
    segments = carray(pointer(call.segments), count, SEGMENT)
    tokens = carray(pointer(call.tokens), room, np.int64)
    positions = carray(pointer(call.positions), room, np.int64)
    wanted = carray(pointer(call.wanted), room, np.int64)
    parents, met = call.parents, 0
    while calls[0].rows > 0:
        run_part(job.step, thread, job.call)
        for row in range(thread, calls[0].wanted_count, threads):
            owner, node, choice = owners[row], asked[row], job.choice
            temperature, place, size = temperatures[owner], nodes[owner, PLACE, node], job.beam
            if temperature == 0:
                temperature, choice = _f(1), LIKELIEST
            if job.beam == 0:
                of = carray(pointer(slots[owner]), 2 * places + 1, np.int64)
                size = of[place + 1] - of[place]
            noise = key_of(seeds[owner], lengths[owner] + nodes[owner, LEVEL, node])
            keys = carray(pointer(job.keys + 8 * (owner * places + place) * wide), wide, np.int64)
            line = calls[0].logits + 4 * row * job.logits_width
            size = _chosen(
                line, job.vocabulary, temperature, choice, size, noise, keys, held, values, found[row], seeded, shares[row]
            )  # fmt: skip
            if size < wide:
                found[row, size] = -1
        met += 1
        barrier(counters[1:].ctypes.data, met, threads)
        if thread == 0:
            level_rows = calls[0].wanted_count
            shown = (calls[0].logits - job.logits) // (4 * job.logits_width)
            for owner in range(count):
                fresh[owner] = counts[owner]
            for row in range(level_rows):
                owner, node = owners[row], asked[row]
                of = carray(pointer(slots[owner]), 2 * places + 1, np.int64)
                nodes[owner, SHOWN, node] = shown + row
                counts[owner] = _hung(
                    job, nodes[owner], numbers[owner], node, counts[owner], of, found[row], shares[row], chances[owner],
                    odds[owner],
                )  # fmt: skip
            for owner in range(count):
                of = carray(pointer(slots[owner]), 2 * places + 1, np.int64)
                _ask(
                    job, owner, nodes[owner], numbers[owner], fresh[owner], counts[owner], of, depths[owner], limits[owner],
                    floors[owner], ends, bounds, chances[owner], least[owner],
                )  # fmt: skip
            rows, number = _laid(
                job, nodes, fresh, counts, fed, families, lengths, slabs, asked, owners, segments, tokens, positions, wanted
            )  # fmt: skip
            calls[0].rows = calls[0].wanted_count = rows
            calls[0].segment_count, calls[0].parents = number, job.families
            if job.shown != 0:
                calls[0].logits += 4 * level_rows * job.logits_width
            counters[0] = 0
        met += 1
        barrier(counters[1:].ctypes.data, met, threads)
    if thread == 0:
        # where those of a step lie
        calls[0].parents = parents
