"""Guest: the program of a peer's process, `python -m paceline.bench.peers.guest NAME ORDERS ANSWERS`; executes `host`'s orders.

ORDERS, ANSWERS: file descriptors of the pipe. It ends when the pipe closes, and on Linux when its host ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from paceline.bench.contest import DecoderFailed
from paceline.bench.peers import PEERS
from paceline.bench.peers.base import MATERIAL, Mode, Peer, guarded


class Guest:
    """One peer, loaded by an order."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._peer: Peer | None = None
        self._loaders: dict[str, Callable[[], Mode]] = {}
        self._modes: dict[str, Mode] = {}
        self._forward: Callable[[int], float] | None = None

    def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        """The answer to one order; on any failure `error`, a one-line message."""
        do = getattr(self, f"_{order.pop('do')}")
        try:
            return guarded(lambda: do(**order))
        except DecoderFailed as error:
            return {"error": str(error)}

    def close(self) -> None:
        if self._peer is not None:
            self._peer.close()

    def _load(self, material: dict[str, Any]) -> dict[str, Any]:
        given = MATERIAL.validate_python(material)
        torch.set_num_threads(given.threads)
        self._peer = PEERS[self._name].load(given)
        self._loaders = self._peer.modes()
        peer = self._peer
        return {"version": peer.version, "weights": peer.weights, "options": {**peer.options}, "modes": list(self._loaders)}

    def _open(self, mode: str) -> dict[str, Any]:
        self._modes[mode] = self._loaders[mode]()
        return {}

    def _decode(self, mode: str, prompt: list[int], max_tokens: int) -> dict[str, Any]:
        decoded = self._modes[mode](prompt, max_tokens)
        fields = asdict(decoded)
        return {"decoded": {field: fields[field] for field in ("token_ids", "first_s", "first_tokens", "total_s")}}

    def _forward_behind(self, context: int) -> dict[str, Any]:
        assert self._peer is not None
        self._forward = self._peer.forward(context)
        return {"able": self._forward is not None}

    def _rows(self, rows: int) -> dict[str, Any]:
        assert self._forward is not None
        return {"seconds": self._forward(rows)}


_PR_SET_PDEATHSIG = 1
"""Option of Linux's prctl."""


def main() -> None:
    if sys.platform == "linux":
        # a process that is stopped (while others are measured) does not notice the end of the pipe
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    name, orders, answers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    guest = Guest(name)
    with os.fdopen(orders, encoding="utf-8") as lines, os.fdopen(answers, "w", encoding="utf-8") as out:
        for line in lines:
            out.write(json.dumps(guest.answer(json.loads(line))) + "\n")
            out.flush()
    guest.close()


if __name__ == "__main__":
    main()
