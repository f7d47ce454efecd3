"""Together: how many cores' work the threads of a run do, and how long they take to synchronize.

A virtual machine's processors are threads of its host, which migrates them: two may share a core, or a cache, or neither, so the
same forward pass may take twice as long or half. The machine cannot query this, so it is measured from time to time.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
import torch

from paceline.kernels.native import layout
from paceline.kernels.native.entries import TOGETHER, product
from paceline.kernels.native.formats import FORMATS
from paceline.kernels.native.packed import pack
from paceline.kernels.native.threads import spread

_ROWS, _INPUTS, _OUTPUTS = 4, 512, 256
_TURNS, _MEETINGS, _REPEATS = 200, 500, 5


class Together:
    """Measures, each time it is called, how much work `threads` threads do together."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        form = FORMATS["fp32"]
        # small enough for each core's L2 cache, so that memory bandwidth is no limit
        self._weights = pack(torch.ones(_OUTPUTS, _INPUTS), form)
        self._activations = np.zeros(_ROWS * _INPUTS, np.float32)
        self._outputs = np.zeros((threads, _ROWS, _OUTPUTS), np.float32)
        self._counter = np.zeros(1, np.int64)
        record = self._record = np.zeros(1, layout.TOGETHER)
        record["product"], record["rows"], record["inputs"] = product(form.name).address, _ROWS, _INPUTS
        record["weights"], record["panels"] = self._weights.data.data_ptr(), self._weights.panels
        record["panel_bytes"], record["threads"] = self._weights.data.shape[1], threads
        record["activations"], record["outputs"] = self._activations.ctypes.data, self._outputs.ctypes.data
        record["counter"] = self._counter.ctypes.data
        self._part = TOGETHER.address
        self.cores: list[float] = []
        """Per measurement, the work of all threads over that of one thread alone."""
        self.meeting_us: list[float] = []

    @property
    def record(self) -> dict[str, Any]:
        return {"threads": self._threads, "cores": self.cores, "meeting_us": self.meeting_us}

    def __call__(self) -> None:
        alone, all_ = (min(self._seconds(threads, turns=_TURNS) for _ in range(_REPEATS)) for threads in (1, self._threads))
        self.cores.append(self._threads * alone / all_)
        self.meeting_us.append(1e6 * min(self._seconds(self._threads, meetings=_MEETINGS) for _ in range(_REPEATS)) / _MEETINGS)

    def _seconds(self, threads: int, turns: int = 0, meetings: int = 0) -> float:
        self._counter[0] = 0
        self._record["turns"], self._record["meetings"] = turns, meetings
        began = perf_counter()
        spread(self._part, threads, self._record.ctypes.data)
        return perf_counter() - began
