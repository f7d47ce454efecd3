"""Columns: what compiled code is told of sequences and of the nodes of their trees, and where it writes what it found."""

ROWS, ROW_BYTES, VOCABULARY, BEGIN, END, SEED, POSITION, TOP_K, SHAPE, COLUMNS = range(10)
"""Of a sequence, int64: the address of its tree's first row of logits, float32; from one row to the next; tokens to a row; where
its nodes begin and end among those of all; the noise's seed; the position of what the root chooses; top-k; the
address of what shapes its logits, 0 where nothing does."""

TEMPERATURE, TOP_P, LOG_MIN_P, NUMBERS = range(4)
"""Of a sequence, float64."""

TOKEN, PARENT, CHOSEN, ACCEPTED, COLUMNS_OF_NODES = range(5)
"""A row of int64 for all nodes each: the tokens they carry; the nodes they follow, counted within their tree; and, in the order
of the walk, what was chosen and the node that was accepted with it, 0 where the walk ends."""
