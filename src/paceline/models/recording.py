"""Recording: the forward of a step in buffers that stay where they are, recorded once as a CUDA graph and replayed.

A forward of a few rows is some hundred launches, and launching them takes the host longer than the device takes to run them. A
graph launches all at once, but only over the same memory. So one recording serves every step that fits its bucket: the step is
written into its buffers, what pads them attends to nothing and writes to the page that is nobody's. Where there is no CUDA the
forward runs each time, over the same buffers.

Source: CUDA graphs for decoding in fixed buckets of rows, as in gpt-fast and nano-vllm.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from paceline.clock import standing_still

Tables = TypeVar("Tables")
Found = TypeVar("Found")
Result = tuple[torch.Tensor, dict[int, torch.Tensor]]
"""Logits [T, V] and taps, layer -> [1, T, hidden]."""
Pool = Any
"""Memory that recordings share for what passes between their kernels, as torch names it."""


def shared_pool(device: torch.device) -> Pool | None:
    """Memory for recordings of which one runs at a time; None where nothing is recorded."""
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else None


class Outputs:
    """Where recordings leave their results, so that each need not hold logits of its own: of those of one shape one is in use."""

    def __init__(self) -> None:
        self._held: dict[tuple[int | None, torch.Size], torch.Tensor] = {}

    def filled(self, result: Result) -> Result:
        """A copy of what a forward returned, which the next one of that shape overwrites."""
        logits, taps = result
        return self._copied(None, logits), {layer: self._copied(layer, hidden) for layer, hidden in taps.items()}

    def _copied(self, layer: int | None, found: torch.Tensor) -> torch.Tensor:
        place = layer, found.shape
        if place not in self._held:
            # before anything is recorded: a forward runs by itself first
            self._held[place] = torch.empty_like(found)
        return self._held[place].copy_(found)


class Recording(Generic[Tables, Found]):
    """One forward over buffers that stay. Calling it raises RuntimeError where the forward cannot be recorded.

    tables: those buffers, which are loaded before each call. run: the forward over them. never_waits: whether it is known not to
    wait for the device. What is returned is overwritten by the next call, and by that of any other of the same pool.
    """

    def __init__(
        self, tables: Tables, run: Callable[[Tables], Found], device: torch.device, pool: Pool | None, never_waits: bool = False
    ) -> None:
        self.tables = tables
        self._run, self._device, self._pool, self._never_waits = run, device, pool, never_waits
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Found | None = None

    def __call__(self) -> Found:
        """What the forward returns."""
        if self._device.type != "cuda":
            return self._run(self.tables)
        if self._graph is None:
            self._graph = captured(self._keep, self._pool, self._never_waits)
        self._graph.replay()
        assert self._result is not None
        return self._result

    def _keep(self) -> None:
        self._result = self._run(self.tables)


class RecordingInParts(Generic[Tables, Found]):
    """Forwards over the same buffers, to run one behind the other, each of them recorded when it is first asked for.

    Whoever wants fewer than were recorded, or more, has those that are there. tables: as `Recording` has them. run: one forward
    over them, by its number.
    """

    def __init__(
        self,
        tables: Tables,
        run: Callable[[Tables, int], Found],
        device: torch.device,
        pool: Pool | None,
        never_waits: bool = False,
    ) -> None:
        self.tables = tables
        self._run, self._device, self._pool, self._never_waits = run, device, pool, never_waits
        self._parts = list[Recording[Tables, Found]]()

    def __call__(self, count: int) -> Found:
        """What the last of the first `count` returns, from 1. Raises RuntimeError where one of them cannot be recorded."""
        for place in range(len(self._parts), count):
            run = partial(self._numbered, place)
            self._parts.append(Recording(self.tables, run, self._device, self._pool, self._never_waits))
        return [part() for part in self._parts[:count]][-1]

    def _numbered(self, place: int, tables: Tables) -> Found:
        return self._run(tables, place)


def _without_waiting(call: Callable[[], object]) -> None:
    """Run it; raises RuntimeError where it waits for the device, in any thread that does so meanwhile: torch has one setting for
    all. A recording that fails because of it would leave the allocator in the midst of one."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    finally:
        torch.cuda.set_sync_debug_mode(before)


@standing_still()
def captured(call: Callable[[], object], pool: Pool | None = None, never_waits: bool = False) -> torch.cuda.CUDAGraph:
    """`call` as a graph; it runs by itself first, which compiles its kernels and makes what they write to. Raises RuntimeError
    where it cannot be recorded. What other threads ask of the device while it is recorded is no part of it and no error.
    never_waits: whether it is known not to wait for the device.

    What cuBLAS works in is made anew for the graph, in its own pool, and for whatever comes behind it: torch would else have all
    graphs of a stream share it, and free it with the first of them that goes (pytorch/pytorch#193402).
    """
    stream, own = torch.cuda.Stream(), torch.cuda.current_stream()
    stream.wait_stream(own)
    try:
        with torch.cuda.stream(stream):
            call()
            if not never_waits:
                _without_waiting(call)
    finally:
        # what was launched before a failure still reads what is freed behind it
        own.wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    torch._C._cuda_clearCublasWorkspaces()
    collects, first = gc.isenabled(), None
    # what Python collects may be of the device, an engine's recordings and their memory among it, and to give that back amid a
    # recording ends it
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            try:
                call()
            except RuntimeError as error:
                first = error
                raise
    except RuntimeError as error:
        # ending what has failed fails again, and that would hide why
        raise first or error from None
    finally:
        # torch leaves a thread on the stream of a recording that cannot even be ended
        torch.cuda.set_stream(own)
        torch._C._cuda_clearCublasWorkspaces()
        if collects:
            gc.enable()
    return graph
