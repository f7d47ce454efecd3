"""Suffix array of a finished text: compiled functions that build it in place, search it, and draft what follows a match.

Suffixes are compared by their first `SORTED_TO` tokens and then by position, as a match and the continuation behind it are never
longer. That bounds the work on repetitive texts, and needs no memory besides the array itself.

Source: Manber and Myers, Suffix arrays (1993); drafting from what follows all hits: He et al., REST (arXiv:2311.08252),
section 3.
"""

from __future__ import annotations

from paceline.kernels.compiled_call import CompiledFunction

BORDER = -1
"""Ends every document; it is never part of a match, and no continuation extends past it."""
SORTED_TO = 32
"""Tokens by which suffixes are compared."""
LONGEST_MATCH = 16
"""Tokens of the longest match that is looked for."""
ENOUGH = 16
"""If the longest match has at least so many occurrences, no shorter match is mixed in."""
WAITING = 128
"""Most ranges on the stack of `SORT_RANGE`."""

_TEXT = {"tokens": "int32[:]", "order": "int32[:]"}
COUNT_TOKENS = CompiledFunction("suffixes.array_kernel.count_tokens", tokens="int32[:]", starts="int64[:]")
BUCKET_SUFFIXES = CompiledFunction(
    "suffixes.array_kernel.bucket_suffixes", tokens="int32[:]", first="int64", places="int64[:]", order="int32[:]"
)
SORT_RANGE = CompiledFunction("suffixes.array_kernel.sort_range", **_TEXT, low="int64", high="int64", waiting="int64[:,:]")
IS_SORTED = CompiledFunction("suffixes.array_kernel.is_sorted", **_TEXT, looked_at="int64[:]")
DRAFT = CompiledFunction(
    "suffixes.array_kernel.draft_tree",
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
