"""Walks: down the trees of a step as far as the target's own choices lead, in one call."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence as Many
from functools import cache
from typing import Any

import torch

from paceline.kernels.choices.columns import ACCEPTED, CHOSEN, NUMBERS
from paceline.kernels.compiled import Kernel
from paceline.kernels.native.layout import MOST_KEPT
from paceline.noise import signed_seed
from paceline.sequence import Sequence
from paceline.tree import DraftTree

FOLLOWED = Kernel("choices.walking.followed", words=6)
Walk = tuple[tuple[int, ...], tuple[int, ...]]
"""The nodes that are accepted, and the tokens chosen: at the root, and at each of them."""
_NOWHERE = -1


@cache
def _followed() -> Any:
    # what is called with is each call's own, for several threads may walk at a time
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * FOLLOWED.words)(FOLLOWED.address)


def is_compiled(sequence: Sequence, logits: torch.Tensor) -> bool:
    """Whether compiled code can choose the sequence's tokens: where logits lie in memory row by row, and nothing shapes them.

    logits: [N, V].
    """
    params = sequence.params
    return (
        logits.is_cpu
        and logits.dtype is torch.float32
        and logits.stride(1) == 1
        and not params.shapes_logits
        and (params.top_k <= MOST_KEPT or params.top_k >= logits.shape[1])
    )


def walked(sequences: Many[Sequence], trees: Many[DraftTree], logits: Many[torch.Tensor]) -> list[Walk | None]:
    """One walk per sequence; None where the long way must tell: what is not `is_compiled`, and where compiled code is in doubt or
    finds no number.

    logits: per sequence [N, V], those of its tree's candidates first. Raises CompileError where nothing is compiled.
    """
    told, numbers, tokens, parents, begins = list[int](), list[float](), list[int](), list[int](), list[int]()
    kept = 1
    for sequence, tree, rows in zip(sequences, trees, logits, strict=True):
        if not is_compiled(sequence, rows):
            begins.append(_NOWHERE)
            continue
        params, begin, count = sequence.params, len(tokens), tree.candidates
        begins.append(begin)
        tokens += tree.tokens[:count]
        parents += tree.parents[:count]
        told += (
            rows.data_ptr(), 4 * rows.stride(0), rows.shape[1], begin, begin + count,
            signed_seed(sequence.seed), len(sequence.tokens), params.top_k,
        )  # fmt: skip
        numbers += (params.temperature, params.top_p, params.log_min_p)
        kept = MOST_KEPT if params.top_k else kept
    if not tokens:
        return [None] * len(begins)
    size, nodes = len(tokens), array("q", tokens + parents + parents + parents)
    arrays = array("q", told), array("d", numbers), nodes, array("i", bytes(4 * kept))
    sequences_at, numbers_at, nodes_at, held_at = [one.buffer_info()[0] for one in arrays]
    _followed()(len(numbers) // NUMBERS, sequences_at, numbers_at, size, nodes_at, held_at)
    chosen, accepted = nodes[CHOSEN * size : (CHOSEN + 1) * size], nodes[ACCEPTED * size :]
    return [_walk(chosen, accepted, begin) for begin in begins]


def _walk(chosen: array[int], accepted: array[int], begin: int) -> Walk | None:
    """The walk that is noted from a place on."""
    if begin == _NOWHERE:
        return None
    end = begin
    while accepted[end]:
        end += 1
    return (tuple(accepted[begin:end]), tuple(chosen[begin : end + 1])) if chosen[end] >= 0 else None
