"""Tree attention over a paged cache, in Triton: a flat ragged step of chunks, decodes and draft trees in two launches or one.

Keys and values of a layer lie in pages [pages, page_size, K, D]. A row attends to positions, not to slots: `StepTables` gives the
slot of each position's key for that row. The first launch works on (item, kv head), where an item is a tile of rows and a part of
the positions (`work_items.py`); the second merges a row's splits by log-sum-exp. With enough tiles, one program walks several
splits and merges as it goes. After a long text the results to be merged may be large: then key heads take turns, two launches for
some of them at a time.

Verifying and decoding give the same bits, and a row's bits do not depend on the rows beside it, because
- splits and the blocks within them begin at fixed positions, counted from 0, and are summed in order; which of them a row sums
  follows from its own position and the layer's window alone;
- a staged key is summed at its position's place, as if it were committed. In a block where the paths of a draft diverge, the rows
  of a tile take turns: each computes the whole tile against its own keys and keeps its own line of the result. Rows that have a
  tile each are computed in the same way;
- an element of a tensor core's product [rows, D] x [D, block_keys] depends neither on its place in the tile nor on how tall the
  tile is (`benchmarks/gpu.py` checks this on the device at hand; BLAS under the interpreter lacks this property, so the tests
  substitute a product that has it), and sums across a tile are sums of integers;
- few compiled kernels serve all steps of a layer: arguments that vary between steps are not specialised, and the same operations
  add up splits, walked or merged.

Source: split positions and their merge after Flash-Decoding (Dao et al., 2023) and FlashAttention-2 (arXiv:2307.08691, section
3.1); tree attention after SpecInfer (arXiv:2305.09781, section 4.2); pages after PagedAttention (arXiv:2309.06180, section 4);
sinks as logits of the softmax after GPT-OSS.
"""

# pyright: reportMissingImports=false, reportOperatorIssue=false, reportCallIssue=false, reportIndexIssue=false
# ... for Triton is optional, and its stubs know neither the values of a kernel nor the options of a launch

from __future__ import annotations

import torch
import triton
import triton.language as tl

from paceline.kernels.attention_tiling import Tiling
from paceline.kernels.overlap import begin, overlapped
from paceline.kernels.step_tables import RowTables

_SCRATCH = 1 << 26
"""Most numbers that splits leave to be merged; exceeded only if a single key head leaves more."""


@triton.jit
def _capped(scores, cap):
    # tanh from exp2, exact at both ends: Triton's interpreter has no tanh
    return cap * (1.0 - 2.0 / (tl.exp2(scores * (2.0 * 1.4426950408889634 / cap)) + 1.0))


@triton.jit
def _taken_in(
    mix, mass, peak, asked, keys, values, key_scales, value_scales, place, live, seen, scale, cap,
    key_dim: tl.constexpr, value_dim: tl.constexpr, key_line, value_line, capped: tl.constexpr, scaled: tl.constexpr,
    wide: tl.constexpr,
):  # fmt: skip
    """Add one more block of keys. place: each key's index in the cache, in units of heads; live: whether the key exists; seen:
    which lines see it."""
    found = tl.load(
        keys + place[:, None] * key_dim + key_line[None, :], mask=live[:, None] & (key_line < key_dim)[None, :], other=0.0
    )
    if wide:
        scores = tl.dot(asked.to(tl.float32), tl.trans(found.to(tl.float32)), input_precision="ieee")
    else:
        scores = tl.dot(asked, tl.trans(found.to(asked.dtype)), input_precision="ieee")
    if scaled:
        scores *= tl.load(key_scales + place, mask=live, other=0.0)[None, :]
    scores *= scale
    if capped:
        scores = _capped(scores, cap)
    scores *= 1.4426950408889634
    scores = tl.where(seen, scores, float("-inf"))

    highest = tl.max(scores, 1)
    grown = tl.maximum(peak, highest)
    base = tl.where(grown == float("-inf"), 0.0, grown)
    weights = tl.exp2(scores - base[:, None])
    fade = tl.exp2(peak - base)
    held = tl.load(
        values + place[:, None] * value_dim + value_line[None, :],
        mask=live[:, None] & (value_line < value_dim)[None, :],
        other=0.0,
    )
    if scaled:
        held = (held.to(tl.float32) * tl.load(value_scales + place, mask=live, other=0.0)[:, None]).to(asked.dtype)
    held = held.to(asked.dtype)
    if wide:
        more = tl.dot(weights.to(asked.dtype).to(tl.float32), held.to(tl.float32), input_precision="ieee")
    else:
        more = tl.dot(weights.to(asked.dtype), held, input_precision="ieee")
    # a line that sees none of these keys keeps its exact bits, even if another line's values overflowed
    touched = tl.max(seen.to(tl.int32), 1) > 0
    mix = tl.where(touched[:, None], mix * fade[:, None] + more, mix)
    # the sum of integers does not depend on the order in which a tile of another height adds them; they are scaled by the block's
    # own largest weight, so that a long tail of small weights does not vanish
    scaling = 24.0 + tl.minimum(tl.floor(base - highest), 100.0)
    counts = tl.sum((weights * tl.exp2(scaling)[:, None] + 0.5).to(tl.int32), 1)
    mass = tl.where(touched, tl.fma(mass, fade, counts.to(tl.float32) * tl.exp2(-scaling)), mass)
    return mix, mass, grown


@triton.jit
def _start_of(split, split_keys: tl.constexpr, near_keys: tl.constexpr, near_splits: tl.constexpr):
    far = near_splits * near_keys + (split - near_splits) * split_keys
    return tl.where(split < near_splits, split * near_keys, far)


@triton.jit
def _split_of(position, split_keys: tl.constexpr, near_keys: tl.constexpr, near_splits: tl.constexpr):
    far = position - near_splits * near_keys
    return tl.where(far < 0, position // near_keys, near_splits + far // split_keys)


@triton.jit
def _next_split(position, split_keys: tl.constexpr, near_keys: tl.constexpr, near_splits: tl.constexpr):
    """Start of the split after the one that contains a position."""
    return _start_of(_split_of(position, split_keys, near_keys, near_splits) + 1, split_keys, near_keys, near_splits)


@triton.jit
def _added(mix, mass, peak, its_mix, its_mass, its_peak):
    """Add one more split to the lines' sums. Two kernels add up splits and must round alike, hence explicit fma."""
    grown = tl.maximum(peak, its_peak)
    base = tl.where(grown == float("-inf"), 0.0, grown)
    fade = tl.exp2(peak - base)
    share = tl.exp2(its_peak - base)
    return tl.fma(mix, fade[:, None] + tl.zeros_like(mix), its_mix * share[:, None]), tl.fma(mass, fade, its_mass * share), grown


@triton.jit
def _begun_anew(mix, mass, peak, its_mix, its_mass, its_peak):
    """Add a finished split to the lines' sums, and reset the sums of the current split."""
    mix, mass, peak = _added(mix, mass, peak, its_mix, its_mass, its_peak)
    return mix, mass, peak, tl.zeros_like(its_mix), tl.zeros_like(its_mass), tl.full(its_peak.shape, float("-inf"), tl.float32)


@triton.jit
def _ended(mix, mass, peak, sinks, heads, there, sunk: tl.constexpr):
    """Divide by the sum of weights, including the sink of each line's head. Unused lines have zeros."""
    if sunk:
        sink = tl.load(sinks + heads).to(tl.float32)
        log2_e = tl.full(sink.shape, 1.4426950408889634, tl.float32)
        grown = tl.maximum(peak, sink * log2_e)
        fade = tl.exp2(peak - grown)
        mix = mix * fade[:, None]
        # explicit fma, as in `_added`
        mass = tl.fma(mass, fade, tl.exp2(tl.fma(sink, log2_e, -grown)))
    return mix / tl.where(there, mass, 1.0)[:, None]


@triton.jit(
    do_not_specialize=[
        "query_row", "query_head", "programs", "walked", "first_head", "at_once", "table_width", "tail_width", "window"
    ]
)  # fmt: skip
def _attend_splits(
    query, keys, values, key_scales, value_scales, sinks, positions, items, blocks, tail, mixed, peaks, masses, out,
    query_row, query_head, programs, walked, first_head, at_once, table_width, tail_width, window, scale, cap,
    kv_heads: tl.constexpr, group: tl.constexpr, key_dim: tl.constexpr, value_dim: tl.constexpr, key_lines: tl.constexpr,
    value_lines: tl.constexpr, page_size: tl.constexpr, tile_lines: tl.constexpr, block_keys: tl.constexpr,
    split_keys: tl.constexpr, near_keys: tl.constexpr, near_splits: tl.constexpr, capped: tl.constexpr, scaled: tl.constexpr,
    sunk: tl.constexpr, walks: tl.constexpr, wide: tl.constexpr, early: tl.constexpr,
):  # fmt: skip
    """One tile and kv head, and the first `walked` splits, one after another, or one of the later splits. Scores are in base 2.
    Writes per row, head and program: the unnormalised mix of values [T, H, P, D'], the largest score and the sum of weights
    [T, H, P], all float32; if one program walks all splits, it writes the final result to `out` instead. The launch covers, and
    the buffers have room for, `at_once` kv heads from `first_head` on."""
    begin(early)
    # heads of one slot are adjacent in a page, so programs of different heads run side by side
    item = items + tl.program_id(0) // at_once * 5
    sequence = tl.load(item)
    first = tl.load(item + 1)
    rows = tl.load(item + 2)
    straight = tl.load(item + 3)
    part = tl.load(item + 4)
    kv_head = first_head + tl.program_id(0) % at_once

    line = tl.arange(0, tile_lines)
    member = line // group
    head = kv_head * group + line % group
    used = member < rows
    row = first + member
    position = tl.load(positions + row, mask=used, other=-1)
    edge = tl.where(window > 0, tl.maximum(position - window + 1, 0), 0)
    last = tl.max(position, 0)
    low = tl.where(part > 0, _start_of(walked + part - 1, split_keys, near_keys, near_splits), 0)
    behind = _start_of(walked + part, split_keys, near_keys, near_splits)
    end = tl.minimum(behind, last + 1)
    lowest = tl.min(tl.where(used, edge, last), 0)
    if (low > last) | (behind <= lowest):
        return

    key_line = tl.arange(0, key_lines)
    value_line = tl.arange(0, value_lines)
    asked = tl.load(
        query + row[:, None].to(tl.int64) * query_row + head[:, None] * query_head + key_line[None, :],
        mask=used[:, None] & (key_line < key_dim)[None, :],
        other=0.0,
    )
    peak = tl.full([tile_lines], float("-inf"), tl.float32)
    mass = tl.zeros([tile_lines], tl.float32)
    mix = tl.zeros([tile_lines, value_lines], tl.float32)
    # sums over the finished splits
    sum_mix, sum_mass, sum_peak = mix, mass, peak
    at_first = tl.maximum(low, lowest // block_keys * block_keys)
    border = _next_split(at_first, split_keys, near_keys, near_splits)
    # from this block on, the paths of a draft diverge; before it, slots equal positions for all rows of the tile
    parting = tl.where(last >= straight, tl.minimum(straight // block_keys * block_keys, end), end)
    for at in range(at_first, parting, block_keys):
        if walks:  # noqa: SIM102
            if at == border:
                sum_mix, sum_mass, sum_peak, mix, mass, peak = _begun_anew(sum_mix, sum_mass, sum_peak, mix, mass, peak)
                border = _next_split(at, split_keys, near_keys, near_splits)
        key_position = at + tl.arange(0, block_keys)
        live = key_position <= last
        if page_size % block_keys == 0:
            page = tl.load(blocks + sequence * table_width + at // page_size)
            place = page.to(tl.int64) * page_size + at % page_size + tl.arange(0, block_keys)
        else:
            page = tl.load(blocks + sequence * table_width + key_position // page_size, mask=live, other=0)
            place = page.to(tl.int64) * page_size + key_position % page_size
        seen = (key_position[None, :] <= position[:, None]) & (key_position[None, :] >= edge[:, None])
        place = place * kv_heads + kv_head
        mix, mass, peak = _taken_in(
            mix, mass, peak, asked, keys, values, key_scales, value_scales, place, live, seen, scale, cap,
            key_dim, value_dim, key_line, value_line, capped, scaled, wide,
        )  # fmt: skip
    for at in range(tl.maximum(at_first, parting), end, block_keys):
        if walks:  # noqa: SIM102
            if at == border:
                sum_mix, sum_mass, sum_peak, mix, mass, peak = _begun_anew(sum_mix, sum_mass, sum_peak, mix, mass, peak)
                border = _next_split(at, split_keys, near_keys, near_splits)
        key_position = at + tl.arange(0, block_keys)
        below = key_position - straight
        for turn in range(rows):
            live = key_position <= tl.load(positions + first + turn)
            staged = live & (below >= 0)
            slot = tl.where(staged, tl.load(tail + (first + turn) * tail_width + below, mask=staged, other=0), key_position)
            page = tl.load(blocks + sequence * table_width + slot // page_size, mask=live, other=0)
            place = page.to(tl.int64) * page_size + slot % page_size
            seen = (key_position[None, :] <= position[:, None]) & (key_position[None, :] >= edge[:, None])
            seen &= (member == turn)[:, None]
            place = place * kv_heads + kv_head
            mix, mass, peak = _taken_in(
                mix, mass, peak, asked, keys, values, key_scales, value_scales, place, live, seen, scale, cap,
                key_dim, value_dim, key_line, value_line, capped, scaled, wide,
            )  # fmt: skip
    if walks:
        mix, mass, peak = _added(sum_mix, sum_mass, sum_peak, mix, mass, peak)

    stored = used[:, None] & (value_line < value_dim)[None, :]
    if programs == 1:
        result = _ended(mix, mass, peak, sinks, head, used, sunk)
        cell = row.to(tl.int64) * (kv_heads * group) + head
        tl.store(out + cell[:, None] * value_dim + value_line[None, :], result.to(out.dtype.element_ty), mask=stored)
    else:
        held = (row.to(tl.int64) * (at_once * group) + head - first_head * group) * programs + part
        tl.store(peaks + held, peak, mask=used)
        tl.store(masses + held, mass, mask=used)
        tl.store(mixed + held[:, None] * value_dim + value_line[None, :], mix, mask=stored)


@triton.jit(do_not_specialize=["programs", "walked", "first_head", "window"])
def _merge_splits(
    mixed, peaks, masses, sinks, positions, out, programs, walked, first_head, window,
    heads: tl.constexpr, value_dim: tl.constexpr, value_lines: tl.constexpr, split_keys: tl.constexpr, near_keys: tl.constexpr,
    near_splits: tl.constexpr, sunk: tl.constexpr, early: tl.constexpr,
):  # fmt: skip
    """One row and head, from `first_head` on: add up its own splits, lowest positions first, then the sink, and divide by the sum
    of weights."""
    begin(early)
    row = tl.program_id(0)
    head = first_head + tl.program_id(1)
    value_line = tl.arange(0, value_lines)
    there = (value_line < value_dim)[None, :]
    position = tl.load(positions + row)
    edge = tl.where(window > 0, tl.maximum(position - window + 1, 0), 0)
    held = row.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    peak = tl.full([1], float("-inf"), tl.float32)
    mass = tl.zeros([1], tl.float32)
    mix = tl.zeros([1, value_lines], tl.float32)
    lone = tl.zeros([1], tl.int32)
    # the walked splits count as one
    first = tl.maximum(_split_of(edge, split_keys, near_keys, near_splits) - walked + 1, 0)
    last = tl.maximum(_split_of(position, split_keys, near_keys, near_splits) - walked + 1, 0)
    # padding has position -1 and merges nothing
    for part in range(first, tl.where(position < 0, 0, last + 1)):
        place = held * programs + part
        its_mix = tl.load(mixed + place * value_dim + value_line[None, :], mask=there, other=0.0)
        its_mass, its_peak = tl.load(masses + place + lone), tl.load(peaks + place + lone)
        mix, mass, peak = _added(mix, mass, peak, its_mix, its_mass, its_peak)
    result = _ended(mix, mass, peak, sinks, head + lone, position + lone >= 0, sunk)
    cell = row.to(tl.int64) * heads + head
    tl.store(out + cell * value_dim + value_line[None, :], result.to(out.dtype.element_ty), mask=there)


def _at_once(rows: int, heads: int, kv_heads: int, programs: int, value_dim: int) -> int:
    """How many kv heads one launch covers: all, unless their results exceed `_SCRATCH`; then launches of equal size."""
    if programs == 1:
        return kv_heads
    each = rows * (heads // kv_heads) * programs * value_dim
    turns = triton.cdiv(kv_heads, max(_SCRATCH // each, 1))
    return triton.cdiv(kv_heads, turns)


def tree_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: RowTables,
    *,
    scale: float,
    tiling: Tiling,
    window: int = 0,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    key_scales: torch.Tensor | None = None,
    value_scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of every row of a step, whose own keys and values are already in the pages; [T, H, D'] in the query's dtype.

    query: float32, float16 or bfloat16 [T, H, D]; rows may be strided, D is contiguous. keys: [pages, page_size, K, D] and
    values: [pages, page_size, K, D'], contiguous, in the query's dtype or, with scales, float8_e4m3fn or int8. key_scales,
    value_scales: float32 [pages, page_size, K]. window: how many positions a row sees, its own included; 0 for all. softcap:
    scores become softcap * tanh(score / softcap). sinks: [H], a logit per head that joins the softmax and has no value.

    Raises ValueError if the shapes do not agree. Never waits for the device, so that a graph can capture it.
    """
    rows, heads, key_dim = query.shape
    _, page_size, kv_heads, value_dim = values.shape
    # the numbers of pages may differ if memory ran out while they grew: no page is used that either of them lacks
    if rows != tables.extent.rows or keys.shape[1:] != (page_size, kv_heads, key_dim) or page_size != tables.page_size:
        raise ValueError("query, pages and tables do not describe the same step")
    if (
        heads % kv_heads
        or tables.division != tiling.division(heads, kv_heads)
        or tiling.split % tiling.keys
        or tiling.near % tiling.keys
        or tiling.keys > 64
    ):
        raise ValueError("the tiling does not fit the heads, the tables or itself")
    if query.stride(2) != 1 or not keys.is_contiguous() or not values.is_contiguous():
        raise ValueError("head dimensions and pages have to be contiguous")
    if (key_scales is None) != (value_scales is None):
        raise ValueError("keys and values are scaled together or not at all")
    walked, programs = tables.walked
    # if all splits are walked, padding rows are never written
    out = query.new_zeros(rows, heads, value_dim) if programs == 1 else query.new_empty(rows, heads, value_dim)
    group, at_once = heads // kv_heads, _at_once(rows, heads, kv_heads, programs, value_dim)
    mixed = query.new_empty(rows if programs > 1 else 0, at_once * group, programs, value_dim, dtype=torch.float32)
    peaks, masses = mixed.new_empty(mixed.shape[:3]), mixed.new_empty(mixed.shape[:3])
    value_lines = max(16, triton.next_power_of_2(value_dim))
    for first in range(0, kv_heads, at_once):
        count = min(at_once, kv_heads - first)
        _attend_splits[(tables.extent.items * count,)](
            query, keys, values, key_scales, value_scales, sinks, tables.positions, tables.items, tables.blocks, tables.tail,
            mixed, peaks, masses, out, query.stride(0), query.stride(1), programs, walked, first, count, tables.extent.blocks,
            tables.extent.depth, window, float(scale), float(softcap or 0.0),
            kv_heads=kv_heads, group=group, key_dim=key_dim, value_dim=value_dim,
            key_lines=max(16, triton.next_power_of_2(key_dim)), value_lines=value_lines, page_size=page_size,
            tile_lines=tiling.rows, block_keys=tiling.keys, split_keys=tiling.split, near_keys=tiling.near,
            near_splits=tiling.near_splits, capped=softcap is not None, scaled=key_scales is not None, sunk=sinks is not None,
            walks=walked > 1,
            # the interpreter keeps bfloat16 as raw bits and cannot multiply it; float32 holds its products exactly
            wide=not query.is_cuda and query.dtype is torch.bfloat16,
            num_warps=4, num_stages=tiling.stages, enable_fp_fusion=True, **overlapped(query.device),
        )  # fmt: skip
        if programs > 1:
            _merge_splits[(rows, count * group)](
                mixed, peaks, masses, sinks, tables.positions, out, programs, walked, first * group, window,
                heads=heads, value_dim=value_dim, value_lines=value_lines, split_keys=tiling.split, near_keys=tiling.near,
                near_splits=tiling.near_splits, sunk=sinks is not None, num_warps=4,
                enable_fp_fusion=True, **overlapped(query.device),
            )  # fmt: skip
    return out
