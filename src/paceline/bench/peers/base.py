"""Peer: another engine that runs the same weights, behind one small contract.

A peer is imported only when it is asked for. What goes wrong in its code ends in its row of the report, in one sentence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence as Many
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from pydantic import TypeAdapter

from paceline.bench.contest import Decoded, DecoderFailed

Result = TypeVar("Result")
_LONGEST_MESSAGE = 240


@dataclass(frozen=True)
class Material:
    """What a peer is given.

    target, draft: checkpoint folders in Llama form; draft None where there is none. work: a folder for what it exports.
    weights: the format this engine's target is held in, to be matched as nearly as the peer can. context: the longest text,
    in tokens. ends: token ids that end a text. threads: how many it may use.
    """

    target: Path
    draft: Path | None
    work: Path
    weights: str
    context: int
    ends: frozenset[int]
    threads: int


MATERIAL = TypeAdapter(Material)
"""To JSON, and from it."""


class Peer(ABC):
    """One engine, loaded. name: as `--peers` says it. version: of its package. weights: the format it really holds. options: what
    else it was told, and how it was built, for the record."""

    name: str
    version: str
    weights: str
    options: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def modes(self) -> dict[str, Callable[[], Mode]]:
        """Ways to decode: "plain", and its own speculation where it has any; name -> a function that loads it."""

    def forward(self, context: int) -> Callable[[int], float] | None:
        """Seconds of a forward over n rows behind `context` cached tokens, logits for each; None where it cannot be asked."""
        return None

    def close(self) -> None:
        """Give back what the library would not give back by itself."""
        return


Mode = Callable[[Many[int], int], Decoded]
"""Decode greedily from prompt ids up to a number of tokens, or to what ends a text."""


class PeerDecoder:
    """One mode of a peer, loaded when it is made. Raises DecoderFailed for whatever happens inside the peer."""

    def __init__(self, peer: Peer, mode: str, load: Callable[[], Mode]) -> None:
        self.name = f"{peer.name} {mode}"
        self.peer = peer.name
        self._run: Mode = guarded(load)

    def begin(self) -> None:
        """A peer is asked for nothing that learns from past answers."""

    def decode(self, prompt: Many[int], max_tokens: int) -> Decoded:
        return guarded(lambda: self._run(prompt, max_tokens))


def guarded(call: Callable[[], Result]) -> Result:
    """Call a peer's code; whatever it raises becomes DecoderFailed on one line."""
    try:
        return call()
    # engines written by others fail in any way they can
    except Exception as error:
        message = " ".join(str(error).split()) or type(error).__name__
        raise DecoderFailed(message[:_LONGEST_MESSAGE]) from error
