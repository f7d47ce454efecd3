"""Packing documents into rows of tokens, and the order in which training reads them.

Rows have one of two lengths. A document that fits goes into a short row, others into long rows: the cost of attention
grows with the length, and most documents here are a few sentences (measured: a third more tokens per second than with
long rows alone). Every row begins at the beginning of a document (or of a piece of a long one), as prompts do. The
order is a pure function of seed and step, so resuming needs no state.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from paceline.zoo.errors import RecipeError
from paceline.zoo.sources import Corpus

OPEN_ROWS = 64  # rows kept open while packing: more open rows waste less, but mix documents less
IGNORED = -100  # cross_entropy's default for "no target here"


@dataclass(frozen=True)
class Pool:
    """Packed rows, and statistics of the documents in them."""

    short: Tensor
    """[rows, short context + 1] int32."""
    long: Tensor
    """[rows, long context + 1] int32."""
    end_token: int
    tokens: dict[str, int]
    """Tokens per domain, padding not counted."""
    epochs: dict[str, float]
    """How often each domain's documents were used."""

    @property
    def long_share(self) -> float:
        """The share of positions that lie in long rows."""
        return self.long.numel() / max(1, self.long.numel() + self.short.numel())


def pieces(tokens: list[int], size: int) -> list[list[int]]:
    """A document cut into pieces of at most `size` tokens."""
    return [tokens[start : start + size] for start in range(0, len(tokens), size)]


def fill(documents: list[list[int]], size: int, end_token: int) -> Tensor:
    """Rows [rows, size] of whole documents, each in the fullest open row that has room for it."""
    done: list[list[int]] = []
    rows: list[list[int]] = []
    for document in documents:
        fitting = [row for row in rows if len(row) + len(document) <= size]
        if fitting:
            max(fitting, key=len).extend(document)
            continue
        if len(rows) == OPEN_ROWS:
            fullest = max(range(len(rows)), key=lambda index: len(rows[index]))
            done.append(rows.pop(fullest))
        rows.append(list(document))
    done += rows
    packed = torch.full((len(done), size), end_token, dtype=torch.int32)
    for index, row in enumerate(done):
        packed[index, : len(row)] = torch.tensor(row, dtype=torch.int32)
    return packed


def build_pool(
    corpus: Corpus,
    tokenizer: Tokenizer,
    end_token: int,
    total_tokens: int,
    short_context: int,
    long_context: int,
    seed: int,
) -> Pool:
    """About `total_tokens` in the corpus's shares; small domains repeat, large ones are sampled."""
    chosen: list[list[int]] = []
    counts: dict[str, int] = {}
    epochs: dict[str, float] = {}
    for domain, share in corpus.shares.items():
        draw = random.Random(f"pool {domain} {seed}")
        documents = corpus.train[domain]
        wanted = int(total_tokens * share)
        if not documents:
            raise RecipeError(f"there is no document of '{domain}' to train on")
        encoded: dict[int, list[int]] = {}
        count = used = 0
        while count < wanted:
            for index in draw.sample(range(len(documents)), len(documents)):
                if index not in encoded:
                    ids = tokenizer.encode(documents[index], add_special_tokens=False).ids
                    encoded[index] = [*ids, end_token]
                chosen.append(encoded[index])
                count += len(encoded[index])
                used += 1
                if count >= wanted:
                    break
        counts[domain] = count
        epochs[domain] = round(used / len(documents), 3)
    random.Random(f"pool order {seed}").shuffle(chosen)
    # one more than the context: a row gives `context` inputs and as many targets
    short_size, long_size = short_context + 1, long_context + 1
    short = [document for document in chosen if len(document) <= short_size]
    long = [piece for document in chosen if len(document) > short_size for piece in pieces(document, long_size)]
    # A long document's short last piece is packed with the short ones,
    # unless it is the end token alone, which leaves nothing to predict.
    short += [piece for piece in long if len(piece) <= short_size and piece != [end_token]]
    long = [piece for piece in long if len(piece) > short_size]
    if not short and not long:
        raise RecipeError("--tokens is too small for a single document")
    random.Random(f"piece order {seed}").shuffle(short)
    return Pool(
        short=fill(short, short_size, end_token),
        long=fill(long, long_size, end_token),
        end_token=end_token,
        tokens=counts,
        epochs=epochs,
    )


def save_pool(pool: Pool, path: Path) -> None:
    about = json.dumps({"end_token": pool.end_token, "tokens": pool.tokens, "epochs": pool.epochs})
    part = path.with_suffix(".tmp")
    save_file({"short": pool.short, "long": pool.long}, part, metadata={"about": about})
    part.rename(path)


def load_pool(path: Path) -> Pool:
    try:
        with safe_open(path, framework="pt") as opened:
            about = json.loads((opened.metadata() or {})["about"])
        tensors = load_file(path)
        return Pool(tensors["short"], tensors["long"], **about)
    except Exception as error:
        raise RecipeError(f"{path} is not a packed pool of this recipe: {error}") from None


@lru_cache(maxsize=4)  # two kinds of row, and the turn of an epoch
def permutation(seed: int, kind: str, epoch: int, rows: int) -> list[int]:
    """The order in which one epoch reads the rows of one kind."""
    order = list(range(rows))
    random.Random(f"rows {kind} {seed} {epoch}").shuffle(order)
    return order


def row_index(seed: int, kind: str, position: int, rows: int) -> int:
    """Index of the row at `position` of the endless stream."""
    epoch, place = divmod(position, rows)
    return permutation(seed, kind, epoch, rows)[place]


@dataclass(frozen=True)
class Stream:
    """The batches of a training run: `batches(step)` depends only on pool, sizes, seed and step."""

    pool: Pool
    seed: int
    batch_tokens: int
    """Tokens of one batch: many short rows or few long ones."""
    batches_per_step: int

    def _long_before(self, batch: int) -> int:
        """Number of long batches among the first `batch`: spread evenly, in proportion to the pool."""
        if len(self.pool.short) == 0:
            return batch
        return int(batch * self.pool.long_share)

    def batches(self, step: int) -> list[Tensor]:
        """The rows of one optimiser step: a list of [rows, context + 1] int64."""
        first = step * self.batches_per_step
        return [self._batch(first + offset) for offset in range(self.batches_per_step)]

    def _batch(self, number: int) -> Tensor:
        is_long = self._long_before(number + 1) > self._long_before(number)
        ordinal = self._long_before(number) if is_long else number - self._long_before(number)
        rows = self.pool.long if is_long else self.pool.short
        size = max(1, self.batch_tokens // (rows.shape[1] - 1))
        start = ordinal * size
        kind = "long" if is_long else "short"
        chosen = [row_index(self.seed, kind, start + offset, len(rows)) for offset in range(size)]
        return rows[chosen].long()


def inputs_and_targets(rows: Tensor, end_token: int) -> tuple[Tensor, Tensor]:
    """Split [B, T + 1] rows into inputs and targets [B, T]; padding after a row's end is not a target."""
    inputs, targets = rows[:, :-1], rows[:, 1:].clone()
    targets[(inputs == end_token) & (targets == end_token)] = IGNORED
    return inputs, targets
