"""Formats: the memory layout of weights for the tiles, and the number format of weights and activations.

A matrix [N, K] is stored as panels of PANEL outputs. Within a panel the inputs follow one another, each with one weight per
output side by side, so that a register holds the same input of LANES outputs. Integers follow the float16 scales that they share
(the largest magnitude maps to 127, or 7), and activations multiplied with them become integers too, with float32 scales, so that
sums of many products are exact, and several are computed at a time. `int4` and `w4a8` have a scale per output and group of 32
inputs, and activations of 16 and of 8 bits with a scale per row and group (ADR 0011, ADR 0018). `int8` and `w8a8` have a scale
per output, and activations of 16 and of 8 bits with a scale per row, so that a processor's matrix unit can compute their sums
(ADR 0012, ADR 0013). In `w16a16` both activations and weights are bfloat16, for the instructions that multiply pairs of these
(ADR 0014).
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.kernels.native.vectors import MULTIPLIES_SIGNED_BYTES, PANEL

GROUP = 32
"""Inputs that share a scale in `int4` and `w4a8`; every K is padded with zeros to a multiple of it."""
BLOCK = 64
"""Adjacent numbers of a row of activations in `int8` and `w8a8`, and the multiple that K is padded to there."""
LARGEST = {8: 2**7 - 1, 16: 2**15 - 129}
"""Bits -> the integer that a row's largest activation maps to; of a larger 16-bit one, the upper byte would overflow int8."""
SUMMED = 512
"""Products of a byte and a 16-bit activation that are summed in 32 bits before they are rounded; a multiple of BLOCK."""
MOST_INPUTS = (2**31 - 1) // 127**2
"""Most products of two bytes that can be summed in 32 bits."""


@dataclass(frozen=True)
class Format:
    """bits: per weight, without scales. together: inputs that share a word of word_bytes.

    activation_bits: bits of integer activations; 0: activations are not integers, and weights have no scales. by_group: whether
    a scale applies to GROUP inputs instead of all. excess: offset that is added to stored weights. halved: whether activations
    become bfloat16.
    """

    name: str
    bits: int
    together: int
    word_bytes: int
    activation_bits: int = 0
    by_group: bool = False
    excess: int = 0
    halved: bool = False

    @property
    def scaled(self) -> bool:
        """Whether weights and activations are integers with scales."""
        return self.activation_bits > 0

    @property
    def scaled_once(self) -> bool:
        """Whether one scale applies to all inputs, not to a group of them."""
        return self.scaled and not self.by_group

    @property
    def in_planes(self) -> bool:
        """Whether 16-bit activations are multiplied as two bytes each: one instruction then multiplies four bytes of either."""
        return self.scaled_once and self.activation_bits > 8 and MULTIPLIES_SIGNED_BYTES

    @property
    def multiplied(self) -> int:
        """How many integers of a 32-bit lane one instruction multiplies: those of 16 bits, or of 8."""
        return 4 if self.activation_bits == 8 else 2

    @property
    def largest(self) -> int:
        """The integer that the largest weight of a scale maps to."""
        return 2 ** (self.bits - 1) - 1

    @property
    def multiple(self) -> int:
        """The multiple that K is padded to."""
        return BLOCK if self.scaled_once else GROUP

    def padded(self, inputs: int) -> int:
        return padded(inputs, self.multiple)

    def group(self, inputs: int) -> int:
        """How many of the padded inputs share a scale."""
        return inputs if self.scaled_once else GROUP

    def row_bytes(self, inputs: int) -> int:
        """Bytes of one row of activations: float32, or two bfloat16 per number, or one; or integers with a scale and a sum, per
        group or, with room to spare, per row."""
        if not self.scaled:
            return (2 if self.halved else 4) * inputs
        numbers = inputs * self.activation_bits // 8
        return numbers + (8 * inputs // GROUP if self.by_group else BLOCK)

    @property
    def bytes_together(self) -> int:
        """Bytes of one panel's words: `together` inputs of PANEL outputs."""
        return self.word_bytes * PANEL

    @property
    def scale_bytes(self) -> int:
        return 2 * PANEL if self.scaled else 0

    def group_bytes(self, group: int) -> int:
        """Bytes of one group of inputs of a panel, its scales included."""
        return self.scale_bytes + group // self.together * self.bytes_together

    def panel_bytes(self, inputs: int) -> int:
        """inputs: padded."""
        group = self.group(inputs)
        return inputs // group * self.group_bytes(group)


FORMATS = {
    form.name: form
    for form in (
        Format("fp32", 32, 1, 4),
        Format("fp16", 16, 1, 2),
        Format("bf16", 16, 2, 4),
        Format("w16a16", 16, 2, 4, halved=True),
        Format("int8", 8, 4, 4, activation_bits=16),
        Format("int4", 4, 8, 4, activation_bits=16, by_group=True, excess=8),
        Format("w4a8", 4, 8, 4, activation_bits=8, by_group=True, excess=8),
        # as the instruction needs weights: unsigned, or signed
        Format("w8a8", 8, 4, 4, activation_bits=8, excess=0 if MULTIPLIES_SIGNED_BYTES else 128),
    )
}


def padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
