"""Layout: the records through which a model, its scratch and a step are handed to compiled code. Addresses are int64."""

from __future__ import annotations

import numpy as np

WORD = "l"
"""What Python calls the whole numbers of eight bytes that records are made of."""


def words(record: np.ndarray) -> memoryview[int]:
    """A record as whole numbers, each of which is read and written in a tenth of the time that numpy takes for a field."""
    return record.view(np.int64).data


def word_of(record: np.dtype, field: str) -> int:
    """Which of a record's whole numbers a field is."""
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
        ("laid", "i8"),  # what activations become
        ("paired", "i8"),  # whether panels belong together two by two: gates, and what they gate
        ("bias", "i8"),  # float32, or 0
    ],
    align=True,
)

FLOATS, GROUPED, BYTES, WORDS, HALVES, HALVES_AND_REST = range(6)
"""Float32; whole numbers of 16 bits, scaled by group of inputs; of 8 bits, scaled by row; of 16 bits, scaled by row; bfloat16;
bfloat16 and what they leave over.
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
"""WIDE_RMS: of all heads of a row together, each with weights of its own."""

QKV, OUT, GATE_UP, DOWN = range(4)
MATRICES = 4
"""A layer's matrices, in order; the output head follows those of all layers. Where a layer has experts, its router stands in the
place of GATE_UP and of DOWN, and the two matrices of each expert are among those of all experts."""
BEFORE_ATTENTION, AFTER_ATTENTION, BEFORE_MLP, AFTER_MLP, QUERY, KEY = range(6)
NORMS = 6
"""A layer's norms, in order; the final norm follows those of all layers, and after it one that does nothing."""

LAYER_RECORD = np.dtype(
    [
        ("window", "i8"),  # keys a row sees, itself included; 0: all
        ("cosine", "i8"),  # float32 [positions, rotary / 2]
        ("sine", "i8"),
        ("growth", "i8"),  # float32 [positions]: what queries are multiplied by, or 0
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
        ("vocabulary", "i8"),
        ("activation", "i8"),
        ("experts", "i8"),  # of a layer; 0: its MLP is whole
        ("chosen", "i8"),  # of these, by each row
        ("whole_weights", "i8"),  # whether the weights of those chosen add up to one
        ("embedding", "i8"),  # [V, hidden]
        ("embedding_kind", "i8"),  # of FLOAT_KINDS
        ("kv_bytes", "i8"),  # of a number of a key or value: 4 for float32, 2 for float16
        ("embedding_scale", "f4"),
        ("residual_scale", "f4"),  # what the residual stream is multiplied by to be the hidden state
        ("logit_cap", "f4"),
    ],
    align=True,
)
SILU, GELU_TANH = 0, 1
FLOAT_KINDS = ("fp32", "fp16", "bf16")
"""What numbers are that are read as they stand."""

SEGMENT = np.dtype(
    [
        ("low", "i8"),
        ("rows", "i8"),
        ("start", "i8"),
        ("chain", "i8"),
        ("keys", "i8"),  # [layers, key_heads, capacity / PANEL, head_size, PANEL]
        ("values", "i8"),  # [layers, key_heads, padded head_size / PANEL, capacity, PANEL]
        ("capacity", "i8"),
        ("first", "i8"),  # nodes of its tree that steps before have fed: row r is node first + r, in slot start + first + r
        ("family", "i8"),  # where the parent of node 0 stands among `parents`: at `low`, if all its nodes are rows of the step
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
        ("branch", "i8"),  # [T, hidden panels]: what a block adds, where a norm follows it, or an expert says
        ("mixture", "i8"),  # [T, hidden panels]: what experts say together
        ("routed", "i8"),  # [T, experts' panels]: how likely a router holds each
        ("weights", "i8"),  # [T, chosen]
        ("chosen", "i8"),  # int64 [T, chosen]: experts
        ("members", "i8"),  # int64 [T, chosen]: rows, expert by expert
        ("places", "i8"),  # int64 [T, chosen]: and where among those chosen
        ("begins", "i8"),  # int64 [experts + 2]: where each expert's begin
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
        # as long as it is drafted for beside the same others
        ("temperature", "f8"),  # 0: greedy
        ("top_k", "i8"),  # 0: all
        ("top_p", "f8"),  # 1: all
        ("log_min_p", "f8"),  # -inf: all
        ("seed", "i8"),  # of the noise of positions
        ("ends", "i8"),  # int64: tokens that end its text
        ("end_count", "i8"),
        # of one draft
        ("length", "i8"),  # tokens of the text
        ("slots", "i8"),  # int64 [2 P + 1]: where the children of every place begin, and they; or 0
        ("depth", "i8"),  # levels
        ("limit", "i8"),  # nodes besides the root, where there is no shape
        ("floor", "f8"),  # who is held less likely has no children
        ("chances", "i8"),  # float32 [DEEPEST, CLASSES]; 0 where nothing but the floor ends a draft
        ("odds", "f8"),  # times those of the chances
        ("shaping", "i8"),  # of what shapes its logits, 0 where nothing does
        ("keys", "i8"),  # of its slab
        ("values", "i8"),
        ("capacity", "i8"),
        # how far the draft is
        ("count", "i8"),  # nodes so far; the root at first
        ("fed", "i8"),  # nodes that were fed
        ("fresh", "i8"),  # where the nodes of the last level begin
    ],
    align=True,
)
"""A sequence of a draft. Numbers of eight bytes alone, as `struct` writes them."""

DRAFT = np.dtype(
    [
        ("call", "i8"),  # of the first step, which feeds what the caches lack
        ("step", "i8"),  # address of the step's part
        ("count", "i8"),  # S
        ("deepest", "i8"),  # D
        ("most", "i8"),  # M: nodes of a sequence, its root included
        ("places", "i8"),  # P: of the shape, the root's included
        ("wide", "i8"),  # K: children of a node, at most
        ("beam", "i8"),  # where there is no shape: nodes of a level that have children, and children of each; else 0
        ("vocabulary", "i8"),  # tokens that may be drafted
        ("logits_width", "i8"),
        ("choice", "i8"),  # of tokens where there is a temperature; greedy ones are LIKELIEST
        ("probs", "i8"),  # float32 [rows, V]: what tokens were drawn from, one level's behind the other's; or 0
        ("size", "i8"),  # V: of the target
        ("sequences", "i8"),  # OWNER [S]
        ("least", "i8"),  # float32 [S, D]: who is reached with less has no children
        ("streams", "i8"),  # int64 [S, P, K]: seeds of the draws of a place's children, one for each that is drawn
        ("nodes", "i8"),  # int64 [S, NODE_FIELDS, M]
        ("numbers", "i8"),  # float64 [S, NODE_NUMBERS, M]
        ("families", "i8"),  # int64 [S, M]: by node that was fed, its parent among those, -1 for the root
        ("asked", "i8"),  # int64, by row of a level: the node
        ("owners", "i8"),  # int64, by row of a level: the sequence
        ("found", "i8"),  # int64, by row of a level [K]: the tokens that are chosen, -1 behind the last
        ("shares", "i8"),  # float32, by row of a level [K]: and how likely each is held
        ("held", "i8"),  # int32 [threads, MOST_KEPT], scratch
        ("values", "i8"),  # float64 [threads, K], scratch
        ("seeded", "i8"),  # int64 [threads, K], scratch
        ("paths", "i8"),  # int64 [threads, D], scratch
    ],
    align=True,
)
TOKEN, PARENT, PLACE, LEVEL, SPOT, SHOWN, NODE_FIELDS = range(7)
"""Of a node: its token, its parent, its place in the shape, its level; the slot behind the text in which it was fed, less than 0
for none; the row of its logits, where they are shown."""
CONFIDENCE, REACH, WORTH, NODE_NUMBERS = range(4)
"""How likely a node is held; its path, as the budget's rule of stopping has it; and as the product of confidences."""
LIKELIEST, COUPLED, INDEPENDENT, REPLACED, PAIRED = range(5)
"""How the children of a node are chosen: the likeliest; with the noise of the position; or drawn: each from a stream of its own,
one after another without replacement, or one drawn and one the likeliest."""

MOST_KEPT = 256
"""The largest top-k that compiled code finds: so many logits are held in order while a row is walked."""

REPETITION, PRESENCE, FREQUENCY, UNTIL, BIASES, STOPS, SEEN, COUNTED, SHAPE_HEAD = range(9)
"""What shapes logits, float64: penalties; at so many tokens from here on stop ids are no longer banned; and how many tokens are
biased, stop ids, seen, and counted, which follow."""

POOL = np.dtype(
    [
        ("threads", "i8"),
        ("patience", "i8"),  # turns of idling before a thread sleeps
        ("part", "i8"),  # address of what to run
        ("record", "i8"),  # address of what to run it on
        ("mutex", "i8"),
        ("condition", "i8"),
        ("turn", "i8"),  # counts what was asked for
        ("finished", "i8"),  # workers that are through with it
        ("wall_clock", "i8"),  # the system's number of the clock that only goes forward
        ("own_clock", "i8"),  # and of that of a thread's time on a core
        ("times", "i8"),  # per thread int64 [TIMES]: nanoseconds on a core, of what was asked for last; room for a clock's time
        ("took", "i8"),  # nanoseconds, of what was asked for last
        ("lost", "i8"),  # of these, those that one of the threads had no core
    ],
    align=True,
)
TIMES = 8
"""A cache line: no thread writes where another one does."""

PACKING = np.dtype(
    [
        ("source", "i8"),  # the matrix, or some panels of it
        ("kind", "i8"),  # of FLOAT_KINDS
        ("outputs", "i8"),
        ("inputs", "i8"),
        ("stride", "i8"),  # bytes between outputs
        ("scratch", "i8"),  # float32 [threads, PANEL, padded]
        ("padded", "i8"),  # inputs
        ("group", "i8"),  # of these, so many share a scale, or all if there are none
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
