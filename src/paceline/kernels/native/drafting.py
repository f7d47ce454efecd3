"""Drafting: a whole draft tree for every sequence of a batch in one call, without returning to Python in between.

Each level is a step of the model over the nodes that will have children, followed by a choice of each node's children
(`siblings`). A shape decides which nodes have children, or, without one, the model's confidences. A node is fed once, into its
own slot after the text, where its descendants find it. The resulting trees are those that `growth.Draft` would grow.
"""

from __future__ import annotations

import numpy as np

from paceline.kernels.native.judging import ends_text, reached
from paceline.kernels.native.layout import (
    CALL,
    CONFIDENCE,
    DRAFT,
    LEVEL,
    MOST_KEPT,
    NODE_FIELDS,
    NODE_NUMBERS,
    OWNER,
    PARENT,
    PLACE,
    REACH,
    SEGMENT,
    SHOWN,
    SPOT,
    TOKEN,
    WORTH,
)
from paceline.kernels.native.memory import barrier, carray, helper, pointer, run_part
from paceline.kernels.native.shaping import shaped
from paceline.kernels.native.siblings import siblings

_f = np.float32
_ASKED, _WILLING = -2, -3
"""SPOT of a node that will have children and was not fed yet; and of one that is a candidate for children."""


@helper
def _hang(job, owner, nodes, numbers, node, found, shares):
    """Append the chosen children of a node to the nodes."""
    slots = carray(pointer(owner.slots), 2 * job.places + 1 if job.beam == 0 else 0, np.int64)
    first = slots[nodes[PLACE, node]] if job.beam == 0 else 0
    for at in range(job.wide):
        if found[at] < 0:
            break
        size, level, confidence = owner.count, nodes[LEVEL, node], np.float64(shares[at])
        nodes[TOKEN, size], nodes[PARENT, size], nodes[LEVEL, size] = found[at], node, level + 1
        nodes[PLACE, size] = at if job.beam > 0 else slots[first + at]
        nodes[SPOT, size] = nodes[SHOWN, size] = -1
        numbers[CONFIDENCE, size], numbers[WORTH, size] = confidence, numbers[WORTH, node] * confidence
        numbers[REACH, size] = 1.0
        if owner.chances != 0:
            numbers[REACH, size] = reached(owner.chances, _f(owner.odds), numbers[REACH, node], level, shares[at])
        owner.count += 1


@helper
def _is_among_best(worths, size, node, limit):
    """Whether a node is one of the `limit` worthiest besides the root; in a tie, the older node ranks first."""
    before = 0
    for other in range(1, size):
        before += worths[other] > worths[node] or (worths[other] == worths[node] and other < node)
    return before < limit


@helper
def _asked_by_worth(nodes, worths, begin, size, beam, limit):
    """Mark the worthiest candidates for children as asked: as many as the beam is wide, and only those that fit in the budget."""
    for _ in range(beam):
        best = -1
        for node in range(begin, size):
            if nodes[SPOT, node] == _WILLING and (best < 0 or worths[node] > worths[best]):
                best = node
        if best < 0 or not _is_among_best(worths, size, best, limit):
            break
        nodes[SPOT, best] = _ASKED


@helper
def _ask(job, owner, nodes, numbers, least):
    """Mark the nodes of a new level that will have children."""
    begin, size = owner.fresh, owner.count
    if begin == size or nodes[LEVEL, begin] == owner.depth:
        return
    slots = carray(pointer(owner.slots), 2 * job.places + 1 if job.beam == 0 else 0, np.int64)
    for node in range(begin, size):
        place, level = nodes[PLACE, node], nodes[LEVEL, node]
        goes_on = numbers[CONFIDENCE, node] >= _f(owner.floor)
        goes_on = goes_on and not ends_text(nodes[TOKEN, node], owner.ends, owner.end_count)
        if owner.chances != 0:
            goes_on = goes_on and numbers[REACH, node] >= least[level - 1]
        if job.beam == 0:
            goes_on = goes_on and slots[place + 1] > slots[place]
        if goes_on:
            nodes[SPOT, node] = _WILLING if job.beam > 0 else _ASKED
    if job.beam > 0:
        _asked_by_worth(nodes, numbers[WORTH], begin, size, job.beam, owner.limit)


@helper
def _laid(job, sequences, nodes, families, asked, owners, segments, tokens, positions, wanted):
    """Lay out the step over the asked nodes; returns its numbers of rows and segments."""
    rows = number = 0
    for at in range(job.count):
        owner = sequences[at]
        first = owner.fed
        for node in range(owner.fresh, owner.count):
            if nodes[at, SPOT, node] != _ASKED:
                continue
            families[at, owner.fed] = nodes[at, SPOT, nodes[at, PARENT, node]]
            nodes[at, SPOT, node] = owner.fed
            tokens[rows], positions[rows] = nodes[at, TOKEN, node], owner.length - 1 + nodes[at, LEVEL, node]
            wanted[rows], asked[rows], owners[rows] = rows, node, at
            sequences[at].fed += 1
            rows += 1
        if owner.fed > first:
            segment = segments[number]
            segment.low, segment.rows = rows - (owner.fed - first), owner.fed - first
            segment.start, segment.chain = owner.length, 0
            segment.first, segment.family = first, at * job.most
            segment.keys, segment.values, segment.capacity = owner.keys, owner.values, owner.capacity
            number += 1
    return rows, number


@helper
def _path(nodes, node, path):
    """Write the tokens from below the root down to a node; returns their number."""
    length = nodes[LEVEL, node]
    for place in range(length - 1, -1, -1):
        path[place], node = nodes[TOKEN, node], nodes[PARENT, node]
    return length


def draft(thread, address):
    """One thread's part of a draft. address: of a DRAFT record."""
    job = carray(pointer(address), 1, DRAFT)[0]
    calls = carray(pointer(job.call), 1, CALL)
    call = calls[0]
    count, most, wide, places, threads = job.count, job.most, job.wide, job.places, call.threads
    counters = carray(pointer(call.scratch.counter), 2, np.int64)
    sequences = carray(pointer(job.sequences), count, OWNER)
    nodes = carray(pointer(job.nodes), (count, NODE_FIELDS, most), np.int64)
    numbers = carray(pointer(job.numbers), (count, NODE_NUMBERS, most), np.float64)
    families = carray(pointer(job.families), (count, most), np.int64)
    least = carray(pointer(job.least), (count, job.deepest), np.float32)
    streams = carray(pointer(job.streams), (count, places, wide), np.int64)
    room = count * most
    asked, owners = carray(pointer(job.asked), room, np.int64), carray(pointer(job.owners), room, np.int64)
    found = carray(pointer(job.found), (room, wide), np.int64)
    shares = carray(pointer(job.shares), (room, wide), np.float32)
    held = job.held + 4 * MOST_KEPT * thread
    values = carray(pointer(job.values), (threads, wide), np.float64)[thread]
    seeded = carray(pointer(job.seeded), (threads, wide), np.int64)[thread]
    path = carray(pointer(job.paths), (threads, job.deepest), np.int64)[thread]
    segments = carray(pointer(call.segments), count, SEGMENT)
    tokens = carray(pointer(call.tokens), room, np.int64)
    positions = carray(pointer(call.positions), room, np.int64)
    wanted = carray(pointer(call.wanted), room, np.int64)
    parents, met, shown = call.parents, 0, 0
    while calls[0].rows > 0:
        run_part(job.step, thread, job.call)
        level_rows = calls[0].wanted_count
        for row in range(thread, level_rows, threads):
            at, node = owners[row], asked[row]
            owner, place, size = sequences[at], nodes[at, PLACE, node], job.beam
            if job.beam == 0:
                slots = carray(pointer(owner.slots), 2 * places + 1, np.int64)
                size = slots[place + 1] - slots[place]
            line = call.logits + 4 * row * job.logits_width
            if owner.shaping != 0:
                length = _path(nodes[at], node, path)
                shaped(line, job.vocabulary, owner.shaping, path.ctypes.data, length)
            probs = job.probs + 4 * (shown + row) * job.size if job.probs != 0 else 0
            size = siblings(
                line, job.vocabulary, owner, nodes[at, LEVEL, node], job.choice, size, streams[at, place], held, values,
                found[row], seeded, shares[row], probs, job.size,
            )  # fmt: skip
            if size < wide:
                found[row, size] = -1
        met += 1
        barrier(counters[1:].ctypes.data, met, threads)
        if thread == 0:
            for at in range(count):
                sequences[at].fresh = sequences[at].count
            for row in range(level_rows):
                at, node = owners[row], asked[row]
                nodes[at, SHOWN, node] = shown + row
                _hang(job, sequences[at], nodes[at], numbers[at], node, found[row], shares[row])
            for at in range(count):
                _ask(job, sequences[at], nodes[at], numbers[at], least[at])
            rows, number = _laid(job, sequences, nodes, families, asked, owners, segments, tokens, positions, wanted)
            calls[0].rows = calls[0].wanted_count = rows
            calls[0].segment_count, calls[0].parents = number, job.families
            counters[0] = 0
        shown += level_rows
        met += 1
        barrier(counters[1:].ctypes.data, met, threads)
    if thread == 0:
        # restore the parents of ordinary steps
        calls[0].parents = parents
