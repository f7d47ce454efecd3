"""What becomes of the choices that compiled code drafts."""

from __future__ import annotations

import pytest
import torch

from paceline.models.native_chains import Chains
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.tree import Proposal


@pytest.mark.parametrize("odd", [torch.nan, torch.inf])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_drawn_draft_ends_before_a_row_that_is_no_distribution(odd: float, level: int) -> None:
    """A token may be chosen by the numbers of a row, and the row hold one that is none: no rule could weigh it."""
    chains = Chains(0, 0, known=5)
    chains._kind, chains._source, chains._vocab_size = Proposal.WITHOUT_REPLACEMENT, "model", 7
    rows = [torch.arange(5.0) for _ in range(3)]
    rows[level][2] = odd
    tree = chains._tree(Sequence(0, (1, 2), SamplingParams(temperature=0.8), 0), [4, 3, 4], [0.5, 0.4, 0.3], rows)
    assert tree.tokens == (2, 4, 3, 4)[: level + 1]
    for held in tree.proposals.values():
        assert float(held.sum()) == pytest.approx(1.0)
