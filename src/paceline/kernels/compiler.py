"""Compiler: a separate process that compiles kernels one after the other, on request, and writes their machine code.

Numba translates a definition to LLVM IR; an entry function that can be called without Numba is added, and all is compiled for
this processor. The code may call only the C library: neither Python nor Numba's memory manager.

`python -m paceline.kernels.compiler` reads lines of JSON from standard input, first the settings that `compilers` sends, then one
line per kernel, and answers each with a line.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from paceline.kernels.compiled import SOURCES, Kernel, write
from paceline.kernels.compiled_call import CompiledFunction, axes
from paceline.kernels.compilers import DONE, READY
from paceline.kernels.native.vectors import NUMBA_VARIABLES, TARGET

os.environ |= NUMBA_VARIABLES

# after setting the variables, which Numba reads on import
import numba  # isort: skip
from numba import types  # isort: skip
from numba.core import codegen  # isort: skip

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_OF_C = frozenset(
    (
        *("memcpy", "memmove", "memset", "usleep", "sched_yield", "clock_gettime"),
        *("pthread_mutex_lock", "pthread_mutex_unlock", "pthread_cond_wait", "pthread_cond_broadcast"),
        *(f"{name}{kind}" for name in ("exp", "log", "sqrt", "tanh", "floor", "fma") for kind in ("", "f")),
    )
)
_NEVER_CALLED = "NRT_MemInfo_call_dtor"
"""Numba's destructor of arrays, called when the last reference is dropped; arrays here belong to the caller."""


def object_code(kernel: Kernel) -> bytes:
    """A kernel's object code, which exports only the kernel's own symbol."""
    module = linked(kernel)
    machine = target_machine()
    return machine.emit_object(module)


def linked(kernel: Kernel) -> llvm.ModuleRef:
    """The optimised LLVM module of a kernel, with all functions that it calls."""
    function = getattr(import_module(f"paceline.kernels.{kernel.name.rpartition('.')[0]}"), kernel.name.rpartition(".")[2])
    if kernel.of:
        function = function(kernel.of)
    dispatcher: Any = function if hasattr(function, "py_func") else numba.njit(**_OPTIONS)(function)
    arguments = tuple(_types(kernel))
    dispatcher.compile(arguments)
    made = dispatcher.overloads[arguments]
    module = llvm.parse_assembly(dispatcher.inspect_llvm(arguments))
    module.link_in(llvm.parse_assembly(_entry(kernel, made.fndesc.llvm_func_name, arguments, made.signature.return_type)))
    module.verify()
    for one in (*module.functions, *module.global_variables):
        if not one.is_declaration and one.name != kernel.symbol:
            one.linkage = llvm.Linkage.internal
    builder = llvm.create_pass_builder(target_machine(), llvm.create_pipeline_tuning_options(speed_level=3))
    passes = builder.getModulePassManager()
    passes.run(module, builder)
    called = {one.name for one in module.functions if one.is_declaration and not one.name.startswith("llvm.")}
    if called - _OF_C:
        raise TypeError(f"it calls {', '.join(sorted(called - _OF_C))}")
    return module


def target_machine() -> llvm.TargetMachine:
    cpu, features = TARGET
    target = llvm.Target.from_default_triple()
    # JIT code may be placed anywhere in memory; same settings as Numba's
    relocation = "static" if target.name.startswith("x86") else "default"
    return target.create_target_machine(cpu=cpu, features=features, opt=3, reloc=relocation, codemodel="jitdefault", jit=True)


def run_nothing() -> None:
    """Stop Numba from generating machine code for this process, which never runs it, and from optimizing definitions separately,
    which takes half of the time. Only its LLVM IR of definitions and their callees is used, and optimized once, together.
    """
    library, engine = codegen.JITCodeLibrary, codegen.JITCPUCodegen
    inner = ("_finalize_specific", "get_pointer_to_function", "_optimize_functions", "_optimize_final_module")
    if all(hasattr(*one) for one in (*((library, name) for name in inner), (engine, "set_env"))):
        # no pointers are needed, but asking for one must still finalize the library, which links functions with their callees
        changes: Any = (
            (library, "_finalize_specific", lambda self: None),
            (library, "get_pointer_to_function", lambda self, name: self._ensure_finalized() or 0),
            (library, "_optimize_functions", lambda self, module: None),
            (library, "_optimize_final_module", lambda self: None),
            (engine, "set_env", lambda self, name, environment: None),
        )
        for change in changes:
            setattr(*change)


def _types(kernel: Kernel) -> list[Any]:
    if not isinstance(kernel, CompiledFunction):
        return [types.int64] * kernel.words
    kinds = []
    for kind in kernel.arguments.values():
        element = getattr(types, kind.partition("[")[0])
        kinds.append(types.Array(element, axes(kind), "C") if axes(kind) else element)
    return kinds


def _entry(kernel: Kernel, name: str, arguments: tuple[Any, ...], returned: Any) -> str:
    """The entry function, in LLVM IR. It calls Numba's function, which takes pointers for its result and its error, and then the
    arguments, with arrays passed as several; it returns 0 on success.
    """
    if isinstance(kernel, CompiledFunction):
        return _entry_of_compiled_function(kernel, name, arguments, returned)
    words = [f"i64 %a{at}" for at in range(kernel.words)]
    return f"""
        declare i32 @"{name}"(ptr, ptr, {", ".join(["i64"] * kernel.words)})
        define void @"{kernel.symbol}"({", ".join(words)}) {{
          %returned = alloca i64
          %error = alloca ptr
          call i32 @"{name}"(ptr %returned, ptr %error, {", ".join(words)})
          ret void
        }}
        {_never_called()}"""


def _never_called() -> str:
    return f"define void @{_NEVER_CALLED}(ptr %it) {{ unreachable }}"


def _entry_of_compiled_function(kernel: CompiledFunction, name: str, arguments: tuple[Any, ...], returned: Any) -> str:
    if returned not in (types.int64, types.none):
        raise TypeError(f"it returns {returned}, and not int64 or nothing")
    lines: list[str] = []
    given: list[str] = []
    field = 0

    def read(kind: str) -> str:
        nonlocal field
        field += 1
        lines.append(f"%p{field} = getelementptr i64, ptr %record, i64 {field}")
        lines.append(f"%v{field} = load {kind}, ptr %p{field}")
        return f"%v{field}"

    for kind in arguments:
        if not isinstance(kind, types.Array):
            llvm_kind = "double" if kind == types.float64 else "i64"
            given.append(f"{llvm_kind} {read(llvm_kind)}")
            continue
        data = read("ptr")
        shape = [read("i64") for _ in range(kind.ndim)]
        size = kind.dtype.bitwidth // 8
        strides = [str(size)]
        for axis in reversed(shape[1:]):
            lines.append(f"%s{field}.{len(strides)} = mul i64 {strides[0]}, {axis}")
            strides.insert(0, f"%s{field}.{len(strides)}")
        lines.append(f"%b{field} = mul i64 {strides[0]}, {shape[0]}")
        lines.append(f"%n{field} = sdiv exact i64 %b{field}, {size}")
        given += ["ptr null", "ptr null", f"i64 %n{field}", f"i64 {size}", f"ptr {data}"]
        given += [f"i64 {number}" for number in (*shape, *strides)]
    kinds = ", ".join(one.split()[0] for one in given)
    body = "\n".join(lines)
    return f"""
        declare i32 @"{name}"(ptr, ptr, {kinds})
        define i32 @"{kernel.symbol}"(i64 %address) {{
          %record = inttoptr i64 %address to ptr
          store i64 0, ptr %record
          %error = alloca ptr
          {body}
          %status = call i32 @"{name}"(ptr %record, ptr %error, {", ".join(given)})
          ret i32 %status
        }}
        {_never_called()}"""


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    # redirect stdout to stderr, so that prints do not mix with the answers
    os.dup2(2, 1)

    def answer(line: str) -> None:
        print(" ".join(line.split()), file=out, flush=True)

    told = json.loads(sys.stdin.readline())
    if told["sources"] != SOURCES:
        answer("its sources have changed since this was started")
        return
    own = Path(told["own"])
    run_nothing()
    answer(READY)
    for line in sys.stdin:
        asked = json.loads(line)
        kernel = CompiledFunction(asked["name"], **asked["arguments"]) if "arguments" in asked else Kernel(**asked)
        try:
            write(kernel, object_code(kernel), own)
            answer(DONE)
        except Exception as error:
            answer(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
