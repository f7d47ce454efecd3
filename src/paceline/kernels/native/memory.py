"""Memory and threads in compiled code: floats at an address, counters that threads share, a barrier.

A kernel gets addresses, since its data (weights, caches, scratch) lies in many arrays of many shapes.
"""

from __future__ import annotations

from typing import Any

import numba.extending
import numpy as np
from llvmlite import ir
from numba import types
from numba.np import numpy_support

from paceline.kernels.native.layout import FLOAT_KINDS
from paceline.kernels.native.vectors import F16, F32, F64, I32, I64, MACHINE, external, prefetch

# Any: Numba infers types itself, and a type checker would only see functions with the wrong number of arguments
intrinsic: Any = numba.extending.intrinsic
carray: Any = numpy_support.carray

HELPER: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Options of functions that are called from kernels only: Python wrappers would take longer to compile than the functions."""
helper, inlined = numba.njit(**HELPER), numba.njit(**HELPER, inline="always")
plain = numba.njit(**HELPER, fastmath={"contract"})
"""For sums that must be taken in the order that is written."""
sums = numba.njit(**HELPER, fastmath={"reassoc", "contract", "nsz"})
"""For sums in any order. No "arcp": scores are divisions, exact to the last bit, to compare with those computed elsewhere."""
_LARGEST_HALF = 65504.0
_FP32, _FP16 = (FLOAT_KINDS.index(kind) for kind in ("fp32", "fp16"))


@intrinsic
def run_part(context, part, thread, address):
    """Call the function at address `part`, void(thread, address of a record with its arguments)."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.VoidType(), [I64, I64])
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def pointer(context, address):
    """An untyped pointer to an address, for `carray`."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


@intrinsic
def floats(context, address):
    """An indexable pointer to float32 at an address."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(types.int64), generate


@intrinsic
def put(context, pointer, index, value):
    """pointer[index] = value, for a pointer to float32."""

    def generate(context, builder, signature, arguments):
        place = builder.gep(arguments[0], [arguments[1]])
        builder.store(arguments[2], place).align = 4
        return context.get_dummy_value()

    return types.void(types.CPointer(types.float32), types.int64, types.float32), generate


@intrinsic
def half_at(context, address):
    """The float16 at an address, as float32."""

    def generate(context, builder, signature, arguments):
        value = builder.load(builder.inttoptr(arguments[0], F16.as_pointer()), typ=F16)
        value.align = 2
        return builder.fpext(value, F32)

    return types.float32(types.int64), generate


@intrinsic
def put_half(context, address, value):
    """Store a float32 as the nearest float16, clamped to the largest finite one; NaN stays NaN."""

    def generate(context, builder, signature, arguments):
        value = arguments[1]
        for relation, bound in ((">", _LARGEST_HALF), ("<", -_LARGEST_HALF)):
            limit = ir.Constant(F32, bound)
            value = builder.select(builder.fcmp_ordered(relation, value, limit), limit, value)
        place = builder.inttoptr(arguments[0], F16.as_pointer())
        builder.store(builder.fptrunc(value, F16), place).align = 2
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), generate


@intrinsic
def brain_at(context, address):
    """The bfloat16 at an address, as float32."""

    def generate(context, builder, signature, arguments):
        kind = ir.IntType(16)
        value = builder.load(builder.inttoptr(arguments[0], kind.as_pointer()), typ=kind)
        value.align = 2
        return builder.bitcast(builder.shl(builder.zext(value, I32), ir.Constant(I32, 16)), F32)

    return types.float32(types.int64), generate


@helper
def float_at(kind, address, at):
    """The number at index `at` of an array at an address, as float32. kind: index in FLOAT_KINDS."""
    if kind == _FP32:
        return floats(address)[at]
    if kind == _FP16:
        return half_at(address + 2 * at)
    return brain_at(address + 2 * at)


@intrinsic
def half_bits(context, number):
    """The bits of the float16 nearest to a float32, infinity if it is too large."""

    def generate(context, builder, signature, arguments):
        return builder.zext(builder.bitcast(builder.fptrunc(arguments[0], F16), ir.IntType(16)), I32)

    return types.int32(types.float32), generate


@intrinsic
def half_copied(context, target, source):
    """Copy the float16 at one address to another."""

    def generate(context, builder, signature, arguments):
        target, source = (builder.inttoptr(address, F16.as_pointer()) for address in arguments)
        value = builder.load(source, typ=F16)
        value.align = 2
        builder.store(value, target).align = 2
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def prefetched(context, address):
    """Prefetch the cache line at an address."""

    def generate(context, builder, signature, arguments):
        prefetch(builder, arguments[0])
        return context.get_dummy_value()

    return types.void(types.int64), generate


def _recast(kind: Any, result: Any, argument: Any) -> Any:
    @intrinsic
    def recast(context, number):
        def generate(context, builder, signature, arguments):
            return builder.bitcast(arguments[0], kind)

        return result(argument), generate

    return recast


float_of, bits_of = _recast(F32, types.float32, types.int32), _recast(I32, types.int32, types.float32)
"""The float32 with these bits, an int32; and the bits of a float32."""
double_of, long_of = _recast(F64, types.float64, types.int64), _recast(I64, types.int64, types.float64)
"""The float64 with these bits, an int64; and the bits of a float64."""


@intrinsic
def arrived(context, address, count):
    """Add to a shared counter and return what it was before."""

    def generate(context, builder, signature, arguments):
        return builder.atomic_rmw("add", builder.inttoptr(arguments[0], I64.as_pointer()), arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def seen(context, address):
    """The current value of a shared counter (atomic load)."""

    def generate(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], I64.as_pointer())
        return builder.load_atomic(pointer, "acquire", 8, typ=I64)

    return types.int64(types.int64), generate


@intrinsic
def pause(context):
    """Hint to the core that this thread is spinning."""

    def generate(context, builder, signature, arguments):
        if "sse2" in MACHINE.features:
            builder.call(external(builder, "llvm.x86.sse2.pause", ir.VoidType(), []), [])
        return context.get_dummy_value()

    return types.void(), generate


_usleep: Any = types.ExternalFunction("usleep", types.int32(types.uint32))
_yield: Any = types.ExternalFunction("sched_yield", types.int32())
_PATIENCE = 2000
"""Turns of waiting, some tens of microseconds, before a thread offers its core to others."""
_YIELDS = 10_000
"""How often it yields before it sleeps; some milliseconds if no other thread takes the core."""


@helper
def idled(counter, count, patience):
    """Spin while a shared counter equals `count`, for at most `patience` turns."""
    turns = 0
    while seen(counter) == count and turns < patience:
        pause()
        turns += 1


@helper
def awaited(counter, count, patience):
    """Wait until a shared counter has reached `count`: by spinning for `patience` turns, then by yielding, then by sleeping."""
    turns = 0
    while seen(counter) < count:
        turns += 1
        if turns < patience:
            pause()
        elif turns < patience + _YIELDS:
            # the awaited thread may need this very core; a thread that sleeps early seems idle to the system, which may then keep
            # both threads on one core permanently
            _yield()
        else:
            _usleep(np.uint32(20))


@helper
def barrier(counter, round_, threads):
    """Wait until every thread has arrived for the `round_`-th time. counter: address of an int64, 0 before the first round."""
    if threads == 1:
        return
    arrived(counter, 1)
    awaited(counter, round_ * threads, _PATIENCE)
