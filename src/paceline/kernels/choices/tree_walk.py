"""Tree walk: verifies the draft trees of a step by the target's own choices, in one compiled call; and chooses at single rows."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Many

import torch

from paceline.kernels.choices.columns import ACCEPTED, CHOSEN, NUMBERS
from paceline.kernels.choices.shapes import shape_of
from paceline.kernels.compiled import Kernel, available
from paceline.kernels.native.layout import MOST_KEPT
from paceline.noise import signed_seed
from paceline.sampling import Context, choose, shaped
from paceline.sequence import Sequence
from paceline.tree import DraftTree

WALK_TREES = Kernel("choices.tree_walk_kernel.walk_trees", words=7)
Walk = tuple[tuple[int, ...], tuple[int, ...]]
"""Accepted nodes, from the root down; and the tokens chosen at the root and at each of them, one more than nodes."""
_ROOT, _NO_PARENT, _NOTHING = (0,), (-1,), -1


def is_compiled(sequence: Sequence, logits: torch.Tensor) -> bool:
    """Whether compiled code can walk the tree of a sequence: `is_choosable`, and without a grammar. logits: [N, V]."""
    return sequence.params.grammar is None and is_choosable(sequence, logits)


def is_choosable(sequence: Sequence, logits: torch.Tensor) -> bool:
    """Whether compiled code can choose tokens for a sequence, at rows to which its grammar, if any, was already applied.

    The logits, [N, V], must be float32 in host memory with contiguous rows, and top-k at most MOST_KEPT or without effect.
    """
    params = sequence.params
    return (
        logits.is_cpu
        and logits.dtype is torch.float32
        and logits.stride(1) == 1
        and (params.top_k <= MOST_KEPT or params.top_k >= logits.shape[1])
    )


def walked(sequences: Many[Sequence], trees: Many[DraftTree], logits: Many[torch.Tensor]) -> list[Walk | None]:
    """One walk per sequence. None where the caller must choose in another way: `is_compiled` is false, a choice is too close to
    be certain in compiled code, a row contains NaN, or the kernel cannot be compiled.

    logits: per sequence float32 [N, V], the rows of its tree's candidates first.
    """
    inputs, begins = _WalkInputs(), list[int | None]()
    for sequence, tree, rows in zip(sequences, trees, logits, strict=True):
        if not is_compiled(sequence, rows):
            begins.append(None)
            continue
        count = tree.candidates
        begins.append(inputs.add(sequence, len(sequence.tokens), rows, tree.tokens[:count], tree.parents[:count]))
    chosen, accepted = inputs.run()
    return [None if begin is None else _walk(chosen, accepted, begin) for begin in begins]


def chosen(logits: torch.Tensor, contexts: Many[Context]) -> list[int]:
    """One token per row, as `sampling.choose`, which is called where compiled code declines. logits: [N, V]."""
    inputs, roots, rows = _WalkInputs(), range(len(contexts)), list[torch.Tensor]()
    own = [at for at in roots if is_choosable(contexts[at].sequence, logits)]
    for at in own:
        # a context's ancestors are not part of this call's trees, so compiled code does not know them
        rows.append(shaped(logits[at], contexts[at])[None])
        inputs.add(contexts[at].sequence, contexts[at].position, rows[-1], _ROOT, _NO_PARENT, shapes=False)
    tokens = dict(zip(own, inputs.run()[0], strict=True))
    left = [at for at in roots if tokens.get(at, _NOTHING) < 0]
    if len(left) == len(contexts):
        return choose(logits, contexts)
    if left:
        tokens.update(zip(left, choose(logits[left], [contexts[at] for at in left]), strict=True))
    return [tokens[at] for at in roots]


class _WalkInputs:
    """The arguments of `walk_trees`: a tree for each of several sequences."""

    def __init__(self) -> None:
        self._sequences, self._numbers = list[int](), list[float]()
        self._tokens, self._parents = list[int](), list[int]()
        self._shapes: list[array[float]] = []
        self._held = self._copied = 1

    def add(
        self,
        sequence: Sequence,
        position: int,
        rows: torch.Tensor,
        tokens: Many[int],
        parents: Many[int],
        *,
        shapes: bool = True,
    ) -> int:
        """Add a tree. Returns the index of its root among the nodes of all trees.

        position: of the token that is chosen at the root. rows: float32 [N, V], kept alive by the caller. shapes: whether biases
        and penalties are still to be applied to them.
        """
        params, begin = sequence.params, len(self._tokens)
        self._tokens += tokens
        self._parents += parents
        row, vocabulary, end = 4 * rows.stride(0), rows.shape[1], len(self._tokens)
        self._sequences += (
            rows.data_ptr(), row, vocabulary, begin, end, signed_seed(sequence.seed), position, params.top_k,
            self._shape(sequence, vocabulary) if shapes and sequence.shapes_logits else 0,
        )  # fmt: skip
        self._numbers += (params.temperature, params.top_p, params.log_min_p)
        if params.top_k:
            self._held = MOST_KEPT
        return begin

    def _shape(self, sequence: Sequence, vocabulary: int) -> int:
        self._shapes.append(shape_of(sequence))
        self._copied = max(self._copied, vocabulary)
        return self._shapes[-1].buffer_info()[0]

    def run(self) -> tuple[array[int], array[int]]:
        """Walk all trees. Returns int64 [size] twice, in the order of each walk from its root on: the tokens chosen, and the
        nodes accepted with them, 0 where a walk ends. Without compiled code, all tokens are -1."""
        size = len(self._tokens)
        if not size or not available(WALK_TREES):
            return array("q", [_NOTHING]) * size, array("q", [0]) * size
        nodes = array("q", self._tokens + 3 * self._parents)
        arrays = array("q", self._sequences), array("d", self._numbers), nodes, array("i", bytes(4 * self._held))
        sequences_at, numbers_at, nodes_at, held_at = [one.buffer_info()[0] for one in arrays]
        copy = torch.empty(self._copied, dtype=torch.float32)
        # all arguments belong to this call, as several threads may walk at a time
        WALK_TREES.function(
            len(self._numbers) // NUMBERS, sequences_at, numbers_at, size, nodes_at, held_at, copy.data_ptr()
        )  # fmt: skip
        return nodes[CHOSEN * size : (CHOSEN + 1) * size], nodes[ACCEPTED * size :]


def _walk(chosen: array[int], accepted: array[int], begin: int) -> Walk | None:
    """The walk whose root is at `begin`; None where a token on it could not be chosen."""
    end = begin
    while accepted[end]:
        end += 1
    return (tuple(accepted[begin:end]), tuple(chosen[begin : end + 1])) if chosen[end] >= 0 else None
