"""Lookups: compiled functions of arrays and numbers, and how Python calls them.

What one is called with stands in a record: of an array its address and its shape. A record may be kept, so that a call that comes
with every step sets only what has changed.
"""

from __future__ import annotations

import ctypes
from functools import cached_property
from typing import Any

import numpy as np

from paceline.kernels.compiled import Kernel

_KINDS = {"int64": ctypes.c_int64, "float64": ctypes.c_double}
_RETURNED = "returned"


class Lookup(Kernel):
    """A compiled function of arrays and numbers that returns a whole number, or nothing, for which 0 stands.

    arguments: by name "int64" or "float64", or an array that lies in memory row by row, as "int32[:]" or "float64[:,:]". Arrays
    are checked; what is done to them is the definition's own business: no place in one is.
    """

    def __init__(self, name: str, **arguments: str) -> None:
        super().__init__(name, words=1)
        self.arguments = arguments
        self.arrays = {
            name: (np.dtype(kind.partition("[")[0]), tuple([f"{name}_{axis}" for axis in range(axes(kind))]))
            for name, kind in arguments.items()
            if axes(kind)
        }
        """Of arguments that are arrays, what they hold and the fields of their shape: every new text asks for them."""

    @property
    def told(self) -> dict[str, Any]:
        return super().told | {"arguments": self.arguments}

    def __call__(self, *values: Any) -> int:
        """Call it once. values: in the order of the arguments."""
        return self.call(**dict(zip(self.arguments, values, strict=True)))()

    def call(self, **values: Any) -> Call:
        """A call whose arguments are kept. values: those that are known already."""
        return Call(self, values)

    @cached_property
    def record(self) -> type[ctypes.Structure]:
        """What a call's arguments are laid out as, every field of 8 bytes: what is returned, and the arguments."""
        fields: list[tuple[str, Any]] = [(_RETURNED, ctypes.c_int64)]
        for name, kind in self.arguments.items():
            fields.append((name, _KINDS.get(kind, ctypes.c_int64)))
            _, sizes = self.arrays.get(name, (None, ()))
            fields += [(size, ctypes.c_int64) for size in sizes]
        return type("Record", (ctypes.Structure,), {"_fields_": fields})

    @cached_property
    def function(self) -> Any:
        """int32(address of a record), 0 if all went well. Other threads run while it does."""
        return ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64)(self.address)


class Call:
    """Arguments of a lookup. Numbers are fields of `record`, to be set in place. Arrays are kept alive until others are given."""

    def __init__(self, lookup: Lookup, values: dict[str, Any]) -> None:
        self._lookup, self._function = lookup, lookup.function
        self.record: Any = lookup.record()
        self._address = ctypes.addressof(self.record)
        self._arrays: dict[str, np.ndarray] = {}
        self.give(**values)

    def give(self, **values: Any) -> None:
        """Set arguments. Raises TypeError where an array is not of the kind that was compiled for."""
        for name, value in values.items():
            kind = self._lookup.arguments[name]
            if kind in _KINDS:
                setattr(self.record, name, value)
                continue
            dtype, sizes = self._lookup.arrays[name]
            if value.dtype != dtype or value.ndim != len(sizes) or not value.flags.c_contiguous:
                raise TypeError(
                    f"{self._lookup.name} takes for '{name}' {kind} in rows, not {value.dtype} of shape {value.shape}"
                )
            self._arrays[name] = value
            setattr(self.record, name, value.ctypes.data)
            for field, size in zip(sizes, value.shape, strict=True):
                setattr(self.record, field, size)

    def again(self, **values: Any) -> Call:
        """Another call with the same arguments but for these: it takes long to ask an array for its address."""
        other: Call = object.__new__(Call)
        other._lookup, other._function, other._arrays = self._lookup, self._function, dict(self._arrays)
        other.record = type(self.record).from_buffer_copy(self.record)
        other._address = ctypes.addressof(other.record)
        other.give(**values)
        return other

    def __call__(self) -> int:
        """What is returned. Raises RuntimeError where the definition raises anything."""
        if self._function(self._address):
            raise RuntimeError(f"{self._lookup.name} failed")
        return self.record.returned


def axes(kind: str) -> int:
    """Of an argument: 0 for a number."""
    return kind.count(":")
