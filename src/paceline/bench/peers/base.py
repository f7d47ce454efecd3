"""Peer: the interface to other engines that run the same weights.

A peer is imported only when it is requested. An error in its code becomes one sentence in its row of the report.
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
    """The input of a peer.

    target, draft: checkpoint folders in Llama form; draft None without a draft model. work: a folder for exported files.
    weights: the weight format of this engine's target, to be matched as closely as the peer can. context: the longest text,
    in tokens. ends: token ids that end a text. threads: most threads.
    """

    target: Path
    draft: Path | None
    work: Path
    weights: str
    context: int
    ends: frozenset[int]
    threads: int


MATERIAL = TypeAdapter(Material)
"""Converts it to JSON and back."""


class Peer(ABC):
    """One engine, loaded. name: as in `--peers`. version: of its package. weights: the format it really holds. options: its other
    options, and how it was built, for the record."""

    name: str
    version: str
    weights: str
    options: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def modes(self) -> dict[str, Callable[[], Mode]]:
        """Ways to decode: "plain", and its own speculation if it has any; name -> a function that loads it."""

    def forward(self, context: int) -> Callable[[int], float] | None:
        """A function for the seconds of a forward pass over n rows after `context` cached tokens, with logits of all rows; None
        if the peer does not offer it."""
        return None

    def close(self) -> None:
        """Free resources that the library would not free by itself."""
        return


Mode = Callable[[Many[int], int], Decoded]
"""Decodes greedily from prompt ids up to a number of tokens, or to a token that ends a text."""


class PeerDecoder:
    """One mode of a peer, loaded on construction. Raises DecoderFailed for any error inside the peer."""

    def __init__(self, peer: Peer, mode: str, load: Callable[[], Mode]) -> None:
        self.name = f"{peer.name} {mode}"
        self.peer = peer.name
        self._run: Mode = guarded(load)

    def begin(self) -> None:
        """Nothing to forget: no mode of a peer learns from past answers."""

    def decode(self, prompt: Many[int], max_tokens: int) -> Decoded:
        return guarded(lambda: self._run(prompt, max_tokens))


def guarded(call: Callable[[], Result]) -> Result:
    """Call a peer's code; any exception becomes DecoderFailed with a one-line message."""
    try:
        return call()
    # other engines may raise anything
    except Exception as error:
        message = " ".join(str(error).split()) or type(error).__name__
        raise DecoderFailed(message[:_LONGEST_MESSAGE]) from error
