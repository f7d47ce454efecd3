"""peers: other engines on the same weights. Each is one file with a `load`, and one row here."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from paceline.bench.errors import BenchError
from paceline.bench.peers.base import Material, Peer


@dataclass(frozen=True)
class PeerEntry:
    """module: of this package, with `load(material)`. needs: the packages it imports."""

    module: str
    needs: tuple[str, ...]

    @property
    def installed(self) -> bool:
        return all(find_spec(package) is not None for package in self.needs)

    def load(self, material: Material) -> Peer:
        return import_module(f"paceline.bench.peers.{self.module}").load(material)


PEERS = {
    "transformers": PeerEntry("transformers", ("transformers",)),
    "llama.cpp": PeerEntry("llama_cpp", ("llama_cpp", "gguf")),
    "ctranslate2": PeerEntry("ctranslate2", ("ctranslate2",)),
    "openvino": PeerEntry("openvino", ("openvino_genai", "gguf")),
}


def chosen(named: str) -> tuple[list[str], list[str]]:
    """From a comma list, the peers that are installed and those that are not. Raises BenchError for an unknown name."""
    names = list(dict.fromkeys(name.strip() for name in named.split(",") if name.strip()))
    for name in names:
        if name not in PEERS:
            raise BenchError(f"there is no peer '{name}': choose from {', '.join(PEERS)}")
    return [n for n in names if PEERS[n].installed], [n for n in names if not PEERS[n].installed]
