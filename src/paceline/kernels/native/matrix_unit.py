"""Tiles of a matrix unit: Intel's AMX, which multiplies 16 rows of 64 bytes with 16 outputs of 64 bytes in one instruction.

For bytes it computes the same integers as `tiles.py`, scaled with the same roundings, so a row's bits do not depend on which of
the two computed it. A 16-bit activation is split into two signed bytes, which the unit takes as two rows; their sums are combined
as often as `tiles.py` rounds. Sums of bfloat16 are rounded in the unit's own order; so with `bf16` and `w16a16` all rows use the
unit, however few. Both operands are bfloat16: with `bf16` an activation is split into two, the nearest bfloat16 and the nearest
to the remainder, whose products are added one after the other.

Source: Intel, "Intel 64 and IA-32 Architectures Software Developer's Manual", volume 1, chapter "Programming with Intel AMX".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llvmlite import ir

from paceline.kernels.native.ahead import AHEAD, lines_in_turn
from paceline.kernels.native.formats import BLOCK, GROUP, SUMMED, Format
from paceline.kernels.native.tiles import ADD, CONTINUE, MOST_ROWS
from paceline.kernels.native.vectors import (
    F16,
    F32,
    I8,
    I16,
    I32,
    I64,
    LANES,
    MATRIX_UNIT,
    VECTOR,
    VECTORS,
    WORDS,
    ZERO,
    constant,
    counted,
    external,
    fused,
    in_blocks,
    load,
    once,
    prefetch,
    repeated,
    splat,
    store,
)  # fmt: skip

_FEWEST_ROWS = {"bf16": 1, "w16a16": 1, "int8": 4, "w8a8": 4}
"""From so many rows on, the unit is faster than vectors, measured (ADR 0012, ADR 0013); with bfloat16 it must always be used."""
HIGHEST = 32
"""Rows of the unit in the tallest tile: two registers of activations."""
_REGISTER_ROWS = 16
_LINE = 64
"""Bytes per row of the unit's registers, and per vector."""
_TURN = _REGISTER_ROWS * VECTORS * _LINE
"""Bytes of a panel that are read per turn: BLOCK inputs of one byte, or GROUP inputs of two bytes."""


def suits(form: Format) -> bool:
    """Whether the unit multiplies this format here."""
    return MATRIX_UNIT and form.name in _FEWEST_ROWS


def fewest_rows(form: Format) -> int:
    """The unit multiplies this format from so many rows on; if never, MOST_ROWS + 1."""
    return min(_FEWEST_ROWS[form.name], MOST_ROWS + 1) if suits(form) else MOST_ROWS + 1


def highest(form: Format) -> int:
    """Rows of the tallest tile of a format."""
    return HIGHEST // rows_each(form)


def rows_each(form: Format) -> int:
    """Rows of the unit per row of activations: for integers, as many as bytes per number, else 1."""
    return form.activation_bits // 8 if form.scaled else 1


def unit(builder: Any, name: str, *arguments: Any) -> None:
    """Emit one of the unit's instructions."""
    callee = external(builder, f"llvm.x86.{name}", ir.VoidType(), [argument.type for argument in arguments])
    builder.call(callee, arguments)


def configure(builder: Any, rows: Any, tall: bool) -> None:
    """Set how many rows and bytes each of the unit's registers has (palette 1), for tiles of up to HIGHEST rows.

    rows: of the unit. tall: whether they fill more than one register. `tilerelease` ends it.
    """
    place = builder.ptrtoint(_room(builder, _LINE), I64)
    store(builder, repeated(0), place, _LINE)
    store(builder, I8(1), place, 1)
    upper, lower = _heights(builder, rows, tall)
    for register in range(8):
        store(builder, I16(_LINE), builder.add(place, constant(16 + 2 * register)), 2)
    # sums, then activations, then weights
    heights = [upper, upper, lower, lower, upper, lower] if tall else [upper] * 6
    for register, height in enumerate([*heights, I8(_REGISTER_ROWS), I8(_REGISTER_ROWS)]):
        store(builder, height, builder.add(place, constant(48 + register)), 1)
    unit(builder, "ldtilecfg", builder.inttoptr(place, I8.as_pointer()))


def _heights(builder: Any, rows: Any, tall: bool) -> tuple[Any, Any]:
    """Rows of the first register of activations, and of the second."""
    if not tall:
        return builder.trunc(rows, I8), I8(0)
    return I8(_REGISTER_ROWS), builder.trunc(builder.sub(rows, constant(_REGISTER_ROWS)), I8)


def _room(builder: Any, size: int) -> Any:
    """So many bytes on the stack, allocated at the function's entry, since an allocation in a loop would repeat every turn."""
    with builder.goto_entry_block():
        place = builder.alloca(ir.ArrayType(I8, size))
    place.align = _LINE
    return place


def emit_matrix_tile(module: Any, form: Format, tall: bool) -> Any:
    """Declare and define a tile over a whole panel, once per module; `configure` must be called before it.

    Its arguments are int64: the number of rows, then those of `tiles.emit_tile`.
    """

    def define(builder: Any, *arguments: Any) -> None:
        _Tile(builder, form, tall, *arguments).emit()

    return once(module, f"matrix_tile_{form.name}_{'tall' if tall else 'short'}", 8, define)


class _Tile:
    """Registers 0 to 3 hold sums: of four vectors of outputs for one register of rows, or of two vectors for two registers."""

    def __init__(
        self, builder: Any, form: Format, tall: bool, rows: Any, activations: Any, panel: Any, panel_bytes: Any,
        inputs: Any, outputs: Any, stride: Any, mode: Any,
    ) -> None:  # fmt: skip
        self.builder, self.form, self.tall, self.activations = builder, form, tall, activations
        self.rows, self.unit_rows = rows, builder.mul(rows, constant(rows_each(form)))
        self.panel, self.panel_bytes, self.inputs = panel, panel_bytes, inputs
        self.outputs, self.stride, self.mode = outputs, stride, mode
        self.words = builder.add(panel, constant(form.scale_bytes))
        self._ahead: list[Any] = []
        """Cache lines still to be prefetched in this turn."""
        self.vectors = VECTORS // 2 if tall else VECTORS
        self.sums = builder.ptrtoint(_room(builder, VECTORS * HIGHEST * _LINE), I64)
        self.rounded = builder.ptrtoint(_room(builder, VECTORS * HIGHEST * _LINE), I64) if self._in_blocks else self.sums

    @property
    def _in_blocks(self) -> bool:
        """Whether sums are rounded in between: 32 bits do not hold the sum over all inputs."""
        return self.form.activation_bits == 16

    def emit(self) -> None:
        builder = self.builder
        turns = builder.udiv(self.inputs, constant(BLOCK if self.form.scaled else GROUP))
        for first in range(0, VECTORS, self.vectors):
            vectors = range(first, first + self.vectors)
            if self._in_blocks:
                self._by_blocks(turns, vectors)
            else:
                self._begin(vectors)
                self._multiplied(constant(0), turns, vectors)
        with counted(builder, self.rows) as row:
            self._end(row.index)

    def _multiplied(self, first: Any, turns: Any, vectors: range) -> None:
        """Add the products of so many turns to the sums, and store these at `_sums_of`."""
        with counted(self.builder, turns) as loop:
            turn = self.builder.add(first, loop.index)
            words = self.builder.add(self.words, self.builder.mul(turn, constant(_TURN)))
            self._ahead = self._lines_ahead(turn, vectors)
            multiply = self._of_lines if self.form.scaled or self.form.halved else self._halves_and_rest
            multiply(turn, words, vectors)
        for register, vector, row in self._sums(vectors):
            self._move("tilestored64", register, self._sums_of(vector, constant(row)), constant(_LINE))

    def _by_blocks(self, turns: Any, vectors: range) -> None:
        """Sums over SUMMED inputs at a time, of upper and of lower bytes, which are combined, rounded and added."""
        builder = self.builder
        with counted(builder, self.rows) as row:
            for vector in vectors:
                store(builder, ZERO, self._rounded_of(vector, row.index), _LINE)
        with in_blocks(builder, turns, SUMMED // BLOCK) as (before, count):
            self._begin(vectors)
            self._multiplied(before, count, vectors)
            with counted(builder, self.rows) as row:
                for vector in vectors:
                    self._put_together(vector, row.index)

    def _put_together(self, vector: int, row: Any) -> None:
        builder, lower_row = self.builder, self.builder.add(self.rows, row)
        upper, lower = (load(builder, self._sums_of(vector, one), WORDS, _LINE) for one in (row, lower_row))
        total = builder.sitofp(builder.add(builder.shl(upper, repeated(8)), lower), VECTOR)
        place = self._rounded_of(vector, row)
        store(builder, builder.fadd(load(builder, place, VECTOR, _LINE), total), place, _LINE)

    def _sums(self, vectors: range) -> Iterator[tuple[int, int, int]]:
        """The registers of sums: register, vector of outputs, and first row."""
        for part in range(1 + self.tall):
            for place, vector in enumerate(vectors):
                yield part * len(vectors) + place, vector, part * _REGISTER_ROWS

    def _begin(self, vectors: range) -> None:
        """Initialise sums: zeros, or in mode CONTINUE the existing outputs; integer sums are combined with these at the end."""
        builder = self.builder
        if self.form.scaled:
            for register, _, _ in self._sums(vectors):
                unit(builder, "tilezero", I8(register))
            return
        with builder.if_else(builder.icmp_signed("==", self.mode, constant(CONTINUE))) as (goes_on, begins):
            with goes_on:
                for register, vector, row in self._sums(vectors):
                    there = builder.add(self.outputs, builder.mul(self.stride, constant(row)))
                    self._move("tileloadd64", register, builder.add(there, constant(_LINE * vector)), self.stride)
            with begins:
                for register, _, _ in self._sums(vectors):
                    unit(builder, "tilezero", I8(register))

    def _move(self, name: str, register: int, address: Any, stride: Any) -> None:
        unit(self.builder, name, I8(register), self.builder.inttoptr(address, I8.as_pointer()), stride)

    def _sums_of(self, vector: int, row: Any) -> Any:
        """Where the sums of a row of the unit are stored."""
        return self._kept(self.sums, vector, row)

    def _rounded_of(self, vector: int, row: Any) -> Any:
        """Where the rounded sums of a row are stored."""
        return self._kept(self.rounded, vector, row)

    def _kept(self, room: Any, vector: int, row: Any) -> Any:
        place = self.builder.add(room, constant(vector * HIGHEST * _LINE))
        return self.builder.add(place, self.builder.mul(row, constant(_LINE)))

    def _of_lines(self, turn: Any, words: Any, vectors: range) -> None:
        """Add one more line of each row to the sums: BLOCK inputs in bytes, or GROUP in bfloat16."""
        builder = self.builder
        self._load_rows(builder.add(self.activations, builder.mul(turn, builder.mul(self.unit_rows, constant(_LINE)))), VECTORS)
        instruction = "tdpbf16ps" if self.form.halved else "tdpbsud" if self.form.excess else "tdpbssd"
        for place, vector in enumerate(vectors):
            self._load_weights(words, vector, 6 + place % 2)
            self._multiply(instruction, VECTORS, 6 + place % 2, place, len(vectors))

    def _halves_and_rest(self, turn: Any, words: Any, vectors: range) -> None:
        """Add GROUP more inputs to the sums: first the nearest bfloat16, then the remainders."""
        builder, size = self.builder, self.builder.mul(self.rows, constant(2 * GROUP))
        upper = builder.add(self.activations, builder.mul(turn, builder.mul(size, constant(2))))
        left_over = builder.add(upper, size)
        self._load_rows(upper, VECTORS)
        if not self.tall:
            self._load_rows(left_over, VECTORS + 1)
        for place, vector in enumerate(vectors):
            self._load_weights(words, vector, 6 + place % 2)
            self._multiply("tdpbf16ps", VECTORS, 6 + place % 2, place, len(vectors))
            if not self.tall:
                self._multiply("tdpbf16ps", VECTORS + 1, 6 + place % 2, place, len(vectors))
        if self.tall:
            # no register is left for the remainders beside the others
            self._load_rows(left_over, VECTORS)
            for place in range(len(vectors)):
                self._multiply("tdpbf16ps", VECTORS, 6 + place, place, len(vectors))

    def _load_rows(self, rows: Any, register: int) -> None:
        """Load activations, 64 bytes of each row, into one register, or into two if rows fill more than one."""
        for part in range(1 + self.tall):
            place = self.builder.add(rows, constant(part * _REGISTER_ROWS * _LINE))
            self._move("tileloadd64", register + part, place, constant(_LINE))

    def _load_weights(self, words: Any, vector: int, register: int) -> None:
        """Load a vector's share of a turn's words, and prefetch its share of lines: all at once would delay the loads."""
        builder = self.builder
        share = _TURN // _LINE // VECTORS
        for line in self._ahead[:share]:
            prefetch(builder, line)
        del self._ahead[:share]
        self._move("tileloadd64", register, builder.add(words, constant(vector * _LINE)), constant(VECTORS * _LINE))

    def _multiply(self, instruction: str, rows: int, weights: int, place: int, vectors: int) -> None:
        """Add products of the registers of rows with one of weights to the sums of these rows."""
        for part in range(1 + self.tall):
            unit(self.builder, instruction, I8(part * vectors + place), I8(rows + part), I8(weights))

    def _lines_ahead(self, turn: Any, vectors: range) -> list[Any]:
        """The lines to prefetch in a turn, as many as it reads; lines of neighbouring pages in turn, as with tiles of vectors. If
        a panel is walked twice, each walk prefetches its half of the next panel.
        """
        builder, reach = self.builder, _TURN * len(vectors) // VECTORS
        ahead = builder.add(self.words, builder.mul(turn, constant(reach)))
        if self.tall:
            share = builder.udiv(builder.mul(self.panel_bytes, constant(vectors[0])), constant(VECTORS))
            ahead = builder.add(ahead, builder.add(self.panel_bytes, share))
        else:
            ahead = builder.add(ahead, constant(AHEAD))
        return lines_in_turn(builder, ahead, reach)

    def _end(self, row: Any) -> None:
        """Store, add or continue the sums of one row, as the mode says; integer sums are scaled first."""
        builder = self.builder
        size = splat(builder, load(builder, self._scale_of(row), F32, 4)) if self.form.scaled else None
        excess = self._excess_of(row) if self.form.excess else None
        out = builder.add(self.outputs, builder.mul(row, self.stride))
        goes_on, adds = (builder.icmp_signed("==", self.mode, constant(mode)) for mode in (CONTINUE, ADD))
        for vector in range(VECTORS):
            at, kept = builder.add(out, constant(_LINE * vector)), self._rounded_of(vector, row)
            there = load(builder, at, VECTOR, 4)
            if self.form.scaled:
                half = load(builder, builder.add(self.panel, constant(2 * LANES * vector)), ir.VectorType(F16, LANES), 2 * LANES)
                scale = builder.fmul(builder.fpext(half, VECTOR), size)
                if self._in_blocks:
                    summed = load(builder, kept, VECTOR, _LINE)
                else:
                    summed = builder.sitofp(builder.sub(load(builder, kept, WORDS, _LINE), excess), VECTOR)
                value = fused(builder, summed, scale, builder.select(goes_on, there, ZERO))
            else:
                value = load(builder, kept, VECTOR, _LINE)
            store(builder, builder.select(adds, builder.fadd(value, there), value), at, 4)

    def _scale_of(self, row: Any) -> Any:
        """Address of a row's scale."""
        builder = self.builder
        numbers = builder.mul(self.inputs, constant(self.form.activation_bits // 8))
        head = builder.add(self.activations, builder.mul(self.rows, numbers))
        return builder.add(head, builder.mul(row, constant(4)))

    def _excess_of(self, row: Any) -> Any:
        """The excess in a row's sums, to be subtracted, in every lane."""
        builder = self.builder
        total = load(builder, builder.add(self._scale_of(row), builder.mul(self.rows, constant(4))), I32, 4)
        return splat(builder, builder.mul(total, I32(self.form.excess)))
