"""Layout: the records that pass a model, its scratch and a step to compiled code. Addresses are int64."""

from __future__ import annotations

import numpy as np

WORD = "l"
"""Typecode (`array`) of the 8-byte integers that records consist of."""


def words(record: np.ndarray) -> memoryview[int]:
    """A record as integers; reading or writing one takes a tenth of the time that numpy takes for a field."""
    return record.view(np.int64).data


def word_of(record: np.dtype, field: str) -> int:
    """Index of a field among its record's integers (`words`)."""
    return next(offset for name, (_, offset, *_) in (record.fields or {}).items() if name == field) // 8


MATRIX = np.dtype(
    [
        ("product", "i8"),  # address of the format's product
        ("weights", "i8"),
        ("panel_bytes", "i8"),
        ("panels", "i8"),
        ("inputs", "i8"),  # padded
        ("row_bytes", "i8"),  # of one row of activations, laid out
        ("highest", "i8"),  # rows of its tallest tile
        ("together", "i8"),  # panels that are read for one tile before the next tile, where there are several
        ("laid", "i8"),  # layout of activations, below
        ("paired", "i8"),  # whether panels form pairs: one of the gate and one of the up matrix
        ("bias", "i8"),  # float32, or 0
    ],
    align=True,
)

FLOATS, GROUPED_BYTES, GROUPED_WORDS, BYTES, WORDS, HALVES, HALVES_AND_REST = range(7)
"""Layouts of activations: float32; 8-bit and 16-bit integers with a scale per group of inputs; 8-bit and 16-bit integers with a
scale per row; bfloat16; bfloat16 and their remainders.
"""

NORM = np.dtype(
    [
        ("kind", "i8"),
        ("weight", "i8"),
        ("bias", "i8"),
        ("epsilon", "f4"),
    ],
    align=True,
)
NO_NORM, RMS, LAYER, WIDE_RMS = 0, 1, 2, 3
"""WIDE_RMS: over all heads of a row together, each with its own weights."""

QKV, OUT, GATE_UP, DOWN = range(4)
MATRICES = 4
"""A layer's matrices, in order; the output head follows those of all layers. If a layer has experts, its router is listed as both
GATE_UP and DOWN, and the two matrices of each expert are in the separate list of experts."""
BEFORE_ATTENTION, AFTER_ATTENTION, BEFORE_MLP, AFTER_MLP, QUERY, KEY = range(6)
NORMS = 6
"""A layer's norms, in order; the final norm follows those of all layers, and after it one that does nothing."""

LAYER_RECORD = np.dtype(
    [
        ("window", "i8"),  # keys a row sees, itself included; 0: all
        ("cosine", "i8"),  # float32 [positions, rotary / 2]
        ("sine", "i8"),
        ("growth", "i8"),  # float32 [positions]: factors of queries, or 0
        ("score_scale", "f4"),
        ("score_cap", "f4"),  # 0: none
    ],
    align=True,
)

MODEL = np.dtype(
    [
        ("layers", "i8"),
        ("hidden", "i8"),
        ("heads", "i8"),
        ("key_heads", "i8"),
        ("head_size", "i8"),
        ("rotary", "i8"),  # how much of a head is rotated
        ("inner", "i8"),
        ("activation", "i8"),
        ("experts", "i8"),  # per layer; 0: dense MLPs
        ("chosen", "i8"),  # experts used by each row
        ("whole_weights", "i8"),  # whether the weights of those chosen are normalised to sum to one
        ("embedding", "i8"),  # [V, hidden]
        ("embedding_kind", "i8"),  # of FLOAT_KINDS
        ("kv_bytes", "i8"),  # of a number of a key or value: 4 for float32, 2 for float16
        ("embedding_scale", "f4"),
        ("residual_scale", "f4"),  # the residual stream times this is the hidden state
        ("logit_cap", "f4"),
    ],
    align=True,
)
SILU, GELU_TANH = 0, 1
FLOAT_KINDS = ("fp32", "fp16", "bf16")
"""Float formats of embeddings and of matrices before packing."""

SEGMENT = np.dtype(
    [
        ("low", "i8"),
        ("rows", "i8"),
        ("start", "i8"),
        ("chain", "i8"),
        ("keys", "i8"),  # [layers, key_heads, capacity / PANEL, head_size, PANEL]
        ("values", "i8"),  # [layers, key_heads, padded head_size / PANEL, capacity, PANEL]
        ("capacity", "i8"),
        ("first", "i8"),  # nodes of its tree fed by earlier steps: row r is node first + r, in slot start + first + r
        ("family", "i8"),  # index in `parents` of node 0's parent: `low`, if all its nodes are rows of the step
    ],
    align=True,
)

SCRATCH = np.dtype(
    [
        ("counter", "i8"),  # int64 [2]: of the barriers of a step, and of a draft
        ("residual", "i8"),  # [T, hidden]
        ("projected", "i8"),  # [T, qkv panels]: for each key head its queries, its key and its value
        ("attended", "i8"),  # [T, heads * head_size]
        ("gated", "i8"),  # [T, gate and up panels]
        ("inner", "i8"),  # [T, inner]
        ("branch", "i8"),  # [T, hidden panels]: output of a block with a norm after it, or of an expert
        ("mixture", "i8"),  # [T, hidden panels]: weighted sum of experts' outputs
        ("routed", "i8"),  # [T, experts' panels]: router logits, then probabilities
        ("weights", "i8"),  # [T, chosen]
        ("chosen", "i8"),  # int64 [T, chosen]: experts
        ("members", "i8"),  # int64 [T, chosen]: rows, expert by expert
        ("places", "i8"),  # int64 [T, chosen]: indices in `chosen`, expert by expert
        ("begins", "i8"),  # int64 [experts + 2]: where each expert's members begin
        ("tiles", "i8"),  # per thread: activations laid out for tiles
        ("tiles_bytes", "i8"),
        ("row", "i8"),  # per thread: normalised rows of one tile
        ("row_bytes", "i8"),
        ("attention", "i8"),  # per thread: queries, scores, probabilities, gathered keys and values
        ("attention_bytes", "i8"),
        ("longest", "i8"),  # keys that the attention scratch holds, a multiple of PANEL
    ],
    align=True,
)

CALL = np.dtype(
    [
        ("threads", "i8"),
        ("product", "i8"),  # of the format of keys and values
        ("model", "i8"),  # addresses of records, with their counts
        ("layers", "i8"),
        ("norms", "i8"),
        ("matrices", "i8"),
        ("experts", "i8"),
        ("segments", "i8"),
        ("segment_count", "i8"),
        ("tokens", "i8"),  # int64 [T]
        ("positions", "i8"),  # int64 [T]
        ("parents", "i8"),  # int64 [T]
        ("rows", "i8"),
        ("wanted", "i8"),  # int64 [W]
        ("wanted_count", "i8"),
        ("logits", "i8"),  # float32 [W, head panels * PANEL]
        ("taps", "i8"),  # 0, or int64 [layers + 1]: addresses of float32 [W, hidden], 0 where none is wanted
        ("scratch", SCRATCH),
    ],
    align=True,
)

OWNER = np.dtype(
    [
        # fixed while the batch's sequences are the same
        ("temperature", "f8"),  # 0: greedy
        ("top_k", "i8"),  # 0: all
        ("top_p", "f8"),  # 1: all
        ("log_min_p", "f8"),  # -inf: all
        ("seed", "i8"),  # of the position-keyed noise
        ("ends", "i8"),  # int64: tokens that end its text
        ("end_count", "i8"),
        # of one draft
        ("length", "i8"),  # tokens of the text
        ("slots", "i8"),  # int64 [2 P + 1]: where the children of every place begin, then the children; or 0
        ("depth", "i8"),  # levels
        ("limit", "i8"),  # nodes besides the root, where there is no shape
        ("floor", "f8"),  # nodes with a lower confidence have no children
        ("chances", "i8"),  # float32 [DEEPEST, CLASSES]; 0 if only the floor ends a draft
        ("odds", "f8"),  # factor on the odds of `chances`
        ("shaping", "i8"),  # address of its shape (`choices.shapes`), 0 if its logits are not shaped
        ("keys", "i8"),  # of its slab
        ("values", "i8"),
        ("capacity", "i8"),
        # the draft's progress
        ("count", "i8"),  # nodes so far; the root at first
        ("fed", "i8"),  # nodes that were fed
        ("fresh", "i8"),  # where the nodes of the last level begin
    ],
    align=True,
)
"""A sequence of a draft. All fields have eight bytes, since `struct` writes them."""

DRAFT = np.dtype(
    [
        ("call", "i8"),  # address of the CALL of the first step, which feeds the tokens missing from the caches
        ("step", "i8"),  # address of the function that runs a thread's part of a step
        ("count", "i8"),  # S
        ("deepest", "i8"),  # D
        ("most", "i8"),  # M: nodes of a sequence, its root included
        ("places", "i8"),  # P: of the shape, the root's included
        ("wide", "i8"),  # K: most children of a node
        ("beam", "i8"),  # without a shape: nodes of a level that have children, and children of each; else 0
        ("vocabulary", "i8"),  # tokens that may be drafted
        ("logits_width", "i8"),
        ("choice", "i8"),  # how tokens are chosen at a temperature; greedy requests use LIKELIEST
        ("probs", "i8"),  # float32 [rows, V]: distributions that tokens were drawn from, level after level; or 0
        ("size", "i8"),  # V: of the target
        ("sequences", "i8"),  # OWNER [S]
        ("least", "i8"),  # float32 [S, D]: nodes with a lower REACH have no children
        ("streams", "i8"),  # int64 [S, P, K]: seeds of the draws of a place's children, one per draw
        ("nodes", "i8"),  # int64 [S, NODE_FIELDS, M]
        ("numbers", "i8"),  # float64 [S, NODE_NUMBERS, M]
        ("families", "i8"),  # int64 [S, M]: per fed node, its parent's index among the fed nodes, -1 for the root
        ("asked", "i8"),  # int64, per row of a level: the node
        ("owners", "i8"),  # int64, per row of a level: the sequence
        ("found", "i8"),  # int64, per row of a level [K]: the chosen tokens, -1 after the last
        ("shares", "i8"),  # float32, per row of a level [K]: the confidences of these
        ("held", "i8"),  # int32 [threads, MOST_KEPT], scratch
        ("values", "i8"),  # float64 [threads, K], scratch
        ("seeded", "i8"),  # int64 [threads, K], scratch
        ("paths", "i8"),  # int64 [threads, D], scratch
    ],
    align=True,
)
TOKEN, PARENT, PLACE, LEVEL, SPOT, SHOWN, NODE_FIELDS = range(7)
"""Of a node: its token, its parent, its place in the shape, its level; the slot, counted from the text's end, in which it was
fed, negative for none; the row of its children's distribution in `probs`."""
CONFIDENCE, REACH, WORTH, NODE_NUMBERS = range(4)
"""A node's confidence; its path's probability by the stopping rule (`Stopping.reach`); the product of its path's confidences."""
LIKELIEST, COUPLED, INDEPENDENT, REPLACED, PAIRED = range(5)
"""How the children of a node are chosen: the likeliest; with the position's noise; or drawn: each from its own stream, one after
another without replacement, or one drawn and one the likeliest."""

MOST_KEPT = 256
"""The largest top-k that compiled code supports: so many logits are kept in order while a row is scanned."""

REPETITION, PRESENCE, FREQUENCY, UNTIL, BIASES, STOPS, SEEN, COUNTED, SHAPE_HEAD = range(9)
"""Indices of a shape, float64: penalties; after how many more tokens stop ids are no longer banned; and the numbers of biased
tokens, stop ids, seen tokens and counted tokens, which follow."""

POOL = np.dtype(
    [
        ("threads", "i8"),
        ("patience", "i8"),  # turns of idling before a thread sleeps
        ("part", "i8"),  # address of what to run
        ("record", "i8"),  # address of what to run it on
        ("mutex", "i8"),
        ("condition", "i8"),
        ("turn", "i8"),  # number of runs requested
        ("finished", "i8"),  # workers that have finished the latest run
        ("wall_clock", "i8"),  # system id of the monotonic clock
        ("own_clock", "i8"),  # system id of the clock of a thread's CPU time
        ("times", "i8"),  # per thread int64 [TIMES]: CPU nanoseconds of the latest run; then room for a clock's reading
        ("took", "i8"),  # nanoseconds of the latest run
        ("lost", "i8"),  # nanoseconds of it in which the thread with the least CPU time had no core
    ],
    align=True,
)
TIMES = 8
"""int64 numbers per cache line, so that no two threads write to one line."""

PACKING = np.dtype(
    [
        ("source", "i8"),  # the matrix, or some panels of it
        ("kind", "i8"),  # of FLOAT_KINDS
        ("outputs", "i8"),
        ("inputs", "i8"),
        ("stride", "i8"),  # bytes between outputs
        ("scratch", "i8"),  # float32 [threads, PANEL, padded]
        ("padded", "i8"),  # inputs
        ("group", "i8"),  # inputs that share a scale; all inputs if there are no scales
        ("group_bytes", "i8"),
        ("target", "i8"),
        ("panels", "i8"),
        ("panel_bytes", "i8"),
        ("threads", "i8"),
    ],
    align=True,
)

READING = np.dtype(
    [
        ("memory", "i8"),  # address: 8 streams to a thread
        ("words", "i8"),  # int64 numbers to a stream
        ("found", "i8"),  # int64 [threads]: exclusive or of what each has read
    ],
    align=True,
)

TOGETHER = np.dtype(
    [
        ("product", "i8"),
        ("rows", "i8"),
        ("activations", "i8"),
        ("weights", "i8"),
        ("panel_bytes", "i8"),
        ("panels", "i8"),
        ("inputs", "i8"),
        ("outputs", "i8"),  # float32 [threads, rows, panels * PANEL]
        ("turns", "i8"),  # products of each thread
        ("threads", "i8"),
        ("counter", "i8"),
        ("meetings", "i8"),  # of all threads
    ],
    align=True,
)
