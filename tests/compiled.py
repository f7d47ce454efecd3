"""Calls compiled code from tests: products by their addresses, helpers through one function that selects them by number."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numba
import numpy as np
import torch
from numba import types

from paceline.kernels.compiled import SOURCES
from paceline.kernels.native import arithmetic, choosing, rows
from paceline.kernels.native.entries import PRODUCT_WORDS, product
from paceline.kernels.native.formats import BLOCK, GROUP, LARGEST, Format
from paceline.kernels.native.layout import BYTES, HALVES, HALVES_AND_REST, WORDS
from paceline.kernels.native.matrix_unit import fewest_rows
from paceline.kernels.native.memory import float_of, floats, half_copied, put, put_half
from paceline.kernels.native.needs import laid_as
from paceline.kernels.native.packed import Packed
from paceline.kernels.native.tiles import STORE
from paceline.kernels.native.transposition import turned
from paceline.kernels.native.vectors import PANEL

(
    RMS_NORM,
    LAYER_NORM,
    SOFT_MAX,
    SOFT_CAP,
    SILU,
    GELU,
    ROTATED,
    EXPONENTIAL,
    SCALED,
    ADDED,
    HASHED,
    LIKELIEST,
    DRAWN,
    NARROWED,
    PART_BEGIN,
    SHARE,
    FILLED,
    TURNED,
    HALVED,
) = range(19)

_f = np.float32


def _many(sources: str) -> Any:
    # compiled as one function for all helpers: each one compiled on its own would cost a second
    def call(which, a, b, c, count, more, number, out):
        _ = sources
        if which == 0:
            arithmetic.rms_norm(a, count, b, number, out)
        elif which == 1:
            arithmetic.layer_norm(a, count, b, c, number, out)
        elif which == 2:
            put(floats(out), 0, arithmetic.soft_max(a, count, number))
        elif which == 3:
            arithmetic.soft_capped(a, count, number)
        elif which == 4:
            arithmetic.silu_gated(a, b, count, out)
        elif which == 5:
            arithmetic.gelu_gated(a, b, count, out)
        elif which == 6:
            arithmetic.rotated(a, count, b, c)
        elif which == 7:
            for k in range(count):
                put(floats(out), k, arithmetic.exponential(floats(a)[k]))
        elif which == 8:
            arithmetic.scaled(a, count, number)
        elif which == 9:
            arithmetic.added(a, count, b)
        elif which == 10:
            for token in range(count):
                put_word(out + 4 * token, choosing.hashed(more, token))
        elif which == 11:
            put_word(out, choosing.likeliest(a, count))
        elif which == 12:
            put_word(out, choosing.chosen(a, count, number, more, 0, 1.0, np.float32(-np.inf), 0))
        elif which == 13:
            laid = int(number)
            rows.narrowed(laid, a, count, padded_inputs(count, BLOCK if laid in (BYTES, WORDS) else GROUP), more, out, b, c)
        elif which == 14:
            parts = rows.parts_of(count, more)
            for part in range(parts + 1):
                put_word(out + 4 * part, rows.part_begin(count, parts, part))
        elif which == 15:
            for thread in range(more + 1):
                put_word(out + 4 * thread, rows.share(count, thread, more, b != 0))
        elif which == 16:
            arithmetic.filled(a, count, more, number)
        elif which == 17:
            turned(a, b, count, more, out)
        else:
            for k in range(count):
                put_half(b + 2 * k, floats(a)[k])
                half_copied(c + 2 * k, b + 2 * k)

    eight = [types.int64] * 6 + [types.float32, types.int64]
    return numba.cfunc(types.void(*eight), cache=True, nogil=True, error_model="numpy")(call)


@numba.njit(inline="always")
def put_word(at, word):
    put(floats(at), 0, float_of(np.int32(word)))


@numba.njit(inline="always")
def padded_inputs(count, multiple):
    return (count + multiple - 1) // multiple * multiple


@cache
def _called() -> Any:
    kinds = [ctypes.c_int64] * 6 + [ctypes.c_float, ctypes.c_int64]
    return ctypes.CFUNCTYPE(None, *kinds)(_many(SOURCES).address)


def call(
    which: int,
    a: torch.Tensor | None = None,
    b: torch.Tensor | int = 0,
    c: torch.Tensor | int = 0,
    *,
    count: int,
    more: int = 0,
    number: float = 0.0,
    out: torch.Tensor | None = None,
) -> None:
    """Tensors are passed as addresses; they must be contiguous."""
    addresses = [one.data_ptr() if isinstance(one, torch.Tensor) else one or 0 for one in (a, b, c, out)]
    _called()(which, *addresses[:3], count, more, number, addresses[3])


@cache
def _product(name: str) -> Any:
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * PRODUCT_WORDS)(product(name).address)


def laid_out(activations: torch.Tensor, packed: Packed) -> torch.Tensor:
    """Rows [R, K] as the tile layout of a format; written again independently, from the description in `rows.py`."""
    count, inputs = activations.shape
    full = torch.zeros(count, packed.padded_inputs)
    full[:, :inputs] = activations
    bits = packed.form.activation_bits
    if laid_as(packed.form) == HALVES:
        return full.bfloat16().view(count, -1, GROUP).permute(1, 0, 2).contiguous().view(torch.int8).flatten()
    if laid_as(packed.form) == HALVES_AND_REST:
        upper = full.bfloat16()
        both = torch.stack([upper, (full - upper.float()).bfloat16()], 1)
        return both.view(count, 2, -1, GROUP).permute(2, 1, 0, 3).contiguous().view(torch.int8).flatten()
    if not bits:
        return full.T.contiguous()
    groups = full.view(count, -1, packed.form.group(packed.padded_inputs))
    whole, scales = quantized(groups, packed.form)
    if packed.form.scaled_once:
        whole = whole.view(count, -1, BLOCK)
        if bits == 8:
            laid = whole.to(torch.int8)
        elif packed.form.in_planes or count >= fewest_rows(packed.form):
            upper = (whole + 128).div(256, rounding_mode="floor")
            laid = torch.cat([upper, whole - 256 * upper]).to(torch.int8)
        else:
            laid = whole.to(torch.int16).unflatten(2, (-1, 4))[..., [0, 2, 1, 3]].flatten(2).view(torch.int8)
        blocks, whole = laid.transpose(0, 1).flatten(), whole.view(count, 1, -1)
        head = scales[:, 0].view(torch.int32)
        if bits == 8:
            head = torch.cat([head, whole[:, 0].sum(-1, dtype=torch.int32)])
        spare = torch.full((count * BLOCK - 4 * len(head),), 77, dtype=torch.int8)
        return torch.cat([blocks, head.view(torch.int8), spare])
    parts = []
    for group in range(groups.shape[1]):
        words = whole[:, group].to(torch.int8 if bits == 8 else torch.int16).view(torch.int32)
        head = torch.stack([scales[:, group].view(torch.int32), whole[:, group].sum(-1, dtype=torch.int32)])
        parts.append(torch.cat([head, words.T]).flatten())
    return torch.cat(parts).view(torch.int8)


def quantized(groups: torch.Tensor, form: Format) -> tuple[torch.Tensor, torch.Tensor]:
    """Activations [..., group] quantized to int32, and their scales [...]."""
    largest = LARGEST[form.activation_bits] if form.scaled_once else 2 ** (form.activation_bits - 1) - 1
    scales = groups.abs().amax(-1) / largest
    inverse = torch.where(scales >= 2.0**-126, 1 / scales, 0.0)
    return (groups * inverse[..., None] + 0.5).floor().to(torch.int32), scales


def multiplied(
    packed: Packed,
    activations: torch.Tensor,
    *,
    outputs: torch.Tensor | None = None,
    mode: int = STORE,
    panels: tuple[int, int] | None = None,
    inputs: int | None = None,
) -> torch.Tensor:
    """float32 [R, padded N]: the product of rows [R, K], at most `highest_tile`, with packed weights.

    panels: which outputs to compute; all unless given. inputs: how many are read, padding included unless given.
    """
    count = activations.shape[0]
    if outputs is None:
        outputs = torch.full((count, packed.panels * PANEL), torch.nan)
    tile = laid_out(activations, packed)
    low, high = panels or (0, packed.panels)
    _product(packed.form.name)(
        count, tile.data_ptr(), packed.data.data_ptr(), packed.data.shape[1], inputs or packed.padded_inputs, outputs.data_ptr(),
        4 * outputs.shape[1], low, high, mode,
    )  # fmt: skip
    return outputs


def as_read(activations: torch.Tensor, form: Format) -> torch.Tensor:
    """float32 [..., K]: activations as a format represents them when it multiplies."""
    if laid_as(form) == HALVES:
        return activations.bfloat16().float()
    if laid_as(form) == HALVES_AND_REST:
        upper = activations.bfloat16().float()
        return upper + (activations - upper).bfloat16().float()
    if not form.scaled:
        return activations
    inputs = activations.shape[-1]
    full = form.padded(inputs)
    groups = torch.nn.functional.pad(activations, (0, full - inputs)).unflatten(-1, (-1, form.group(full)))
    whole, scales = quantized(groups, form)
    return (whole * scales[..., None]).flatten(-2)[..., :inputs]
