"""Spans of a reference text that the answer is expected to follow apart from edits: an earlier version, a document, a guess.

The reference is the request's own, else the file's, else the prompt. Drafting begins before anything is generated: after the
prompt's last tokens if they occur in the reference, else at its first token (unless the reference is the prompt itself). From
there a pointer into the reference moves along with the answer. After an edit, or a first token that differs, it takes a step or
two until the last tokens of the answer are found in the reference again. The more tokens have matched, the longer drafts are. A
reference that keeps failing is only observed, which costs no rows, until several tokens in a row match again.

Source: Yang et al., Inference with Reference (arXiv:2304.04487), section 3; drafting begins without a matching trigger, as for
predicted outputs.
Proposals: POINT
Taps: none
Branching: REPLAY
Trained: no
Cost: one comparison per token that matches the reference, two lookups per token that does not, regardless of the reference's
length; in a cascade the same once more per token, and also for every draft token that was rejected
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from copy import copy
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from paceline.budget import Budget
from paceline.drafters.base import StatefulDrafter, Surroundings
from paceline.lookups.alignment import Alignment, Reference
from paceline.lookups.textfile import tokens_of_file
from paceline.noise import told_apart
from paceline.sequence import Sequence
from paceline.tree import DraftTree, Proposal


class Options(BaseModel):
    """file: reference text for requests without one of their own. prompt: whether requests with neither use their prompt. depth:
    most tokens in a draft."""

    model_config = ConfigDict(extra="forbid")

    file: Annotated[str, Field(min_length=1)] | None = None
    prompt: bool = True
    depth: Annotated[int, Field(ge=1, le=64)] = 16


_STATE_BYTES = 400
"""Of one alignment, its index not included."""


class _Pointer:
    """now: the alignment of a text with its reference. Reading tokens cannot be undone, so a copy from an earlier length is kept:
    after a cut, reading goes on from the copy, which then moves up to the cut. So a text that is cut and grows again and again,
    as drafts in a cascade are, is read at most twice, apart from what was cut."""

    def __init__(self, begun: Alignment) -> None:
        self.now = begun
        self._kept: Alignment | None = None
        self._length = begun.seen
        """Tokens of the text that are unchanged since they were read; after a cut, more than `now` has seen."""

    def follow(self, text: Many[int]) -> None:
        """Read what the text has grown by."""
        if self._kept is not None and self.now.seen < self._length:
            self._kept.follow(text, self._length)
            self.now = copy(self._kept)
        self.now.follow(text)
        self._length = len(text)
        if self._kept is None:
            # most of the text may have been there before the first draft
            self._kept = copy(self.now)

    def cut(self, length: int) -> bool:
        """Go back to the first `length` tokens of the text; False where the copy has seen more."""
        if length < self._length:
            if self._kept is None or self._kept.seen > length:
                return False
            self.now, self._length = copy(self._kept), length
        return True


class ReferenceDrafter(StatefulDrafter[_Pointer]):
    """shared: the reference of requests that have none of their own; None for their prompt, if `options.prompt` is set."""

    name = "reference"
    kinds = frozenset({Proposal.POINT})
    refers = True

    def __init__(self, options: Options, shared: Reference | None = None) -> None:
        super().__init__()
        self.budget = Budget(nodes=options.depth, depth=options.depth)
        self._shared, self._prompt = shared, options.prompt
        if shared is not None:
            self.read_texts = told_apart(shared.tokens)

    def suits(self, sequence: Sequence) -> bool:
        pointer = self._states.get(sequence.key)
        if pointer is not None:
            return pointer.now.due(len(sequence.tokens))
        return bool(sequence.reference) or self._shared is not None or self._prompt

    def _one(self, sequence: Sequence, budget: Budget) -> DraftTree:
        pointer = self._state(sequence)
        pointer.follow(sequence.tokens)
        alignment = pointer.now
        if alignment.lost:
            return DraftTree.root(sequence.root)
        room = min(budget.levels, self.budget.depth)
        held = alignment.confidences(room, budget.floor)
        if not held:
            return DraftTree.root(sequence.root)
        span = alignment.reference.tokens[alignment.place : alignment.place + len(held)]
        return DraftTree.chain(sequence.root, span, self.name, confidences=held)

    def _reference(self, sequence: Sequence) -> Reference:
        if sequence.reference:
            return Reference(sequence.reference)
        return self._shared if self._shared is not None else Reference(sequence.prompt)

    def _cut(self, state: _Pointer, length: int) -> bool:
        return state.cut(length)

    def _begun(self, sequence: Sequence) -> _Pointer:
        return _Pointer(Alignment(self._reference(sequence), sequence.prompt))

    def _bytes_of(self, state: _Pointer) -> int:
        reference = state.now.reference
        return 2 * _STATE_BYTES + (0 if reference is self._shared else reference.held_bytes)


def build(options: Options, surroundings: Surroundings) -> ReferenceDrafter:
    """Raises SpecError where the file cannot be read."""
    if options.file is None:
        return ReferenceDrafter(options)
    shared = Reference(tokens_of_file(options.file, surroundings.tokenizer.encode, surroundings.target.vocab_size))
    shared.index()
    return ReferenceDrafter(options, shared)
