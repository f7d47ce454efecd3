"""llama.cpp: its C API through llama-cpp-python, plain and with the draft model; and the binding's own prompt lookup. On GGUF
files of the checkpoints.

The loop around a draft model is ours, since the binding has none: it drafts as `llama-server` did by default until 2026, up to
16 tokens while the draft gives its choice a probability of 0.75 or more.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence as Many
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from paceline.bench.contest import Decoded
from paceline.bench.peers.base import Material, Mode, Peer
from paceline.bench.peers.gguf_file import FORMATS, gguf_file
from paceline.engine.measure import some_tokens

_BATCH = 512
_DEEPEST, _LEAST = 16, 0.75
_LOOKED_UP_TOKENS = 5


class LlamaCpp(Peer):
    name = "llama.cpp"

    def __init__(self, material: Material) -> None:
        import llama_cpp  # pyright: ignore[reportMissingImports]

        self.version, self.weights = f"llama-cpp-python {llama_cpp.__version__}", FORMATS[material.weights]
        self._material = material
        self._lookups: list[Any] = []
        self._file = str(gguf_file(material.target, material.work, material.weights))
        self._contexts = [_Context(llama_cpp, self._file, material)]
        built = llama_cpp.llama_print_system_info().decode().strip()
        self.options = {"built": built, "looked up": f"{_LOOKED_UP_TOKENS} tokens"}
        if material.draft is not None:
            self.options["draft"] = f"at most {_DEEPEST} tokens, of {_LEAST} or more"

    def modes(self) -> dict[str, Callable[[], Mode]]:
        found: dict[str, Callable[[], Mode]] = {"plain": lambda: self._plain, "prompt lookup": self._lookup}
        if (draft := self._material.draft) is not None:
            found["draft model"] = lambda: self._with_draft(draft)
        return found

    def forward(self, context: int) -> Callable[[int], float]:
        inner = self._contexts[0]
        tokens = some_tokens(context + _BATCH, inner.vocab_size)
        inner.truncate(0)
        inner.feed(tokens[:context], 0)

        def run(rows: int) -> float:
            began = perf_counter()
            inner.feed(tokens[context : context + rows], context, every_row=True)
            seconds = perf_counter() - began
            inner.truncate(context)
            return seconds

        return run

    def close(self) -> None:
        for one in (*self._lookups, *self._contexts):
            one.close()

    def _plain(self, prompt: Many[int], max_tokens: int) -> Decoded:
        inner, ends = self._contexts[0], self._material.ends
        inner.truncate(0)
        began = perf_counter()
        inner.feed(prompt, 0)
        tokens = [int(inner.logits().argmax())]
        first_s = perf_counter() - began
        while tokens[-1] not in ends and len(tokens) < max_tokens:
            inner.feed(tokens[-1:], len(prompt) + len(tokens) - 1)
            tokens.append(int(inner.logits().argmax()))
        return Decoded(tokens, first_s, 1, perf_counter() - began)

    def _with_draft(self, folder: Path) -> Mode:
        import llama_cpp  # pyright: ignore[reportMissingImports]

        material, target = self._material, self._contexts[0]
        # in its own folder, since the draft may have the same name as its target
        place = material.work / "draft"
        place.mkdir(exist_ok=True)
        draft = _Context(llama_cpp, str(gguf_file(folder, place, material.weights)), material)
        self._contexts.append(draft)

        def drafted(text: list[int], most: int) -> list[int]:
            """The draft's continuation of a text, whose beginning is in the draft's cache."""
            found: list[int] = []
            while len(found) < most:
                draft.feed([*text, *found][draft.held :], draft.held)
                row = draft.logits()
                token = int(row.argmax())
                if 1.0 / np.exp(row - row[token]).sum() < _LEAST:
                    break
                found.append(token)
            return found

        def decode(prompt: Many[int], max_tokens: int) -> Decoded:
            target.truncate(0)
            draft.truncate(0)
            began = perf_counter()
            target.feed(prompt, 0)
            text = [*prompt, int(target.logits().argmax())]
            first_s, longest = perf_counter() - began, len(prompt) + max_tokens
            while text[-1] not in material.ends and len(text) < longest:
                tokens = drafted(text, min(_DEEPEST, longest - len(text) - 1))
                target.feed([text[-1], *tokens], len(text) - 1, every_row=True)
                chosen = [int(target.logits(row).argmax()) for row in range(len(tokens) + 1)]
                right = next((n for n, token in enumerate(tokens) if token != chosen[n]), len(tokens))
                draft.truncate(len(text) + right)
                taken = chosen[: right + 1]
                # a text may end among the drafted tokens
                text += taken[: next((n for n, token in enumerate(taken, 1) if token in material.ends), len(taken))]
                target.truncate(len(text) - 1)
            return Decoded(text[len(prompt) :], first_s, 1, perf_counter() - began)

        return decode

    def _lookup(self) -> Mode:
        from llama_cpp import Llama  # pyright: ignore[reportMissingImports]
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding  # pyright: ignore[reportMissingImports]

        threads = self._material.threads
        model = Llama(
            self._file,
            n_ctx=self._material.context,
            n_batch=_BATCH,
            n_threads=threads,
            n_threads_batch=threads,
            draft_model=LlamaPromptLookupDecoding(max_ngram_size=3, num_pred_tokens=_LOOKED_UP_TOKENS),
            verbose=False,
        )
        self._lookups.append(model)

        def decode(prompt: Many[int], max_tokens: int) -> Decoded:
            model.reset()
            tokens: list[int] = []
            first_s = 0.0
            began = perf_counter()
            for token in model.generate(list(prompt), temp=0.0, top_k=1, repeat_penalty=1.0, reset=True):
                first_s = first_s or perf_counter() - began
                tokens.append(token)
                if token in self._material.ends or len(tokens) == max_tokens:
                    break
            return Decoded(tokens, first_s, 1, perf_counter() - began)

        return decode


class _Context:
    """A model and a context of one sequence, through the C API, so that the only Python per token is the loop. held: tokens in
    its cache."""

    def __init__(self, library: Any, file: str, material: Material) -> None:
        self._library = library
        library.llama_backend_init()
        # keep a reference: the library may call it at any time
        self._silence = library.llama_log_callback(lambda level, text, data: None)
        library.llama_log_set(self._silence, ctypes.c_void_p(0))
        self._model = library.llama_model_load_from_file(file.encode(), library.llama_model_default_params())
        options = library.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = material.context, _BATCH, _BATCH
        options.n_threads = options.n_threads_batch = material.threads
        self._context = library.llama_init_from_model(self._model, options) if self._model else None
        if not self._context:
            raise RuntimeError("the model or its context could not be made")
        self._batch = library.llama_batch_init(_BATCH, 0, 1)
        self._memory = library.llama_get_memory(self._context)
        self.vocab_size = library.llama_vocab_n_tokens(library.llama_model_get_vocab(self._model))
        self.held = 0

    def close(self) -> None:
        self._library.llama_batch_free(self._batch)
        self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)

    def truncate(self, length: int) -> None:
        """Truncate the cache to `length` tokens."""
        self._library.llama_memory_seq_rm(self._memory, 0, length, -1)
        self.held = min(self.held, length)

    def feed(self, tokens: Many[int], start: int, every_row: bool = False) -> None:
        """Run a forward pass over tokens, in pieces of the batch size, with logits of the last row or of every row."""
        for low in range(0, len(tokens), _BATCH):
            piece, batch = tokens[low : low + _BATCH], self._batch
            batch.n_tokens = len(piece)
            for row, token in enumerate(piece):
                batch.token[row], batch.pos[row] = token, start + low + row
                batch.n_seq_id[row], batch.seq_id[row][0] = 1, 0
                batch.logits[row] = every_row or low + row == len(tokens) - 1
            if self._library.llama_decode(self._context, batch):
                raise RuntimeError("llama_decode failed")
        self._library.llama_synchronize(self._context)
        self.held = start + len(tokens)

    def logits(self, row: int = -1) -> np.ndarray:
        """Logits of a row, by default the last; float32 [V], overwritten by the next forward pass."""
        return np.ctypeslib.as_array(self._library.llama_get_logits_ith(self._context, row), shape=(self.vocab_size,))


def load(material: Material) -> Peer:
    return LlamaCpp(material)
