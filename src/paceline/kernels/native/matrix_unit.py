"""Tiles of a matrix unit: Intel's AMX, which multiplies 16 rows of 64 bytes with 16 outputs of 64 inputs in one instruction.

The unit makes sums over all inputs that are the same whole numbers as those of `tiles.py`, and they are scaled by the same two
roundings; so which of the two a row went through changes no bit of it.

Source: Intel, "Intel 64 and IA-32 Architectures Software Developer's Manual", volume 1, chapter "Programming with Intel AMX".
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from paceline.kernels.native.formats import BLOCK, Format
from paceline.kernels.native.tiles import ADD, AHEAD, CONTINUE, PAGE
from paceline.kernels.native.vectors import (
    F16,
    F32,
    I8,
    I16,
    I32,
    I64,
    LANES,
    MATRIX_UNIT,
    PAGES,
    VECTOR,
    VECTORS,
    WORDS,
    ZERO,
    constant,
    counted,
    external,
    fused,
    load,
    prefetch,
    repeated,
    splat,
    store,
)  # fmt: skip

FEWEST_ROWS = 6
"""From so many rows on the unit is faster than vectors, measured (ADR 0012)."""
HIGHEST = 32
"""Rows of the tallest tile: two registers of activations."""
_REGISTER_ROWS = 16
_LINE = 64
"""Bytes of a row of the unit's registers, and of a vector."""
_TURN = _REGISTER_ROWS * VECTORS * _LINE
"""Bytes of a panel that hold BLOCK inputs."""


def suits(form: Format) -> bool:
    """Whether the unit multiplies this format here."""
    return MATRIX_UNIT and form.scaled_once


def unit(builder: Any, name: str, *arguments: Any) -> None:
    """One of the unit's instructions."""
    callee = external(builder, f"llvm.x86.{name}", ir.VoidType(), [argument.type for argument in arguments])
    builder.call(callee, arguments)


def configure(builder: Any, rows: Any, tall: bool) -> None:
    """Set how many rows and bytes each of the unit's registers has (palette 1), for tiles of FEWEST_ROWS to HIGHEST rows.

    tall: whether rows fill more than one register. `tilerelease` ends it.
    """
    place = builder.ptrtoint(_room(builder, _LINE), I64)
    store(builder, repeated(0), place, _LINE)
    store(builder, I8(1), place, 1)
    upper, lower = _heights(builder, rows, tall)
    for register in range(8):
        store(builder, I16(_LINE), builder.add(place, constant(16 + 2 * register)), 2)
    heights = [upper, upper, lower, lower, upper, lower] if tall else [upper] * VECTORS + [upper, I8(_REGISTER_ROWS)]
    for register, height in enumerate([*heights, I8(_REGISTER_ROWS), I8(_REGISTER_ROWS)]):
        store(builder, height, builder.add(place, constant(48 + register)), 1)
    unit(builder, "ldtilecfg", builder.inttoptr(place, I8.as_pointer()))


def _heights(builder: Any, rows: Any, tall: bool) -> tuple[Any, Any]:
    """Rows of the first register of activations, and of the second."""
    if not tall:
        return builder.trunc(rows, I8), I8(0)
    return I8(_REGISTER_ROWS), builder.trunc(builder.sub(rows, constant(_REGISTER_ROWS)), I8)


def _room(builder: Any, size: int) -> Any:
    """So many bytes on the stack; taken where the function begins, or every turn of a loop would take its own."""
    with builder.goto_entry_block():
        place = builder.alloca(ir.ArrayType(I8, size))
    place.align = _LINE
    return place


def emit_matrix_tile(module: Any, form: Format, tall: bool) -> Any:
    """Declare and define a tile over a whole panel, once per module; `configure` has to come before it.

    Its arguments are int64, as those of `tiles.emit_tile`, behind the number of rows.
    """
    name = f"matrix_tile_{form.name}_{'tall' if tall else 'short'}"
    known = module.globals.get(name)
    if known:
        return known
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * 8), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    _Tile(builder, form, tall, *function.args).emit()
    builder.ret_void()
    return function


class _Tile:
    """Registers 0 to 3 hold sums: of four vectors of outputs for one register of rows, or of two for two."""

    def __init__(
        self, builder: Any, form: Format, tall: bool, rows: Any, activations: Any, panel: Any, panel_bytes: Any, inputs: Any,
        outputs: Any, stride: Any, mode: Any,
    ) -> None:  # fmt: skip
        self.builder, self.form, self.tall, self.rows, self.activations = builder, form, tall, rows, activations
        self.panel, self.inputs, self.outputs, self.stride, self.mode = panel, inputs, outputs, stride, mode
        self.words = builder.add(panel, constant(form.scale_bytes))
        self.sums = builder.ptrtoint(_room(builder, VECTORS * HIGHEST * _LINE), I64)

    def emit(self) -> None:
        builder = self.builder
        vectors = VECTORS // 2 if self.tall else VECTORS
        for first in range(0, VECTORS, vectors):
            for register in range(VECTORS):
                unit(builder, "tilezero", I8(register))
            with counted(builder, builder.udiv(self.inputs, constant(BLOCK))) as loop:
                self._multiply(loop.index, range(first, first + vectors))
            for place, vector in enumerate(range(first, first + vectors)):
                self._move("tilestored64", place, self._sums_of(vector, constant(0)), _LINE)
                if self.tall:
                    self._move("tilestored64", vectors + place, self._sums_of(vector, constant(_REGISTER_ROWS)), _LINE)
        with counted(builder, self.rows) as row:
            self._end(row.index)

    def _move(self, name: str, register: int, address: Any, stride: int) -> None:
        unit(self.builder, name, I8(register), self.builder.inttoptr(address, I8.as_pointer()), constant(stride))

    def _sums_of(self, vector: int, row: Any) -> Any:
        """Where the sums of a row are kept."""
        return self.builder.add(
            self.sums, self.builder.add(constant(vector * HIGHEST * _LINE), self.builder.mul(row, constant(_LINE)))
        )

    def _multiply(self, turn: Any, vectors: range) -> None:
        """The sums after BLOCK more inputs."""
        builder = self.builder
        rows = builder.add(self.activations, builder.mul(turn, builder.mul(self.rows, constant(BLOCK))))
        words = builder.add(self.words, builder.mul(turn, constant(_TURN)))
        factors = [VECTORS, VECTORS + 1] if self.tall else [VECTORS]
        for place, register in enumerate(factors):
            self._move("tileloadd64", register, builder.add(rows, constant(place * _REGISTER_ROWS * BLOCK)), BLOCK)
        if vectors[0] == 0:
            self._prefetch(words)
        for place, vector in enumerate(vectors):
            weights = 6 + place % 2
            self._move("tileloadd64", weights, builder.add(words, constant(vector * _LINE)), VECTORS * _LINE)
            for part, register in enumerate(factors):
                unit(builder, "tdpbsud", I8(part * len(vectors) + place), I8(register), I8(weights))

    def _prefetch(self, words: Any) -> None:
        """Fetch as much as a turn reads, AHEAD bytes further on; lines of neighbouring pages in turn, as tiles of vectors do."""
        builder = self.builder
        ahead = builder.add(words, constant(AHEAD))
        part = builder.and_(builder.udiv(ahead, constant(_TURN)), constant(PAGES * PAGE // _TURN - 1))
        window = builder.and_(ahead, constant(-PAGES * PAGE))
        begin = builder.add(window, builder.mul(part, constant(_TURN // PAGES)))
        for line in range(0, _TURN // PAGES, _LINE):
            for page in range(PAGES):
                prefetch(builder, builder.add(begin, constant(page * PAGE + line)))

    def _end(self, row: Any) -> None:
        """Scale the sums of one row, and do with them what the mode says."""
        builder, form = self.builder, self.form
        head = builder.add(self.activations, builder.mul(self.rows, self.inputs))
        place = builder.add(head, builder.mul(row, constant(4)))
        size = splat(builder, load(builder, place, F32, 4))
        total = load(builder, builder.add(place, builder.mul(self.rows, constant(4))), I32, 4)
        excess = splat(builder, builder.mul(total, I32(form.excess)))
        out = builder.add(self.outputs, builder.mul(row, self.stride))
        goes_on, adds = (builder.icmp_signed("==", self.mode, constant(mode)) for mode in (CONTINUE, ADD))
        for vector in range(VECTORS):
            half = load(builder, builder.add(self.panel, constant(2 * LANES * vector)), ir.VectorType(F16, LANES), 2 * LANES)
            scale = builder.fmul(builder.fpext(half, VECTOR), size)
            summed = builder.sub(load(builder, self._sums_of(vector, row), WORDS, _LINE), excess)
            at = builder.add(out, constant(_LINE * vector))
            there = load(builder, at, VECTOR, 4)
            value = fused(builder, builder.sitofp(summed, VECTOR), scale, builder.select(goes_on, there, ZERO))
            store(builder, builder.select(adds, builder.fadd(value, there), value), at, 4)
