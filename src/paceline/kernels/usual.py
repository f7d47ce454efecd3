"""Usual: kernels that nearly every run comes to need, so a new machine compiles them all at once; the longest first.

Embedded drafts are held in int8.
"""

from __future__ import annotations

from paceline.kernels.choices.tellings import TOLD
from paceline.kernels.choices.walks import FOLLOWED
from paceline.kernels.compiled import Kernel
from paceline.kernels.native.entries import DRAFT, IDLE, LEAD, STEP, WORK, packer, product
from paceline.kernels.ngrams import votes
from paceline.kernels.successors.successors import NOTED

CHOICES: tuple[Kernel, ...] = (FOLLOWED, TOLD)
"""What any target on a CPU comes to need, whatever scores its steps."""
USUAL: tuple[Kernel, ...] = (STEP, DRAFT, *CHOICES, product("int8"), packer("int8"), *votes.KERNELS, NOTED, IDLE, WORK, LEAD)
