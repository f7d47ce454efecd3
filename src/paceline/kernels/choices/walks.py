"""Walks: down the trees of a step as far as the target's own choices lead, in one call."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence as Many
from functools import cache
from typing import Any

import torch

from paceline.kernels.choices.columns import ACCEPTED, CHOSEN
from paceline.kernels.compiled import Kernel
from paceline.kernels.native.layout import MOST_KEPT
from paceline.noise import signed_seed
from paceline.sequence import Sequence
from paceline.tree import DraftTree

FOLLOWED = Kernel("choices.walking.followed", words=6)
Walk = tuple[tuple[int, ...], tuple[int, ...]]
"""The nodes that are accepted, and the tokens chosen: at the root, and at each of them."""


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
    """One walk per sequence; None where compiled code is in doubt or finds no number: the long way must tell. All must be
    `is_compiled`.

    logits: per sequence float32 [N, V], those of its tree's candidates first. Raises CompileError where nothing is compiled.
    """
    told, numbers, tokens, parents, begins = array("q"), array("d"), list[int](), list[int](), list[int]()
    cuts = False
    for sequence, tree, rows in zip(sequences, trees, logits, strict=True):
        params, begin = sequence.params, len(tokens)
        tokens += tree.tokens[: tree.candidates]
        parents += tree.parents[: tree.candidates]
        begins.append(begin)
        row, vocabulary = 4 * rows.stride(0), rows.shape[1]
        seed, position = signed_seed(sequence.seed), len(sequence.tokens)
        told.extend((rows.data_ptr(), row, vocabulary, begin, len(tokens), seed, position, params.top_k))
        numbers.extend((params.temperature, params.top_p, params.log_min_p))
        cuts = cuts or params.top_k > 0
    size = len(tokens)
    nodes, held = array("q", tokens + parents + parents + parents), array("i", bytes(4 * MOST_KEPT if cuts else 4))
    _followed()(len(begins), _address(told), _address(numbers), size, _address(nodes), _address(held))
    chosen, accepted = nodes[CHOSEN * size : (CHOSEN + 1) * size], nodes[ACCEPTED * size : (ACCEPTED + 1) * size]
    return [_walk(chosen, accepted, begin) for begin in begins]


def _address(numbers: array[Any]) -> int:
    return numbers.buffer_info()[0]


def _walk(chosen: array[int], accepted: array[int], begin: int) -> Walk | None:
    """The walk that is noted from a place on."""
    end = begin
    while accepted[end]:
        end += 1
    if chosen[end] < 0:
        return None
    return tuple(accepted[begin:end]), tuple(chosen[begin : end + 1])
