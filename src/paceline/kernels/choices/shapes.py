"""Shapes: a request's biases, bans and penalties in the form that compiled code reads (`native/shaping`)."""

from __future__ import annotations

from array import array

from paceline.sequence import Sequence


def shape_of(sequence: Sequence) -> array[float]:
    """The shape of logits after a sequence's committed tokens: the numbers that `native/layout` lists (SHAPE_HEAD), then biased
    tokens, their biases, stop ids, tokens seen, tokens counted, and how often each occurred."""
    # cached: a step's verdict and the next draft use the same, and a text may have many tokens
    if sequence.shape is None:
        sequence.shape = _shape_of(sequence)
    return sequence.shape


def _shape_of(sequence: Sequence) -> array[float]:
    params = sequence.params
    repeats = params.repetition_penalty != 1.0
    counts = sequence.generated_counts if params.presence_penalty or params.frequency_penalty else {}
    until = params.min_tokens - sequence.generated_tokens
    stops = sequence.stop_ids if until > 0 else ()
    known = sequence.prompt_numbers if repeats else ()
    new = [token for token in sequence.generated_counts if token not in sequence.prompt_set] if repeats else ()
    head = params.repetition_penalty, params.presence_penalty, params.frequency_penalty, until
    sizes = len(params.logit_bias), len(stops), len(known) + len(new), len(counts)
    shape = array("d", (*head, *sizes, *params.logit_bias, *params.logit_bias.values(), *stops))
    for tokens in (known, new, counts, counts.values()):
        shape.extend(tokens)
    return shape
