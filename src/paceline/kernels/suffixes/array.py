"""Sorted suffixes of a text that is done: built in place, searched by halving, and read as what follows a match.

Suffixes are compared by their first `SORTED_TO` tokens and then by place, for nobody looks further: a match and the continuation
behind it are shorter. That bounds the work on texts that repeat themselves, and needs no memory beside the order itself.

Source: Manber and Myers, Suffix arrays (1993); drafting from what follows all hits: He et al., REST (arXiv:2311.08252),
section 3.
"""

from __future__ import annotations

from paceline.kernels.lookups import Lookup

BORDER = -1
"""Ends every document; a match never holds it, and nothing behind it is read."""
SORTED_TO = 32
"""Tokens by which suffixes are compared."""
LONGEST_MATCH = 16
"""Tokens of the longest match that is looked for."""
ENOUGH = 16
"""Occurrences from which on a match needs no shorter one beside it."""
WAITING = 128
"""Parts that wait while others are sorted, at most: scratch of `SORTED_BETWEEN`."""

_TEXT = {"tokens": "int32[:]", "order": "int32[:]"}
COUNTED = Lookup("suffixes.order.counted", tokens="int32[:]", starts="int64[:]")
DEALT = Lookup("suffixes.order.dealt", tokens="int32[:]", first="int64", places="int64[:]", order="int32[:]")
SORTED_BETWEEN = Lookup("suffixes.order.sorted_between", **_TEXT, low="int64", high="int64", waiting="int64[:,:]")
IN_ORDER = Lookup("suffixes.order.in_order", **_TEXT, looked_at="int64[:]")
DRAFTED = Lookup(
    "suffixes.order.drafted",
    **_TEXT,
    text="int64[:]",
    **dict.fromkeys(("shortest", "hits", "nodes", "depth"), "int64"),
    floor="float64",
    **dict.fromkeys(("end", "vocab_size"), "int64"),
    trie="int32[:,:]",
    sums="float64[:]",
    path="int64[:]",
    chances="float64[:,:]",
    places="int64[:,:]",
    draft="int64[:,:]",
    held="float64[:]",
)
