"""Retrieval: what follows occurrences of the text's last tokens in a datastore of other texts.

The longest suffix of the text that occurs in the datastore is found by binary search in the datastore's suffix array. The
continuations of its occurrences are counted, of all or of an evenly spaced sample of `hits`, and the most frequent ones form a
tree. The end of a document counts as the EOS token, of several EOS tokens as the tokenizer's.

A datastore is built by `paceline datastore build FILES --out DIR --model TARGET`, with the target's tokenizer.

Source: He et al., REST: Retrieval-Based Speculative Decoding (arXiv:2311.08252), section 3.
Proposals: POINT
Taps: none
Branching: REPLAY; its trees are cut to their first chain if the target supports less than TREE
Trained: no
Cost: tens of microseconds, more if the datastore is not in memory; 8 bytes on disk per token of it
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from paceline.budget import Budget
from paceline.datastore import Datastore
from paceline.drafters.base import Drafter, Surroundings
from paceline.kernels.suffixes.array import DRAFT, LONGEST_MATCH, SORTED_TO
from paceline.machine import expanded
from paceline.noise import told_apart
from paceline.sequence import Sequence
from paceline.spec import SpecError
from paceline.tree import DraftTree, Proposal


class Options(BaseModel):
    """path: the datastore's directory. shortest: fewest tokens of a match. hits: most occurrences whose continuations are
    counted.

    nodes, depth: largest size of a draft. floor: least probability of a drafted path.
    """

    model_config = ConfigDict(extra="forbid")

    path: Annotated[str, Field(min_length=1)]
    shortest: Annotated[int, Field(ge=1, le=LONGEST_MATCH)] = 2
    hits: Annotated[int, Field(ge=1, le=5000)] = 256
    nodes: Annotated[int, Field(ge=1, le=64)] = 16
    depth: Annotated[int, Field(ge=1, le=SORTED_TO - LONGEST_MATCH)] = 10
    floor: Annotated[float, Field(ge=0.01, le=1)] = 0.03


_FINGERPRINTED = 2**16
"""Tokens at either end of a datastore that its hash covers."""


class DatastoreDrafter(Drafter):
    """Keeps no state per sequence. end: the token that ends a text, or -1."""

    name = "datastore"
    kinds = frozenset({Proposal.POINT})

    def __init__(self, datastore: Datastore, end: int, vocab_size: int, options: Options) -> None:
        self.options = options
        self.budget = Budget(options.nodes, options.depth)
        # the ends alone: all of it may be gigabytes
        ends = datastore.tokens[:_FINGERPRINTED], datastore.tokens[-_FINGERPRINTED:]
        self.read_texts = told_apart(*ends, (len(datastore.tokens),))
        size = 1 + 2 * options.hits * options.depth
        self._draft, self._held = np.empty((options.nodes, 2), np.int64), np.empty(options.nodes)
        scratch = {
            "trie": np.empty((size, 4), np.int32),
            "sums": np.empty(size),
            "path": np.empty(options.depth + 1, np.int64),
            "chances": np.empty((2, size)),
            "places": np.empty((2, size), np.int64),
        }
        # made before anything is timed
        self._call = DRAFT.call(
            tokens=datastore.tokens, order=datastore.suffixes, shortest=options.shortest, hits=options.hits, end=end,
            vocab_size=vocab_size, draft=self._draft, held=self._held, **scratch,
        )  # fmt: skip

    def propose(self, sequences: Many[Sequence], budgets: Many[Budget]) -> list[DraftTree]:
        return [
            self._drafted(sequence.tokens[-LONGEST_MATCH:], budget.within(self.budget))
            for sequence, budget in zip(sequences, budgets, strict=True)
        ]

    def _drafted(self, text: list[int], budget: Budget) -> DraftTree:
        self._call.give(text=np.array(text, np.int64))
        record = self._call.record
        record.nodes, record.depth, record.floor = budget.nodes, budget.depth, max(self.options.floor, budget.floor)
        taken = self._call()
        tokens, parents = self._draft[:taken].T.tolist()
        return DraftTree.grown(self.name, (text[-1], *tokens), (-1, *parents), (1.0, *self._held[:taken].tolist()))


def build(options: Options, surroundings: Surroundings) -> DatastoreDrafter:
    try:
        folder = expanded(options.path)
    except OSError as error:
        raise SpecError(f"there is no datastore in '{options.path}': {error}") from error
    datastore = Datastore.open(folder)
    if datastore.header.tokenizer != surroundings.tokenizer.fingerprint:
        raise SpecError(f"the datastore in '{options.path}' was built for another tokenizer: build it anew with --model")
    target = surroundings.target
    # a chat model has several EOS tokens, and ends its answers with its tokenizer's
    ends = surroundings.tokenizer.ends & target.eos_token_ids or target.eos_token_ids
    return DatastoreDrafter(datastore, min(ends, default=-1), target.vocab_size, options)
