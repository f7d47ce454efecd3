"""Vectors: how wide this machine's registers are, and the few LLVM vector instructions that the tiles are written in.

A tile is written as LLVM vector code from Python (llvmlite, inside Numba's `intrinsic`), so that the order of every sum is fixed
by this code instead of an optimiser, and one source serves AVX-512, AVX2 and NEON. No compiler is needed at installation.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

I8, I16, I32, I64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()


class _BFloat(ir.Type):
    """bfloat16, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


VECTORS = 4
"""Registers per panel."""


@dataclass(frozen=True)
class Machine:
    """lanes: floats per register. registers: number of vector registers. features: the processor's, as named by LLVM."""

    lanes: int
    registers: int
    features: frozenset[str]

    @property
    def panel(self) -> int:
        """Adjacent outputs in packed weights: four registers. One stream of memory is read faster than two."""
        return VECTORS * self.lanes


def _listed() -> str:
    """The processor features to compile for: those set for Numba, if any; a generic processor has none by default."""
    listed = os.environ.get("NUMBA_CPU_FEATURES")
    if listed is None:
        generic = os.environ.get("NUMBA_CPU_NAME") == "generic"
        listed = "" if generic else llvm.get_host_cpu_features().flatten()
    return listed


def _triple() -> str:
    return llvm.get_process_triple()


def _detected() -> Machine:
    # if a feature is listed twice, the last entry counts, as for LLVM
    said = {feature[1:]: feature[0] == "+" for feature in _listed().split(",") if feature}
    present = frozenset(feature for feature, there in said.items() if there)
    if _triple().startswith(("aarch64", "arm64")):
        # NEON is part of this architecture; on macOS LLVM lists no features, but all Apple processors have byte products
        present |= {"neon", "dotprod"} if "apple" in _triple() else {"neon"}
    if "avx512f" in present:
        return Machine(16, 32, present)
    if "avx2" in present and "fma" in present:
        return Machine(8, 16, present)
    return Machine(4, 32 if "neon" in present else 16, present)


MACHINE = _detected()
LANES, PANEL = MACHINE.lanes, MACHINE.panel
FUSES = bool(MACHINE.features & {"fma", "avx512f", "neon"})
"""Whether a fused multiply-add is one instruction here; without it `llvm.fma` is a library call per number."""

MULTIPLIES_BYTES = bool(MACHINE.features & {"avx512vnni", "avxvnni"})
"""Whether one instruction multiplies four pairs of an unsigned and a signed byte, and adds them up."""
MULTIPLIES_SIGNED_BYTES = MACHINE.lanes == 4 and "dotprod" in MACHINE.features
"""As MULTIPLIES_BYTES with both bytes signed, on ARM."""


MULTIPLIES_HALVES = MACHINE.lanes == 16 and "avx512bf16" in MACHINE.features
"""Whether one instruction multiplies two pairs of bfloat16 and adds them up."""


def _pair_products() -> str:
    if MACHINE.lanes == 16:
        return "llvm.x86.avx512.pmaddw.d.512" if "avx512bw" in MACHINE.features else ""
    if MACHINE.lanes == 8:
        return "llvm.x86.avx2.pmadd.wd"
    return "llvm.x86.sse2.pmadd.wd" if "sse2" in MACHINE.features else ""


PAIR_PRODUCTS = _pair_products()
"""LLVM's name of the instruction that multiplies two pairs of 16-bit numbers per lane and adds them up; empty without one."""


def _byte_pair_products() -> str:
    if MULTIPLIES_BYTES or MULTIPLIES_SIGNED_BYTES:
        return ""
    if MACHINE.lanes == 16:
        return "llvm.x86.avx512.pmaddubs.w.512" if "avx512bw" in MACHINE.features else ""
    return "llvm.x86.avx2.pmadd.ub.sw" if MACHINE.lanes == 8 else ""


BYTE_PAIR_PRODUCTS = _byte_pair_products()
"""LLVM's name of the instruction that multiplies pairs of an unsigned and a signed byte per 16 bits and adds them up, for
processors without MULTIPLIES_BYTES; empty without one."""


def _matrix_unit() -> bool:
    """Whether AMX is usable: the processor has it, and Linux permits this process to use its registers."""
    if not {"amx-tile", "amx-int8", "amx-bf16"} <= MACHINE.features or MACHINE.lanes != 16 or sys.platform != "linux":
        return False
    return ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0


_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
MATRIX_UNIT = _matrix_unit()
"""Whether whole tiles of bytes, or of bfloat16, are multiplied in one instruction. Source: Intel 64 and IA-32 Architectures
Software Developer's Manual, volume 1, chapter "Programming with Intel AMX"; Linux, Documentation/arch/x86/xstate.rst.
"""


def _features() -> str:
    if MACHINE.lanes == 16 and "NUMBA_CPU_FEATURES" not in os.environ:
        # otherwise LLVM splits 512-bit vectors on processors that it assumes to prefer 256, and uses two instructions for sums of
        # products of pairs where it does not consider the single one fast
        return _listed() + ",-prefer-256-bit,+fast-dpwssd"
    return _listed()


TARGET = (os.environ.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name(), _features())
"""Name and features of the processor to compile for."""
NUMBA_VARIABLES = {"NUMBA_CPU_NAME": TARGET[0], "NUMBA_CPU_FEATURES": TARGET[1]}
"""Environment variables that set this target, if present when Numba is first imported. They are set only in compiler processes,
so that an application with its own Numba code, and its children, keep theirs."""

_AMD = ("amdfam", "bdver", "btver", "znver")
PAGES = 4 if "sse2" in MACHINE.features and not TARGET[0].startswith(_AMD) else 1
"""Number of memory pages that are prefetched in turn, a power of two. Intel's prefetchers work per page: four at once are read
1.5 times as fast as one (ADR 0004). On AMD's Zen 4 two and four take 1.2 to 1.6 times as long as one; on Zen 5 one was fastest
too.
"""

IN_PAIRS = LANES == 8 and TARGET[0].startswith(_AMD)
"""Whether a single row is multiplied with two distant panels at once. A core of AMD's Zen 3 reads one stream of memory at
13 GB/s, two at 18 or more: a forward pass of one row takes three quarters of the time (ADR 0004). Zen 4 and Zen 5 are as fast
with one stream.
"""

VECTOR = ir.VectorType(F32, LANES)
WORDS = ir.VectorType(I32, LANES)
PAIRS = ir.VectorType(I16, 2 * LANES)
HALVES = ir.VectorType(_BFloat(), 2 * LANES)
ZERO = ir.Constant(VECTOR, [0.0] * LANES)


def constant(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


def external(builder: Any, name: str, result: ir.Type, arguments: list[ir.Type]) -> ir.Function:
    """A function or LLVM intrinsic by name, declared once per module."""
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(result, arguments), name)


def once(module: Any, name: str, arguments: int, define: Callable[..., None]) -> Any:
    """A function of so many int64, internal to its module and not inlined; defined on first use.

    define: called with a builder at its beginning, and its arguments.
    """
    known = module.globals.get(name)
    if known:
        return known
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * arguments), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    define(builder, *function.args)
    builder.ret_void()
    return function


def load(builder: Any, address: Any, kind: ir.Type, align: int) -> Any:
    value = builder.load(builder.inttoptr(address, kind.as_pointer()), typ=kind)
    value.align = align
    return value


def store(builder: Any, value: Any, address: Any, align: int) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = align


def splat(builder: Any, scalar: Any, lanes: int = LANES) -> Any:
    """A vector that holds the scalar in every lane."""
    kind = ir.VectorType(scalar.type, lanes)
    undefined = ir.Constant(kind, ir.Undefined)
    one = builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(I32, lanes), [0] * lanes))


def repeated(value: int) -> ir.Constant:
    """An int32 constant in every lane."""
    return ir.Constant(ir.VectorType(I32, LANES), [value] * LANES)


def fused(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c with one rounding."""
    return builder.call(external(builder, f"llvm.fma.v{LANES}f32", VECTOR, [VECTOR] * 3), [a, b, c])


def prefetch(builder: Any, address: Any, level: int = 1) -> None:
    """Prefetch a cache line. level: the cache level to load it into."""
    name = "llvm.prefetch.p0"
    callee = external(builder, name, ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
    pointer = builder.inttoptr(address, I8.as_pointer())
    builder.call(callee, [pointer, ir.Constant(I32, 0), ir.Constant(I32, 4 - level), ir.Constant(I32, 1)])


class Loop:
    """index: the counter, int64. carried: the values of this turn; assign the next turn's to `next`."""

    def __init__(self, index: Any, carried: list[Any]) -> None:
        self.index, self.carried = index, carried
        self.next: list[Any] = carried


@contextmanager
def counted(builder: Any, turns: Any, start: list[Any] | None = None) -> Iterator[Loop]:
    """A loop of `turns` >= 1 turns with values carried in registers; afterwards `carried` holds the last turn's `next`."""
    before, head, after = builder.block, builder.append_basic_block("loop"), builder.append_basic_block("after")
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(I64)
    index.add_incoming(constant(0), before)
    carried = []
    for value in start or []:
        phi = builder.phi(value.type)
        phi.add_incoming(value, before)
        carried.append(phi)
    loop = Loop(index, carried)
    yield loop
    following = builder.add(index, constant(1))
    index.add_incoming(following, builder.block)
    for phi, value in zip(carried, loop.next, strict=True):
        phi.add_incoming(value, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, turns), head, after)
    builder.position_at_end(after)
    loop.carried = loop.next


@contextmanager
def counted_or_none(builder: Any, turns: Any, start: list[Any]) -> Iterator[Loop]:
    """As `counted`, with `turns` >= 0 turns; afterwards `carried` holds `start` if there were none."""
    before = builder.block
    head, body, after = (builder.append_basic_block(name) for name in ("head", "loop", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    values = [constant(0), *start]
    phis = [builder.phi(value.type) for value in values]
    for phi, value in zip(phis, values, strict=True):
        phi.add_incoming(value, before)
    builder.cbranch(builder.icmp_signed("<", phis[0], turns), body, after)
    builder.position_at_end(body)
    loop = Loop(phis[0], phis[1:])
    yield loop
    for phi, value in zip(phis, [builder.add(phis[0], constant(1)), *loop.next], strict=True):
        phi.add_incoming(value, builder.block)
    builder.branch(head)
    builder.position_at_end(after)


@contextmanager
def in_blocks(builder: Any, turns: Any, most: int) -> Iterator[tuple[Any, Any]]:
    """A loop over blocks of `most` turns, the last with the rest; yields the number of turns before a block, and in it."""
    count = builder.udiv(builder.add(turns, constant(most - 1)), constant(most))
    with counted(builder, count) as block:
        before = builder.mul(block.index, constant(most))
        left = builder.sub(turns, before)
        yield before, builder.select(builder.icmp_signed("<", left, constant(most)), left, constant(most))
