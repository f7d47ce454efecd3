"""Recording: the forward of a step in buffers that stay where they are, recorded once as a CUDA graph and replayed.

A forward of a few rows is some hundred launches, and launching them takes the host longer than the device takes to run them. A
graph launches all at once, but only over the same memory. So one recording serves every step that fits its bucket: the step is
written into its buffers, what pads them attends to nothing and writes to the page that is nobody's. Where there is no CUDA the
forward runs each time, over the same buffers.

Source: CUDA graphs for decoding in fixed buckets of rows, as in gpt-fast and nano-vllm.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence as Many
from typing import Any

import torch

from paceline.kernels.step_tables import Extent, StepTables
from paceline.step import Step

Result = tuple[torch.Tensor, dict[int, torch.Tensor]]
"""Logits [T, V] and taps, layer -> [1, T, hidden]."""
Run = Callable[[StepTables], Result]
"""The forward, by the tables of the step."""
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


class Recording:
    """Of steps within one extent. Calling it raises RuntimeError where the forward cannot be recorded.

    What it returns is overwritten by its next call, and by that of any other with the same `outputs` or of the same pool.
    """

    def __init__(
        self,
        run: Run,
        extent: Extent,
        page_size: int,
        rows_per_tile: int,
        device: torch.device,
        outputs: Outputs,
        pool: Pool | None = None,
    ) -> None:
        self._run, self._device, self._outputs, self._pool = run, device, outputs, pool
        self._tables = StepTables(extent, page_size, rows_per_tile, device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Result | None = None

    def __call__(self, step: Step, blocks: Many[array[int]]) -> Result:
        """All rows of the bucket, those of the step first. blocks: per segment the pages of its sequence."""
        self._tables.load(step, blocks)
        if self._device.type != "cuda":
            return self._forward()
        if self._graph is None:
            self._graph = captured(self._keep, self._pool)
        self._graph.replay()
        assert self._result is not None
        return self._result

    def _keep(self) -> None:
        self._result = self._forward()

    def _forward(self) -> Result:
        return self._outputs.filled(self._run(self._tables))


def _without_waiting(call: Callable[[], object]) -> None:
    """Run it; raises RuntimeError where it waits for the device, in any thread that does so meanwhile: torch has one setting for
    all. A recording that fails because of it would leave the allocator in the midst of one."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    finally:
        torch.cuda.set_sync_debug_mode(before)


def captured(call: Callable[[], object], pool: Pool | None = None) -> torch.cuda.CUDAGraph:
    """`call` as a graph; it runs by itself first, which compiles its kernels and makes what they write to. Raises RuntimeError
    where it cannot be recorded. What other threads ask of the device while it is recorded is no part of it and no error.

    What cuBLAS works in is made anew for the graph, in its own pool, and for whatever comes behind it: torch would else have all
    graphs of a stream share it, and free it with the first of them that goes (pytorch/pytorch#193402).
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
        _without_waiting(call)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    torch._C._cuda_clearCublasWorkspaces()
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            call()
    finally:
        torch._C._cuda_clearCublasWorkspaces()
    return graph
