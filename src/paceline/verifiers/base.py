"""Verifier: a pure function from the target's scores to verdicts, and what it promises about them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence as Many
from enum import Enum

import torch

from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.tree import DraftTree, Proposal


class Exactness(Enum):
    """What a rule keeps of plain decoding; what it does not declare for a kind of proposal, it does not keep."""

    TEXT = "text"
    """Token for token the same."""
    LAW = "law"
    """The same distribution, other tokens."""


class Verifier(ABC):
    """exactness: per kind of proposal, at a temperature; every exact rule keeps the text when greedy.

    prefers: kinds a drafter should produce for it, the best first; POINT can always be had. amateur: True where it needs the
    drafter's own distribution, untouched by sampling parameters, at every node, those without children included.
    """

    name: str
    exactness: Mapping[Proposal, Exactness]
    prefers: tuple[Proposal, ...] = (Proposal.COUPLED, Proposal.POINT)
    amateur: bool = False

    @abstractmethod
    def __call__(self, sequences: Many[Sequence], trees: Many[DraftTree], logits: Many[torch.Tensor]) -> list[Verdict]:
        """One verdict per sequence. logits: per sequence float32 [N, V], the target's at every candidate of its tree."""
