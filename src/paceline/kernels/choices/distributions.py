"""Distributions: sampling probabilities of rows of logits after every transform, for verifiers that compare target and draft."""

from __future__ import annotations

from array import array

import numpy as np
import torch

from paceline.kernels.choices.shapes import shape_of
from paceline.kernels.choices.tree_walk import is_choosable
from paceline.kernels.compiled import Kernel, available
from paceline.kernels.native.layout import MOST_KEPT
from paceline.sampling import Context, narrowed, probabilities, shaped

DISTRIBUTION = Kernel("choices.distributions_kernel.distribution", words=9)
_NONE = array("q")


def distribution(logits: torch.Tensor, context: Context) -> np.ndarray:
    """The sampling distribution of one row, float64 [V], as `sampling.probabilities`, which it calls if compiled code declines.

    logits: float32 [V]. Raises LogitsError, with the sequence, if they have no distribution.
    """
    sequence = context.sequence
    params, shapes = sequence.params, sequence.shapes_logits
    if params.temperature > 0.0 and is_choosable(sequence, logits[None]) and available(DISTRIBUTION):
        if shapes and params.grammar is not None:
            logits, shapes = shaped(logits, context), False
        count, copies = len(logits), len(logits) if shapes else 0
        shape, path = (shape_of(sequence), array("q", context.ancestors)) if shapes else (_NONE, _NONE)
        numbers = array("d", (params.temperature, params.top_p, params.log_min_p, params.top_k, 0.0))
        copy, probs = torch.empty(copies, dtype=torch.float32), torch.empty(count, dtype=torch.float64)
        held = array("i", bytes(4 * MOST_KEPT)) if params.top_k or params.top_p < 1.0 else _NONE
        shape_at, path_at, numbers_at, held_at = [one.buffer_info()[0] for one in (shape, path, numbers, held)]
        DISTRIBUTION.function(
            logits.data_ptr(), count, shape_at if shapes else 0, path_at, len(path), copy.data_ptr(), numbers_at, held_at,
            probs.data_ptr(),
        )  # fmt: skip
        if numbers[-1]:
            return probs.numpy()
    return probabilities(narrowed(shaped(logits, context) if shapes else logits, params), sequence)
