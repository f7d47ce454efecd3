"""Columns: layout of the arrays that describe sequences and tree nodes to compiled code, and take its results."""

ROWS, ROW_BYTES, VOCABULARY, BEGIN, END, SEED, POSITION, TOP_K, SHAPE, COLUMNS = range(10)
"""Of a sequence, int64: the address of its tree's first row of logits, float32; bytes from one row to the next; tokens per row;
begin and end of its nodes among those of all trees; the seed of its noise; the position of the token chosen at the root; top-k;
the address of its shape (`shapes`), 0 if its logits are not shaped."""

TEMPERATURE, TOP_P, LOG_MIN_P, NUMBERS = range(4)
"""Of a sequence, float64."""

TOKEN, PARENT, CHOSEN, ACCEPTED, COLUMNS_OF_NODES = range(5)
"""Rows of int64 over the nodes of all trees: their tokens; their parents, as indices within their tree; and, in the order of the
walk, the chosen token and the node accepted with it, 0 where the walk ends."""
