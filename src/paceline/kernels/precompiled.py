"""Precompiled: the kernels that nearly every run needs, compiled together on a new machine, slowest first."""

from __future__ import annotations

from paceline.kernels.choices.logprobs import TOKEN_LOGPROBS
from paceline.kernels.choices.tree_walk import WALK_TREES
from paceline.kernels.compiled import Kernel
from paceline.kernels.native.entries import DRAFT, IDLE, LEAD, STEP, WORK, packer, product
from paceline.kernels.ngrams import continuations
from paceline.kernels.successors.successors import RECORD_TOP_K

EMBEDDED_DRAFT_WEIGHTS = "w8a8"
"""The weight format in which `auto` holds embedded draft models; its kernels are in `PRECOMPILED`."""
CHOICES: tuple[Kernel, ...] = (WALK_TREES, TOKEN_LOGPROBS)
"""Kernels that any target on a CPU needs, whatever its backend."""
PRECOMPILED: tuple[Kernel, ...] = (
    *(STEP, DRAFT, *CHOICES, product(EMBEDDED_DRAFT_WEIGHTS), packer(EMBEDDED_DRAFT_WEIGHTS)),
    *(*continuations.KERNELS, RECORD_TOP_K, IDLE, WORK, LEAD),
)
