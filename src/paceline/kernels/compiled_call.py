"""Compiled call: compiled functions that take numpy arrays and numbers, and the calling convention for them.

The arguments of a call are stored in a record, an array as its address and its shape. A record may be kept, so that a call that
is repeated in every step sets only the changed arguments.
"""

from __future__ import annotations

import ctypes
from functools import cached_property
from typing import Any

import numpy as np

from paceline.kernels.compiled import Kernel

_KINDS = {"int64": ctypes.c_int64, "float64": ctypes.c_double}
_RETURNED = "returned"


class CompiledFunction(Kernel):
    """A compiled function of arrays and numbers that returns an integer; 0 where its definition returns nothing.

    arguments: name -> type: "int64", "float64", or a C-contiguous array as "int32[:]" or "float64[:,:]". The dtype and shape of
    arrays are checked when they are given, indices into them never.
    """

    def __init__(self, name: str, **arguments: str) -> None:
        super().__init__(name, words=1)
        self.arguments = arguments
        self.arrays = {
            name: (np.dtype(kind.partition("[")[0]), tuple([f"{name}_{axis}" for axis in range(axes(kind))]))
            for name, kind in arguments.items()
            if axes(kind)
        }
        """Array argument -> its dtype and the record's fields of its shape."""

    @property
    def description(self) -> dict[str, Any]:
        return super().description | {"arguments": self.arguments}

    def __call__(self, *values: Any) -> int:
        """Call it once. values: in the order of `arguments`."""
        return self.call(**dict(zip(self.arguments, values, strict=True)))()

    def call(self, **values: Any) -> Call:
        """A prepared call, which keeps its arguments. values: the arguments known already."""
        return Call(self, values)

    @cached_property
    def record(self) -> type[ctypes.Structure]:
        """Layout of a call in fields of 8 bytes: the returned value, then the arguments."""
        fields: list[tuple[str, Any]] = [(_RETURNED, ctypes.c_int64)]
        for name, kind in self.arguments.items():
            fields.append((name, _KINDS.get(kind, ctypes.c_int64)))
            _, sizes = self.arrays.get(name, (None, ()))
            fields += [(size, ctypes.c_int64) for size in sizes]
        return type("Record", (ctypes.Structure,), {"_fields_": fields})

    @cached_property
    def function(self) -> Any:
        """int32(address of a record): 0 for success. It releases the GIL."""
        return ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64)(self.address)


class Call:
    """A prepared call of a CompiledFunction. Numbers are fields of `record`, to be set in place. Arrays are kept alive."""

    def __init__(self, compiled: CompiledFunction, values: dict[str, Any]) -> None:
        self._compiled, self._function = compiled, compiled.function
        self.record: Any = compiled.record()
        self._address = ctypes.addressof(self.record)
        self._arrays: dict[str, np.ndarray] = {}
        self.give(**values)

    def give(self, **values: Any) -> None:
        """Set arguments. Raises TypeError for an array whose dtype, number of axes or memory layout was not compiled for."""
        for name, value in values.items():
            kind = self._compiled.arguments[name]
            if kind in _KINDS:
                setattr(self.record, name, value)
                continue
            dtype, sizes = self._compiled.arrays[name]
            if value.dtype != dtype or value.ndim != len(sizes) or not value.flags.c_contiguous:
                raise TypeError(
                    f"{self._compiled.name} takes for '{name}' {kind} in rows, not {value.dtype} of shape {value.shape}"
                )
            self._arrays[name] = value
            setattr(self.record, name, value.ctypes.data)
            for field, size in zip(sizes, value.shape, strict=True):
                setattr(self.record, field, size)

    def again(self, **values: Any) -> Call:
        """A copy of this call with some arguments replaced; it saves reading the addresses of the others again, which is slow."""
        other: Call = object.__new__(Call)
        other._compiled, other._function, other._arrays = self._compiled, self._function, dict(self._arrays)
        other.record = type(self.record).from_buffer_copy(self.record)
        other._address = ctypes.addressof(other.record)
        other.give(**values)
        return other

    def __call__(self) -> int:
        """Run it and return its value. Raises RuntimeError if the definition raises."""
        if self._function(self._address):
            raise RuntimeError(f"{self._compiled.name} failed")
        return self.record.returned


def axes(kind: str) -> int:
    """Number of axes of an argument of this type, 0 for a number."""
    return kind.count(":")
