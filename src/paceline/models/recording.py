"""Recording: a step's forward pass over buffers at fixed addresses, recorded once as a CUDA graph and replayed.

A forward pass of a few rows is some hundred launches, and launching them takes the host longer than the device takes to run them.
A graph launches all at once, but only over the same memory. So one recording serves every step that fits its bucket: the step is
written into its buffers; padding rows attend to nothing and write to the page that no sequence owns. Without CUDA the forward
pass runs each time, over the same buffers.

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
"""Handle of the torch memory pool that recordings share for intermediate results."""


def shared_pool(device: torch.device) -> Pool | None:
    """Memory for recordings that run one at a time; None on a device without CUDA, where nothing is recorded."""
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else None


class Outputs:
    """Result buffers that recordings share by shape, so that each need not hold its own logits: one at a time is in use."""

    def __init__(self) -> None:
        self._held: dict[tuple[int | None, torch.Size], torch.Tensor] = {}

    def filled(self, result: Result) -> Result:
        """A copy of a forward pass's result; the next result of that shape overwrites it."""
        logits, taps = result
        return self._copied(None, logits), {layer: self._copied(layer, hidden) for layer, hidden in taps.items()}

    def _copied(self, layer: int | None, found: torch.Tensor) -> torch.Tensor:
        place = layer, found.shape
        if place not in self._held:
            # allocated outside of a recording: a forward pass first runs without one
            self._held[place] = torch.empty_like(found)
        return self._held[place].copy_(found)


class Recording(Generic[Tables, Found]):
    """One forward pass over fixed buffers. Calling it raises RuntimeError if the forward pass cannot be recorded.

    tables: those buffers, which are loaded before each call. run: the forward pass over them. never_waits: whether it is known
    not to wait for the device. The result is overwritten by the next call of this or any other recording in the same pool.
    """

    def __init__(
        self, tables: Tables, run: Callable[[Tables], Found], device: torch.device, pool: Pool | None, never_waits: bool = False
    ) -> None:
        self.tables = tables
        self._run, self._device, self._pool, self._never_waits = run, device, pool, never_waits
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Found | None = None

    def __call__(self) -> Found:
        """Run the forward pass and return its result."""
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
    """Forward passes over the same buffers, run one after another; each is recorded when it is first needed.

    A call may run fewer than are recorded; if it needs more, only the missing ones are recorded. tables: as in `Recording`. run:
    one forward pass over them, given its index.
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
        """Run the first `count` >= 1 and return the last one's result. Raises RuntimeError if one cannot be recorded."""
        for place in range(len(self._parts), count):
            run = partial(self._numbered, place)
            self._parts.append(Recording(self.tables, run, self._device, self._pool, self._never_waits))
        return [part() for part in self._parts[:count]][-1]

    def _numbered(self, place: int, tables: Tables) -> Found:
        return self._run(tables, place)


def _without_waiting(call: Callable[[], object]) -> None:
    """Run `call`; waiting for the device raises RuntimeError, in any thread, since torch has one setting for all. This is tested
    before recording, because a recording that fails for this reason would leave the allocator in its recording state."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    finally:
        torch.cuda.set_sync_debug_mode(before)


@standing_still()
def captured(call: Callable[[], object], pool: Pool | None = None, never_waits: bool = False) -> torch.cuda.CUDAGraph:
    """`call` as a graph; it first runs without recording, which compiles its kernels and allocates its results. Raises
    RuntimeError if it cannot be recorded. Other threads may use the device meanwhile; their work is not recorded. never_waits:
    whether it is known not to wait for the device.

    cuBLAS workspaces are cleared before and after, so that the graph has its own: otherwise torch would share one among all
    graphs of a stream, and free it with the first graph that is deleted (pytorch/pytorch#193402).
    """
    stream, own = torch.cuda.Stream(), torch.cuda.current_stream()
    stream.wait_stream(own)
    try:
        with torch.cuda.stream(stream):
            call()
            if not never_waits:
                _without_waiting(call)
    finally:
        # kernels launched before a failure still read memory that is freed after it
        own.wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    torch._C._cuda_clearCublasWorkspaces()
    collects, first = gc.isenabled(), None
    # garbage collection may free device memory, such as another engine's recordings, which would invalidate a recording in
    # progress
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            try:
                call()
            except RuntimeError as error:
                first = error
                raise
    except RuntimeError as error:
        # ending a failed recording raises again, which would hide the cause
        raise first or error from None
    finally:
        # torch leaves the thread on the recording's stream if ending the recording fails
        torch.cuda.set_stream(own)
        torch._C._cuda_clearCublasWorkspaces()
        if collects:
            gc.enable()
    return graph
