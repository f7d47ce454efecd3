"""A service that streams words, with accepted and rejected drafts and a character split over two tokens; and a server for it."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import uvicorn
from fastapi import FastAPI

from paceline.logprobs import TokenLogprobs
from paceline.serve.asking import Ask, Delta, Drafted, Ending, StepTrace
from serve.fakes import FakeService

TEXT = " The kite rose over the hill, then fell into a café 🪁 by the river.\nThe boy ran after it,\tand the wind ran with him.\n"
LOST = (" red", " cloud", " sank", " under")
END = "</s>"


def pieces(text: str) -> list[bytes]:
    """Words with the space before them; a word with non-Latin characters is split within its last character."""
    found: list[bytes] = []
    for word in re.findall(r" ?\w+| ?[^\w\s]|\s", text):
        data = word.encode()
        found += [data] if word.isascii() or "é" in word else [data[:-2], data[-2:]]
    return found


@dataclass
class WordService(FakeService):
    """Three tokens per step with a drafter, one without. pause_s: between steps. reason: the finish reason of answers."""

    pause_s: float = 0.02
    reason: str = "length"
    drafters: tuple[str, ...] = ("reference", "grammar", "ngram", "suffix", "model")
    default_drafters: tuple[str, ...] = ("reference", "grammar", "ngram", "model")
    context_length: int = 4096
    model: str = "paceline-words"

    def __post_init__(self) -> None:
        self.words = pieces(TEXT)
        self.ids = sorted({*self.words, *(lost.encode() for lost in LOST), END.encode()})
        self.hold = lambda: asyncio.sleep(self.pause_s)

    def reset(self, **fields: Any) -> None:
        """Reset all fields to those of a new service."""
        self.__dict__.update(WordService(**fields).__dict__)
        self.__post_init__()

    async def encode(self, text: str, add_special: bool = True) -> list[int]:
        return [0] * max(len(text) // 4, 1)

    def piece(self, token: int) -> bytes:
        return self.ids[token]

    def deltas(self, ask: Ask) -> list[Delta]:
        tokens = [self.ids.index(word) for word in self.words]
        wanted = ask.params.max_tokens
        whole = (tokens * (wanted // len(tokens) + 1))[:wanted]
        names = tuple(
            name
            for name in (self.default_drafters if ask.drafters is None else ask.drafters)
            if name in ("ngram", "suffix", "model")
        )
        size = 3 if names else 1
        decoder = codecs.getincrementaldecoder("utf-8")()
        deltas = [
            self._delta(whole[low : low + size], low // size, names, decoder, ask.params.logprobs)
            for low in range(0, wanted, size)
        ]
        counts = {
            "tau": wanted / len(deltas),
            "policy": self.policy,
            "verifier": self.verifier,
            "target": self.target,
            "lossless": True,
            "num_spec_steps": len(deltas),
            "num_accepted_draft_tokens": wanted - len(deltas),
            "num_draft_tokens": 5 * len(deltas) if names else 0,
            "acceptance_by_depth": [1.0, 0.5],
            "acceptance_histogram": [0, 1],
        }
        return [*deltas, Delta(ending=Ending(self.reason, ask.params.seed or 0, speculation=counts))]

    def _delta(
        self, ids: list[int], number: int, names: tuple[str, ...], decoder: codecs.IncrementalDecoder, logprobs: int | None
    ) -> Delta:
        text = decoder.decode(b"".join(map(self.piece, ids)))
        told = None
        if logprobs is not None:
            told = tuple(
                TokenLogprobs(token, -0.1, 1, ((token, -0.1), *((other, -3.0 - other) for other in range(4)))) for token in ids
            )
        if not names:
            return Delta(text, tuple(ids), ("",), told, steps=(StepTrace(1, 0, 0, Drafted(), 0.0, 0.004, 0.0, 1),))
        source = names[number % len(names)]
        lost = [self.ids.index(word.encode()) for word in LOST[: 3 + number % 2]]
        # a chain of two below the root, a sibling of its first token, and, of four, one below the first emitted token
        parents = (-1, 0, -1, -2)[: len(lost)]
        step = StepTrace(
            emitted=len(ids),
            drafted=len(lost) + len(ids) - 1,
            accepted=len(ids) - 1,
            rejected=Drafted(tuple(lost), parents, (source,) * len(lost)),
            draft_s=0.001,
            forward_s=0.004,
            verify_s=0.0001,
            rows=6,
        )
        return Delta(text, tuple(ids), (*[source] * (len(ids) - 1), ""), told, steps=(step,))


@contextlib.contextmanager
def listening(app: FastAPI) -> Iterator[str]:
    """Serves the application on a free port, in a thread."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, ws="none", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until = time.monotonic() + 10
        while not server.started:
            assert thread.is_alive()
            assert time.monotonic() < until
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.force_exit = server.should_exit = True
        thread.join(10)
