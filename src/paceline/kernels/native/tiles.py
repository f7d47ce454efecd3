"""Tiles: the inner product of a few rows with packed weights; each weight is read once and used for every row.

A tile takes R rows of activations and a panel of weights (PANEL outputs side by side, for every input in turn), or half of a
panel if more rows leave fewer registers, widens each weight in registers and multiplies it into R rows of accumulators. Each
output is one sum over the inputs in order: by groups if groups have scales, by blocks if integer sums could overflow. It does not
depend on R, nor on other panels, rows or threads. So a row has the same bits alone, in a draft tree and in a prompt: verification
equals decoding.

The mode decides what a tile does with its sums: STORE them, ADD them to the existing outputs (a residual), or CONTINUE an
earlier sum (attention over a prefix, then over a tree's own keys).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence as Many
from typing import Any

from llvmlite import ir

from paceline.kernels.native.ahead import AHEAD, AHEAD_IN_PAIRS, LINE, lines_in_turn
from paceline.kernels.native.factors import (
    WORDS_OF,
    four_products,
    half_products,
    narrow_products,
    narrow_sum,
    pair_products,
    whole_numbers,
    widened,
)
from paceline.kernels.native.formats import BLOCK, GROUP, SUMMED, Format
from paceline.kernels.native.vectors import (
    BYTE_PAIR_PRODUCTS,
    F16,
    F32,
    I32,
    LANES,
    MACHINE,
    PAGES,
    PANEL,
    VECTOR,
    VECTORS,
    ZERO,
    constant,
    counted,
    counted_or_none,
    fused,
    in_blocks,
    load,
    once,
    prefetch,
    repeated,
    splat,
    store,
)  # fmt: skip

STORE, ADD, CONTINUE = 0, 1, 2
_TURNS = BLOCK // 4
"""Words of inputs per block of a row's adjacent activations."""
_SPARE = 5
"""Registers left for weights and broadcast activations."""
_Step = Callable[[Any, list[Any], list[Any]], list[Any]]
"""(number of a word, the word of every output, sums) -> the sums after it."""
_Products = Callable[[Any, Any, Any, Any], Any]
"""(builder, sums, weights, factors) -> the sums plus the products of weights and factors, lane by lane."""


def most_rows(vectors: int) -> int:
    """How many rows of sums, of this many vectors each, fit in registers."""
    return max((MACHINE.registers - _SPARE) // vectors, 1)


MOST_ROWS = min(most_rows(VECTORS // 2), 12)
"""Rows of the tallest tile of vectors; more rows are split into tiles of about equal height."""


def most_rows_of(form: Format, vectors: int) -> int:
    """As `most_rows`, for a format: activations in planes need two sums each."""
    return most_rows(2 * vectors if form.in_planes else vectors)


def emit_tile(module: Any, form: Format, rows: int, vectors: int, first: int, panels: int = 1) -> Any:
    """Declare and define a tile over the vectors [first, first + vectors) of a panel, or of two at once, once per module.

    Its arguments are int64 (addresses, bytes, counts): activations [K, rows] (`rows.py` has the layout of integers); the panel
    and its bytes; K; outputs of the panel; bytes between rows of outputs; mode; and, with two panels, the distance from the first
    to the second in panels.
    """

    def define(builder, activations, panel, panel_bytes, inputs, outputs, stride, mode, *behind):
        both = [panel, *(builder.add(panel, builder.mul(count, panel_bytes)) for count in behind)]
        results = [outputs, *(builder.add(outputs, builder.mul(count, constant(4 * PANEL))) for count in behind)]
        of_panels = [places_of(builder, result, stride, rows, range(first, first + vectors)) for result in results]
        places = [[place for of_panel in of_row for place in of_panel] for of_row in zip(*of_panels, strict=True)]
        start = begun(builder, places, mode)
        body = Body(builder, form, rows, vectors, first, both, panel_bytes, inputs)
        if form.by_group:
            sums = body.grouped(activations, inputs, start)
        elif form.scaled and form.activation_bits > 8:
            sums = body.blockwise(activations, inputs, start)
        else:
            opened = body.opened(activations, inputs, start)
            sums = body.walked(constant(0), body.words_in(inputs), opened, body.step(activations))
            sums = body.closed(activations, inputs, start, sums)
        ended(builder, places, mode, sums)

    return once(module, f"tile_{form.name}_{rows}_{vectors}_{first}_{panels}", 6 + panels, define)


def places_of(builder: Any, outputs: Any, stride: Any, rows: int, vectors: range) -> list[list[Any]]:
    """Addresses of each row's outputs in some vectors of a panel."""
    return [
        [
            builder.add(builder.add(outputs, builder.mul(stride, constant(row))), constant(4 * LANES * vector))
            for vector in vectors
        ]
        for row in range(rows)
    ]


def begun(builder: Any, places: list[list[Any]], mode: Any) -> list[Any]:
    """The initial accumulators: zeros, or in mode CONTINUE the existing outputs."""
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


def ended(builder: Any, places: list[list[Any]], mode: Any, sums: list[Any]) -> None:
    flat = [place for row in places for place in row]
    with builder.if_else(builder.icmp_signed("==", mode, constant(ADD))) as (adds, stores):
        with adds:
            for value, place in zip(sums, flat, strict=True):
                store(builder, builder.fadd(value, load(builder, place, VECTOR, 4)), place, 4)
        with stores:
            for value, place in zip(sums, flat, strict=True):
                store(builder, value, place, 4)


class Body:
    """The loops of one tile. Accumulators are lists in the order row, panel, vector.

    vectors, first: the vectors of each of its panels, one or two. laid: rows whose activations are stored together, among which
    the tile's begin at the `low`-th; by default, the tile's own rows. parts: number of walks over the panel, each with a part of
    its vectors or, in a tall tile (`tall`), of its rows. block: in a tall tile, the words before the current block, those in it,
    and the current part.
    """

    def __init__(
        self,
        builder: Any,
        form: Format,
        rows: int,
        vectors: int,
        first: int,
        panels: Many[Any],
        panel_bytes: Any,
        inputs: Any,
        laid: int | None = None,
        low: int = 0,
        parts: int | None = None,
    ) -> None:
        self.builder, self.form, self.rows, self.vectors = builder, form, rows, vectors * len(panels)
        self.first, self.each, self.panels, self.panel_bytes = first, vectors, panels, panel_bytes
        self.laid, self.low = laid or rows, low
        self.block: tuple[Any, Any, int] | None = None
        # each part of a panel prefetches its part of the next panel, so that prefetching is spread over all parts; in a cache of
        # values, whose panels have spare capacity, only the part in use
        whole = panel_bytes if form.scale_bytes else builder.mul(self.words_in(inputs), constant(form.bytes_together))
        share = builder.udiv(builder.mul(whole, constant(first)), constant(VECTORS))
        self._next = None if vectors == VECTORS else [builder.add(builder.add(panel, panel_bytes), share) for panel in panels]
        self._parts = parts or VECTORS // vectors
        # a turn takes enough words to prefetch one line on each page, which saves counting and address arithmetic
        self._unrolled = max(self._parts * PAGES * LINE // form.bytes_together, 1)

    def words_in(self, inputs: Any) -> Any:
        """Words per output."""
        return self.builder.udiv(inputs, constant(self.form.together))

    def step(self, activations: Any) -> _Step:
        """The function that adds a word's products to sums over all inputs: for integers exact in any order, else one product
        after another, for bfloat16 pair after pair."""
        form = self.form

        def multiplied(word: Any, words: list[Any], sums: list[Any]) -> list[Any]:
            if form.halved:
                return self._added_up(self._factors(activations, word, 2 * GROUP), words, half_products, sums)
            if form.scaled:
                return self._products(self._factors(activations, word, BLOCK), words, 0, sums)
            return self._multiplied(activations, self.builder.mul(word, constant(form.together)), words, sums)

        return multiplied

    def opened(self, activations: Any, inputs: Any, start: list[Any]) -> list[Any]:
        """The initial sums for `step`. start: the initial outputs."""
        return self._without_excess(self._behind(activations, inputs)) if self.form.scaled else start

    def closed(self, activations: Any, inputs: Any, start: list[Any], sums: list[Any]) -> list[Any]:
        """The outputs: integer sums are scaled at the end."""
        builder = self.builder
        if not self.form.scaled:
            return sums
        scale = self._scales(self._behind(activations, inputs), constant(0))
        return [
            fused(builder, builder.sitofp(value, VECTOR), one, there)
            for value, one, there in zip(sums, scale, start, strict=True)
        ]

    def _behind(self, activations: Any, inputs: Any) -> Any:
        """Address of the scales of rows of bytes, after the bytes."""
        return self.builder.add(activations, self.builder.mul(inputs, constant(self.laid)))

    def blockwise(self, activations: Any, inputs: Any, start: list[Any]) -> list[Any]:
        """Integer sums over as many inputs as fit in 32 bits, which are rounded and added, and scaled at the end."""
        builder, planes = self.builder, 2 if self.form.in_planes else 1
        running = self.kept([ZERO] * len(start))

        def multiplied(word: Any, words: list[Any], sums: list[Any]) -> list[Any]:
            if planes == 2:
                return self._added_up(self._planes(activations, word), words, four_products, sums)
            factors = self._factors(activations, word, 2 * BLOCK)
            sums = self._products(factors, words, 0, sums)
            return self._products([builder.add(place, constant(4)) for place in factors], words, 1, sums)

        with in_blocks(builder, builder.udiv(inputs, constant(4)), SUMMED // 4) as (before, count):
            sums = self.walked(before, count, [repeated(0)] * len(start) * planes, multiplied)
            if planes == 2:
                upper, lower = sums[: len(start)], sums[len(start) :]
                sums = [builder.add(builder.shl(high, repeated(8)), low) for high, low in zip(upper, lower, strict=True)]
            for place, value in zip(running, sums, strict=True):
                builder.store(builder.fadd(builder.load(place), builder.sitofp(value, VECTOR)), place)
        scale = self._scales(builder.add(activations, builder.mul(inputs, constant(2 * self.rows))), constant(0))
        return [fused(builder, builder.load(place), one, there) for place, one, there in zip(running, scale, start, strict=True)]

    def walked(self, first: Any, count: Any, start: list[Any], step: _Step) -> list[Any]:
        """The sums after `count` words of every output from the `first` on, `_unrolled` of them in a turn."""
        builder, each = self.builder, constant(self._unrolled)
        if self._unrolled == 1:
            with counted(builder, count, start) as loop:
                loop.next = self._turn(builder.add(first, loop.index), 1, loop.carried, step)
            return loop.carried
        with counted_or_none(builder, builder.udiv(count, each), start) as loop:
            loop.next = self._turn(builder.add(first, builder.mul(loop.index, each)), self._unrolled, loop.carried, step)
        left = builder.urem(count, each)
        begin = builder.add(first, builder.sub(count, left))
        with counted_or_none(builder, left, loop.carried) as rest:
            rest.next = self._turn(builder.add(begin, rest.index), 1, rest.carried, step)
        return rest.carried

    def _turn(self, first: Any, count: int, sums: list[Any], step: _Step) -> list[Any]:
        """The sums after so many words from the `first` on; as many bytes are prefetched as these words have."""
        offset, size = self._word_place(first), self.form.bytes_together
        words = [self._words(self.builder.add(offset, constant(word * size))) for word in range(count)]
        self._prefetch(offset, count * size)
        for word, of_outputs in enumerate(words):
            sums = step(self.builder.add(first, constant(word)), of_outputs, sums)
        return sums

    def _factors(self, activations: Any, turn: Any, row_bytes: int) -> list[Any]:
        """Addresses of each row's activations for the `turn`-th word. row_bytes: bytes of a row's block, of _TURNS words."""
        builder, turns = self.builder, _TURNS
        block = builder.mul(builder.udiv(turn, constant(turns)), constant(self.laid * row_bytes))
        within = builder.mul(builder.urem(turn, constant(turns)), constant(row_bytes // turns))
        first = builder.add(activations, builder.add(block, within))
        return [builder.add(first, constant((self.low + row) * row_bytes)) for row in range(self.rows)]

    def _planes(self, activations: Any, turn: Any) -> list[Any]:
        """Addresses of the `turn`-th word of each row's upper bytes, then of its lower ones."""
        builder = self.builder
        block = builder.mul(builder.udiv(turn, constant(_TURNS)), constant(2 * self.laid * BLOCK))
        first = builder.add(activations, builder.add(block, builder.mul(builder.urem(turn, constant(_TURNS)), constant(4))))
        return [builder.add(first, constant((plane * self.laid + row) * BLOCK)) for plane in (0, 1) for row in range(self.rows)]

    def kept(self, values: list[Any]) -> list[Any]:
        """Stack slots that hold these vectors."""
        places = [self.builder.alloca(value.type) for value in values]
        for place, value in zip(places, values, strict=True):
            self.builder.store(value, place)
        return places

    def grouped(self, activations: Any, inputs: Any, start: list[Any]) -> list[Any]:
        """Per group of inputs an integer sum, exact in any order, which is scaled and added to the sum of the groups before."""
        builder, form, rows = self.builder, self.form, self.rows
        steps, narrow = form.together // form.multiplied, form.activation_bits == 8 and bool(BYTE_PAIR_PRODUCTS)
        together = narrow_products if narrow else four_products if form.activation_bits == 8 else pair_products
        running = self.kept(start)
        with counted(builder, builder.udiv(inputs, constant(GROUP))) as group:
            offset = builder.mul(group.index, constant(form.group_bytes(GROUP)))
            scales = builder.add(activations, builder.mul(group.index, constant(rows * form.row_bytes(GROUP))))
            opening = self._without_excess(scales)
            with counted(builder, self._turns(inputs), [repeated(0)] * len(opening) if narrow else opening) as loop:
                place = builder.add(offset, self._word_place(loop.index))
                words = self._words(place)
                self._prefetch(place, form.bytes_together)
                first = builder.mul(builder.mul(loop.index, constant(steps)), constant(4 * rows))
                factors = builder.add(builder.add(scales, constant(8 * rows)), first)
                sums = loop.carried
                for step in range(steps):
                    places = [builder.add(factors, constant(4 * (step * rows + row))) for row in range(rows)]
                    weights = [whole_numbers(builder, form, word, step) for word in words]
                    sums = self._added_up(places, weights, together, sums)
                loop.next = sums
            sums = loop.carried
            if narrow:
                sums = [narrow_sum(builder, *both) for both in zip(opening, sums, strict=True)]
            for place, value, scale in zip(running, sums, self._scales(scales, offset), strict=True):
                builder.store(fused(builder, builder.sitofp(value, VECTOR), scale, builder.load(place)), place)
        return [builder.load(place) for place in running]

    def _scales(self, scales: Any, offset: Any) -> Iterator[Any]:
        """The factor of each accumulator's sum.

        scales: address of the rows' scales. offset: of the outputs' scales in the panel.
        """
        for row in range(self.rows):
            size = splat(self.builder, load(self.builder, self.builder.add(scales, constant(4 * (self.low + row))), F32, 4))
            for vector in range(self.vectors):
                yield self.builder.fmul(self._scale(vector, offset), size)

    def _without_excess(self, scales: Any) -> list[Any]:
        """The initial sums over a group, minus the contribution of every weight's excess. The sums of a group's activations
        follow the scales of all rows.
        """
        if self.form.excess == 0:
            return [repeated(0)] * (self.rows * self.vectors)
        start = []
        for row in range(self.rows):
            total = load(self.builder, self.builder.add(scales, constant(4 * (self.laid + self.low + row))), I32, 4)
            start += [splat(self.builder, self.builder.mul(total, I32(-self.form.excess)))] * self.vectors
        return start

    def _word_place(self, turn: Any) -> Any:
        """Offset of a turn's words from the beginning of their group."""
        return self.builder.add(constant(self.form.scale_bytes), self.builder.mul(turn, constant(self.form.bytes_together)))

    def _products(self, factors: list[Any], words: list[Any], step: int, sums: list[Any]) -> list[Any]:
        """The sums after the `step`-th inputs of these words. factors: addresses of a word of each row."""
        weights = [whole_numbers(self.builder, self.form, word, step) for word in words]
        return self._added_up(factors, weights, four_products if self.form.activation_bits == 8 else pair_products, sums)

    def _added_up(self, factors: list[Any], weights: list[Any], together: _Products, sums: list[Any]) -> list[Any]:
        """The sums after the products of these weights with a word of each row, which lie at `factors`."""
        builder, following = self.builder, []
        for row, place in enumerate(factors):
            factor = splat(builder, load(builder, place, I32, 4))
            for vector in range(self.vectors):
                following.append(together(builder, sums[row * self.vectors + vector], weights[vector], factor))
        return following

    def _turns(self, inputs: Any) -> Any:
        """Words per group: GROUP / together, computed at run time from the panel's size.

        With a constant, LLVM would unroll the loop and move its prefetches to the front, where they delay the loads: a fifth
        slower at one row, a third at four (ADR 0004).
        """
        builder, form = self.builder, self.form
        group_bytes = builder.udiv(self.panel_bytes, builder.udiv(inputs, constant(GROUP)))
        return builder.udiv(builder.sub(group_bytes, constant(form.scale_bytes)), constant(form.bytes_together))

    def _prefetch(self, offset: Any, reach: int) -> None:
        """Prefetch `reach` bytes, or this part's share of them, so far after `offset` that they arrive when they are needed."""
        builder, level = self.builder, 1
        ahead = constant(AHEAD if len(self.panels) == 1 else AHEAD_IN_PAIRS)
        places = [builder.add(panel, ahead) for panel in self.panels]
        if self.block is not None:
            # each part of a tall tile prefetches its share of the memory ahead of the block
            before, count, part = self.block
            begin = self._word_place(before)
            walked = builder.sub(offset, begin)
            passed = builder.mul(builder.mul(count, constant(self.form.bytes_together)), constant(part))
            offset = builder.add(begin, builder.udiv(builder.add(passed, walked), constant(self._parts)))
            reach = -(-reach // self._parts)
        elif self._next is not None:
            places, offset, reach = self._next, builder.udiv(offset, constant(self._parts)), -(-reach // self._parts)
            # into L2: a whole panel ahead, lines would be evicted from L1 before use, and would evict this panel's lines
            level = 2
        for place in places:
            for line in lines_in_turn(builder, builder.add(place, offset), reach):
                prefetch(builder, line, level)

    def _at(self, vector: int, offset: Any, element_bytes: int) -> Any:
        """Address of a vector of elements at a byte offset in its panel."""
        panel, vector = divmod(vector, self.each)
        within = constant((self.first + vector) * LANES * element_bytes)
        return self.builder.add(self.panels[panel], self.builder.add(offset, within))

    def _scale(self, vector: int, offset: Any) -> Any:
        half = load(self.builder, self._at(vector, offset, 2), ir.VectorType(F16, LANES), 2 * LANES)
        return self.builder.fpext(half, VECTOR)

    def _words(self, offset: Any) -> list[Any]:
        """The words at an offset in the panels."""
        kind, size = WORDS_OF[self.form.name], self.form.word_bytes
        return [load(self.builder, self._at(vector, offset, size), kind, size * LANES) for vector in range(self.vectors)]

    def _multiplied(self, activations: Any, index: Any, words: list[Any], sums: list[Any]) -> list[Any]:
        """The sums after the `together` inputs from `index` on, which these words hold."""
        builder, form, row_bytes = self.builder, self.form, 4 * self.laid
        for step in range(form.together):
            weights = [widened(builder, form, word, step) for word in words]
            place = builder.add(activations, builder.mul(builder.add(index, constant(step)), constant(row_bytes)))
            following = []
            for row in range(self.rows):
                value = splat(builder, load(builder, builder.add(place, constant(4 * (self.low + row))), F32, 4))
                for vector in range(self.vectors):
                    following.append(fused(builder, weights[vector], value, sums[row * self.vectors + vector]))
            sums = following
        return sums
