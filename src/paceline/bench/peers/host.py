"""Host: a peer in a separate process, used over a pipe; one JSON object per line each way, nothing is unpickled.

So a peer's threads, memory and crashes do not disturb the measurements of others. Between orders its process is stopped:
llama.cpp's threads spin for a third of a second after their work, on cores where others are measured. A peer measures its own
times, so the pipe costs it nothing. Output of a library does not get into the pipe.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Sequence as Many
from typing import Any

from paceline.bench.contest import Decoded, DecoderFailed
from paceline.bench.peers.base import MATERIAL, Material, Mode, Peer
from paceline.child import command, module_paths

_END_S = 10.0
"""Longest time for a peer to exit."""


class HostedPeer(Peer):
    """A peer behind its pipe. Raises DecoderFailed for any error on the other side, including the end of the process."""

    def __init__(self, name: str, material: Material) -> None:
        asked, answers = os.pipe(), os.pipe()
        self._process = subprocess.Popen(
            command("-m", "paceline.bench.peers.guest", name, str(asked[0]), str(answers[1])),
            pass_fds=(asked[0], answers[1]),
            env={**os.environ, **module_paths()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(asked[0])
        os.close(answers[1])
        self._orders, self._answers = os.fdopen(asked[1], "w", encoding="utf-8"), os.fdopen(answers[0], encoding="utf-8")
        self.name = name
        try:
            self._known = self._ask("load", material=MATERIAL.dump_python(material, mode="json"))
        except BaseException:
            self.close()
            raise
        self.version, self.weights, self.options = (self._known[what] for what in ("version", "weights", "options"))

    @property
    def process_id(self) -> int:
        return self._process.pid

    def modes(self) -> dict[str, Callable[[], Mode]]:
        return {mode: lambda mode=mode: self._mode(mode) for mode in self._known["modes"]}

    def forward(self, context: int) -> Callable[[int], float] | None:
        if not self._ask("forward_behind", context=context)["able"]:
            return None
        return lambda rows: self._ask("rows", rows=rows)["seconds"]

    def close(self) -> None:
        self._signal("SIGCONT")
        for end in (self._orders, self._answers):
            # a peer that has ended does not accept buffered orders
            try:
                end.close()
            except OSError:
                continue
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _mode(self, mode: str) -> Mode:
        self._ask("open", mode=mode)

        def decode(prompt: Many[int], max_tokens: int) -> Decoded:
            return Decoded(**self._ask("decode", mode=mode, prompt=list(prompt), max_tokens=max_tokens)["decoded"])

        return decode

    def _signal(self, name: str) -> None:
        """Stop or continue its process, if the system supports it."""
        if hasattr(signal, name):
            self._process.send_signal(getattr(signal, name))

    def _ask(self, what: str, **fields: Any) -> dict[str, Any]:
        self._signal("SIGCONT")
        try:
            self._orders.write(json.dumps({"do": what, **fields}) + "\n")
            self._orders.flush()
            line = self._answers.readline()
        except OSError:
            line = ""
        # a process that ends while answering leaves an incomplete line
        if not line.endswith("\n"):
            raise DecoderFailed(self._ended())
        self._signal("SIGSTOP")
        answer = json.loads(line)
        if "error" in answer:
            raise DecoderFailed(answer["error"])
        return answer

    def _ended(self) -> str:
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "its process does not answer"
        how = f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
        return f"its process was ended {how}"
