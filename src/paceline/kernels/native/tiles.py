"""Tiles: the inner product of a few rows with packed weights, one weight read once and used for every row.

A tile takes R rows of activations and a panel of weights (PANEL outputs side by side, for every input in turn), or half of one
where more rows leave fewer registers, widens each weight in registers and multiplies it into R rows of accumulators. Each output
is one sum, taken over the inputs in order: by groups where groups have scales, by blocks where whole numbers have only so much
room. It does not depend on R, nor on which other panels, rows or threads there are. So a row has the same bits alone, in a draft
tree and in a prompt: verifying equals decoding.

What a tile does at the end is its mode: STORE the sums, ADD them to what is there (a residual), or CONTINUE a sum that was
left off (attention over a prefix, then over a tree's own keys).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llvmlite import ir

from paceline.kernels.native.factors import WORDS_OF, four_products, pair_products, whole_numbers, widened
from paceline.kernels.native.formats import BLOCK, GROUP, SUMMED, Format
from paceline.kernels.native.vectors import (
    F16,
    F32,
    I32,
    LANES,
    MACHINE,
    PAGES,
    VECTOR,
    VECTORS,
    ZERO,
    constant,
    counted,
    fused,
    in_blocks,
    internal,
    load,
    prefetch,
    repeated,
    splat,
    store,
)  # fmt: skip

STORE, ADD, CONTINUE = 0, 1, 2
PAGE = 4096
AHEAD = max(8192, PAGES * PAGE)
"""Bytes by which a tile prefetches its panel: the latency of memory at the speed it is read, measured (ADR 0004). All pages that
are fetched in turn have arrived when the first of them is read.
"""
_SPARE = 5
"""Registers left for weights and broadcast activations."""


def most_rows(vectors: int) -> int:
    """Rows whose sums of this many vectors fit in registers."""
    return max((MACHINE.registers - _SPARE) // vectors, 1)


MOST_ROWS = min(most_rows(VECTORS // 2), 12)
"""Rows of the tallest tile of vectors; more rows are split into tiles of about equal height."""


def emit_tile(module: Any, form: Format, rows: int, vectors: int, first: int) -> Any:
    """Declare and define a tile over the vectors [first, first + vectors) of a panel, once per module.

    Its arguments are int64 (addresses, bytes, counts): activations [K, rows] (`rows.py` has the layout of whole numbers); the
    panel and its bytes; K; outputs of the panel; bytes between rows of outputs; mode.
    """
    name = f"tile_{form.name}_{rows}_{vectors}_{first}"
    known = module.globals.get(name)
    if known:
        return known
    function = internal(module, name, 7)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    activations, panel, panel_bytes, inputs, outputs, stride, mode = function.args
    places = [
        [
            builder.add(builder.add(outputs, builder.mul(stride, constant(row))), constant(4 * LANES * (first + vector)))
            for vector in range(vectors)
        ]
        for row in range(rows)
    ]
    start = _begun(builder, places, mode)
    body = _Body(builder, form, rows, vectors, first, panel, panel_bytes)
    if not form.scaled:
        loops = body.plain
    elif form.by_group:
        loops = body.grouped
    else:
        loops = body.bytewise if form.activation_bits == 8 else body.blockwise
    sums = loops(activations, inputs, start)
    _ended(builder, places, mode, sums)
    builder.ret_void()
    return function


def _begun(builder: Any, places: list[list[Any]], mode: Any) -> list[Any]:
    """The accumulators to begin with: zeros, or what is there in mode CONTINUE."""
    before = builder.block
    with builder.if_then(builder.icmp_signed("==", mode, constant(CONTINUE))):
        there = [load(builder, place, VECTOR, 4) for row in places for place in row]
        taken = builder.block
    start = []
    for value in there:
        phi = builder.phi(VECTOR)
        phi.add_incoming(ZERO, before)
        phi.add_incoming(value, taken)
        start.append(phi)
    return start


def _ended(builder: Any, places: list[list[Any]], mode: Any, sums: list[Any]) -> None:
    flat = [place for row in places for place in row]
    with builder.if_else(builder.icmp_signed("==", mode, constant(ADD))) as (adds, stores):
        with adds:
            for value, place in zip(sums, flat, strict=True):
                store(builder, builder.fadd(value, load(builder, place, VECTOR, 4)), place, 4)
        with stores:
            for value, place in zip(sums, flat, strict=True):
                store(builder, value, place, 4)


def _in_turn(builder: Any, address: Any) -> Any:
    """Where to prefetch instead of `address`, for a walk over memory to fetch lines of PAGES neighbouring pages in turn.

    A permutation of the lines of those pages: the lowest bits of a line's number become the page's.
    """
    if PAGES == 1:
        return address
    lines = PAGE // 64
    line = builder.lshr(address, constant(6))
    page = builder.mul(builder.and_(line, constant(PAGES - 1)), constant(PAGE))
    within = builder.mul(builder.and_(builder.udiv(line, constant(PAGES)), constant(lines - 1)), constant(64))
    window = builder.and_(address, constant(-PAGES * PAGE))
    return builder.or_(window, builder.or_(page, within))


class _Body:
    """The loops of one tile. Accumulators are lists in the order row, vector."""

    def __init__(self, builder: Any, form: Format, rows: int, vectors: int, first: int, panel: Any, panel_bytes: Any) -> None:
        self.builder, self.form, self.rows, self.vectors = builder, form, rows, vectors
        self.first, self.panel, self.panel_bytes = first, panel, panel_bytes
        # a part of a panel fetches its part of the next one, so that the parts together fetch while all of them multiply
        share = builder.udiv(builder.mul(panel_bytes, constant(first)), constant(VECTORS))
        self._next = None if vectors == VECTORS else builder.add(builder.add(panel, panel_bytes), share)

    def plain(self, activations: Any, inputs: Any, start: list[Any]) -> list[Any]:
        """One sum over all inputs."""
        unroll = self.form.together
        with counted(self.builder, self.builder.udiv(inputs, constant(unroll)), start) as loop:
            offset = self.builder.mul(loop.index, constant(self.form.bytes_together))
            loop.next = self._multiplied(activations, self.builder.mul(loop.index, constant(unroll)), offset, loop.carried)
        return loop.carried

    def bytewise(self, activations: Any, inputs: Any, start: list[Any]) -> list[Any]:
        """One sum of whole numbers over all inputs, exact in whatever order, which is scaled in the end."""
        builder = self.builder
        scales = builder.add(activations, builder.mul(inputs, constant(self.rows)))
        with counted(builder, builder.udiv(inputs, constant(4)), self._without_excess(scales)) as loop:
            words = self._words(self._word_place(loop.index))
            loop.next = self._products(self._factors(activations, loop.index, BLOCK), words, 0, loop.carried)
        scale = self._scales(scales, constant(0))
        return [
            fused(builder, builder.sitofp(value, VECTOR), one, there)
            for value, one, there in zip(loop.carried, scale, start, strict=True)
        ]

    def blockwise(self, activations: Any, inputs: Any, start: list[Any]) -> list[Any]:
        """Sums of whole numbers over as many inputs as 32 bits hold, which are rounded and added, and scaled in the end."""
        builder = self.builder
        running = self._kept([ZERO] * len(start))
        with in_blocks(builder, builder.udiv(inputs, constant(4)), SUMMED // 4) as (before, turns):
            with counted(builder, turns, [repeated(0)] * len(start)) as loop:
                turn = builder.add(before, loop.index)
                words, factors = self._words(self._word_place(turn)), self._factors(activations, turn, 2 * BLOCK)
                sums = self._products(factors, words, 0, loop.carried)
                loop.next = self._products([builder.add(place, constant(4)) for place in factors], words, 1, sums)
            for place, value in zip(running, loop.carried, strict=True):
                builder.store(builder.fadd(builder.load(place), builder.sitofp(value, VECTOR)), place)
        scale = self._scales(builder.add(activations, builder.mul(inputs, constant(2 * self.rows))), constant(0))
        return [fused(builder, builder.load(place), one, there) for place, one, there in zip(running, scale, start, strict=True)]

    def _factors(self, activations: Any, turn: Any, row_bytes: int) -> list[Any]:
        """Addresses of what each row has for the `turn`-th four inputs. row_bytes: of BLOCK inputs."""
        builder, turns = self.builder, BLOCK // 4
        block = builder.mul(builder.udiv(turn, constant(turns)), constant(self.rows * row_bytes))
        within = builder.mul(builder.urem(turn, constant(turns)), constant(row_bytes // turns))
        first = builder.add(activations, builder.add(block, within))
        return [builder.add(first, constant(row * row_bytes)) for row in range(self.rows)]

    def _kept(self, values: list[Any]) -> list[Any]:
        """Room for vectors on the stack, and the values in it."""
        places = [self.builder.alloca(VECTOR) for _ in values]
        for place, value in zip(places, values, strict=True):
            self.builder.store(value, place)
        return places

    def grouped(self, activations: Any, inputs: Any, start: list[Any]) -> list[Any]:
        """Per group of inputs a sum over whole numbers, exact in whatever order, which is scaled and added to that of the groups
        before.
        """
        builder, form, rows = self.builder, self.form, self.rows
        steps = form.together // 2
        running = self._kept(start)
        with counted(builder, builder.udiv(inputs, constant(GROUP))) as group:
            offset = builder.mul(group.index, constant(form.group_bytes(GROUP)))
            scales = builder.add(activations, builder.mul(group.index, constant(rows * form.row_bytes(GROUP))))
            with counted(builder, self._turns(inputs), self._without_excess(scales)) as loop:
                words = self._words(builder.add(offset, self._word_place(loop.index)))
                first = builder.mul(builder.mul(loop.index, constant(steps)), constant(4 * rows))
                factors = builder.add(builder.add(scales, constant(8 * rows)), first)
                sums = loop.carried
                for step in range(steps):
                    places = [builder.add(factors, constant(4 * (step * rows + row))) for row in range(rows)]
                    sums = self._products(places, words, step, sums)
                loop.next = sums
            for place, value, scale in zip(running, loop.carried, self._scales(scales, offset), strict=True):
                builder.store(fused(builder, builder.sitofp(value, VECTOR), scale, builder.load(place)), place)
        return [builder.load(place) for place in running]

    def _scales(self, scales: Any, offset: Any) -> Iterator[Any]:
        """What the sum of each accumulator is to be multiplied by.

        scales: address of those of the rows. offset: where those of the outputs lie in the panel.
        """
        for row in range(self.rows):
            size = splat(self.builder, load(self.builder, self.builder.add(scales, constant(4 * row)), F32, 4))
            for vector in range(self.vectors):
                yield self.builder.fmul(self._scale(vector, offset), size)

    def _without_excess(self, scales: Any) -> list[Any]:
        """What sums over a group begin with, so that the excess of every weight is taken off in the end. The sums of a group's
        activations lie behind the scales of all rows.
        """
        if self.form.excess == 0:
            return [repeated(0)] * (self.rows * self.vectors)
        start = []
        for row in range(self.rows):
            total = load(self.builder, self.builder.add(scales, constant(4 * (self.rows + row))), I32, 4)
            start += [splat(self.builder, self.builder.mul(total, I32(-self.form.excess)))] * self.vectors
        return start

    def _word_place(self, turn: Any) -> Any:
        """Where the words of a turn lie behind the beginning of their group."""
        return self.builder.add(constant(self.form.scale_bytes), self.builder.mul(turn, constant(self.form.bytes_together)))

    def _products(self, factors: list[Any], words: list[Any], step: int, sums: list[Any]) -> list[Any]:
        """The sums after the `step`-th inputs of these words. factors: addresses of a word of each row."""
        builder, following = self.builder, []
        weights = [whole_numbers(builder, self.form, word, step) for word in words]
        for row, place in enumerate(factors):
            factor = splat(builder, load(builder, place, I32, 4))
            for vector in range(self.vectors):
                following.append(self._added(sums[row * self.vectors + vector], weights[vector], factor))
        return following

    def _added(self, sums: Any, weights: Any, factor: Any) -> Any:
        together = four_products if self.form.activation_bits == 8 else pair_products
        return together(self.builder, sums, weights, factor)

    def _turns(self, inputs: Any) -> Any:
        """Words of a group, one after another: GROUP / together, found out from the panel's size.

        Were LLVM told the constant it would unroll the loop and gather its prefetches in front, where they hold up the loads: a
        fifth slower at one row, a third at four (ADR 0004).
        """
        builder, form = self.builder, self.form
        group_bytes = builder.udiv(self.panel_bytes, builder.udiv(inputs, constant(GROUP)))
        return builder.udiv(builder.sub(group_bytes, constant(form.scale_bytes)), constant(form.bytes_together))

    def _prefetch(self, offset: Any) -> None:
        """Fetch what lies so far behind `offset` that it arrives when it is needed."""
        builder, place, reach = self.builder, self.builder.add(self.panel, constant(AHEAD)), self.form.bytes_together
        if self._next is not None:
            parts = VECTORS // self.vectors
            place, offset, reach = self._next, builder.udiv(offset, constant(parts)), -(-reach // parts)
        for line in range(0, reach, 64):
            prefetch(builder, _in_turn(builder, builder.add(place, builder.add(offset, constant(line)))))

    def _at(self, vector: int, offset: Any, element_bytes: int) -> Any:
        """Address of a vector of elements at a byte offset of the panel."""
        within = constant((self.first + vector) * LANES * element_bytes)
        return self.builder.add(self.panel, self.builder.add(offset, within))

    def _scale(self, vector: int, offset: Any) -> Any:
        half = load(self.builder, self._at(vector, offset, 2), ir.VectorType(F16, LANES), 2 * LANES)
        return self.builder.fpext(half, VECTOR)

    def _words(self, offset: Any) -> list[Any]:
        """The words that lie at an offset of the panel; those further on are fetched."""
        kind, size = WORDS_OF[self.form.name], self.form.word_bytes
        words = [load(self.builder, self._at(vector, offset, size), kind, size * LANES) for vector in range(self.vectors)]
        self._prefetch(offset)
        return words

    def _multiplied(self, activations: Any, index: Any, offset: Any, sums: list[Any]) -> list[Any]:
        """The sums after the `together` inputs from `index` on, whose weights lie at `offset` in every panel."""
        builder, form = self.builder, self.form
        words = self._words(offset)
        for step in range(form.together):
            weights = [widened(builder, form, word, step) for word in words]
            row_bytes = 4 * self.rows
            place = builder.add(activations, builder.mul(builder.add(index, constant(step)), constant(row_bytes)))
            following = []
            for row in range(self.rows):
                value = splat(builder, load(builder, builder.add(place, constant(4 * row)), F32, 4))
                for vector in range(self.vectors):
                    following.append(fused(builder, weights[vector], value, sums[row * self.vectors + vector]))
            sums = following
        return sums
