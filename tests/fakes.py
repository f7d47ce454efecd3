"""Fakes that cannot hide a mistake: a target that computes from the contents of its cache, a tokenizer, scripted drafters.

`TableModel` looks up its logits by the last tokens visible to a row. It finds them through the real step, ancestors, positions
and slots, so a stale slot, a wrong mask or a wrong position gives a different text, not noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence as Many
from random import Random

import torch

from paceline.budget import Budget
from paceline.cache.base import Branching, KVCache, check_starts, kept_slots
from paceline.cache.dense import DenseCache
from paceline.drafters.base import Drafter
from paceline.drafters.model import ModelDrafter, Options
from paceline.draws import siblings
from paceline.models.base import LanguageModel, Scores
from paceline.policies.fixed import FixedPolicy
from paceline.sampling import Context, choose
from paceline.sequence import Sequence
from paceline.step import Segment, Step, Verdict
from paceline.tree import DraftTree, Proposal

Slot = tuple[int, int]
"""An entry of a fake cache, in place of keys and values: a token and its position."""


class RecordingCache(KVCache):
    """Lists of slots. Slots not kept by a commit stay behind the length, as in a real slab."""

    def __init__(self) -> None:
        self.slots: dict[int, list[Slot]] = {}
        self.lengths: dict[int, int] = {}
        self.peak = 0
        """The highest number of slots ever in use, staged ones included."""
        self._staged: Step | None = None

    def length(self, key: int) -> int:
        return self.lengths.get(key, 0)

    def stage(self, step: Step) -> None:
        check_starts(step, self)
        for segment in step.segments:
            self.lengths.setdefault(segment.sequence.key, 0)
        staged = {segment.sequence.key: segment.end for segment in step.segments}
        self.peak = max(self.peak, sum({**self.lengths, **staged}.values()))
        self._staged = step

    def write(self, segment: Segment, fresh: Many[Slot]) -> list[Slot]:
        """Fill the segment's slots and return all that are in use."""
        slots = self.slots.setdefault(segment.sequence.key, [])
        slots[segment.start : segment.end] = fresh
        return slots[: segment.end]

    def commit(self, verdicts: Many[Verdict]) -> None:
        assert self._staged is not None
        for segment, (length, path) in zip(self._staged.segments, kept_slots(self._staged, verdicts), strict=True):
            slots = self.slots[segment.sequence.key]
            slots[length : length + len(path)] = [slots[slot] for slot in path]
            self.lengths[segment.sequence.key] = length + len(path)
        self._staged = None

    def pretend(self, sequence: Sequence, length: int) -> bool:
        return False

    def truncate(self, key: int, length: int) -> None:
        if key in self.lengths:
            self.lengths[key] = min(self.lengths[key], length)

    def fork(self, key: int, new_key: int, length: int | None = None) -> None:
        self.slots[new_key] = list(self.slots.get(key, []))
        self.lengths[new_key] = self.length(key)
        if length is not None:
            self.truncate(new_key, length)

    def release(self, key: int) -> None:
        self.slots.pop(key, None)
        self.lengths.pop(key, None)

    @property
    def held_bytes(self) -> int:
        return sum(self.lengths.values())


class DenseTableCache(DenseCache):
    """The engine's own slabs, holding tokens and positions as one key vector."""

    def write(self, segment: Segment, fresh: Many[Slot]) -> list[Slot]:
        keys, _ = self.store(0, segment, torch.tensor([fresh], dtype=torch.float32), torch.zeros(1, len(fresh), 1))
        return [(int(token), int(position)) for token, position in keys[0].tolist()]


_TABLE_ROWS = 4096


class TableModel(LanguageModel):
    """Logits are a pure function of the last `memory` tokens (None: all): a row of a random table, sharpened."""

    name, weights, weights_bytes = "table", "fp32", 0

    def __init__(
        self,
        vocab_size: int = 5,
        *,
        memory: int | None = 3,
        sharpness: float = 2.0,
        seed: int = 0,
        context_length: int = 4096,
        eos: Iterable[int] = (),
        branching: Branching = Branching.TREE,
        cache: type[RecordingCache] | type[DenseTableCache] = RecordingCache,
    ) -> None:
        noise = torch.Generator().manual_seed(seed)
        self.table = torch.randn(_TABLE_ROWS, vocab_size, generator=noise) * sharpness
        self.vocab_size, self.context_length, self.branching = vocab_size, context_length, branching
        self.eos_token_ids = frozenset(eos)
        self._memory, self._cache = memory, cache

    def disturbed(self, amount: float, seed: int = 1) -> TableModel:
        """A model that often agrees with this one, as a drafter for it."""
        other = TableModel(self.vocab_size, memory=self._memory, context_length=self.context_length)
        noise = torch.Generator().manual_seed(seed)
        other.table = self.table + amount * torch.randn(self.table.shape, generator=noise)
        return other

    def new_cache(self) -> KVCache:
        return self._cache()

    def row(self, tokens: Many[int]) -> torch.Tensor:
        """float32 [V]: the logits after `tokens`, without a step or a cache."""
        return self.table[self._index([(token, at) for at, token in enumerate(tokens)], len(tokens) - 1)]

    def _index(self, seen: Many[Slot], position: int) -> int:
        """seen: the slots a row sees, by position, its own token last. Any misplaced slot changes the result."""
        tail = seen if self._memory is None else seen[-self._memory :]
        mixed = 0
        for offset, (token, at) in enumerate(tail, position + 1 - len(tail)):
            mixed = (mixed * 1_000_003 + token + 1 + 7919 * (at - offset)) & 0xFFFFFFFF
        return (mixed ^ mixed >> 15) * 2_654_435_761 % 2**32 % _TABLE_ROWS

    def score(self, step: Step, cache: KVCache, taps: Iterable[int] = ()) -> Scores:
        assert isinstance(cache, RecordingCache | DenseTableCache)
        ids, positions = step.token_ids.tolist(), step.positions.tolist()
        indices: dict[int, int] = {}
        wanted = step.wants.tolist()
        for segment in step.segments:
            low, high, start = segment.low, segment.high, segment.start
            slots = cache.write(segment, list(zip(ids[low:high], positions[low:high], strict=True)))
            before = slots[max(start - (self._memory or start), 0) : start]
            rows = high - low
            if rows == 1:
                indices[low] = self._index([*before, slots[start]], positions[low])
                continue
            visible = segment.ancestors.tolist()
            for row in range(rows):
                if low + row not in wanted:
                    continue
                own = [slots[start + other] for other, sees in enumerate(visible[row]) if sees]
                seen = sorted(before + own, key=lambda slot: slot[1])
                indices[low + row] = self._index(seen, positions[low + row])
        return Scores(self.table[[indices[row] for row in wanted]])


class FakeTokenizer:
    """A token is a few bytes; special ones have no text. Encoding takes the longest piece first."""

    def __init__(self, pieces: Many[bytes], special: Iterable[int] = ()) -> None:
        self.pieces, self.special = list(pieces), frozenset(special)
        self.eos_token_id = min(self.special, default=None)

    @classmethod
    def of_bytes(cls, *more: bytes) -> FakeTokenizer:
        """Ids 0 to 255 are the bytes; then `more`; the last id is the end of text."""
        return cls([*(bytes([byte]) for byte in range(256)), *more, b""], special=(256 + len(more),))

    @classmethod
    def of_letters(cls, size: int) -> FakeTokenizer:
        return cls([bytes([97 + token % 26]) for token in range(size)])

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        left, ids = text.encode(), []
        while left:
            token = max(
                (t for t, piece in enumerate(self.pieces) if piece and left.startswith(piece)),
                key=lambda t: len(self.pieces[t]),
            )
            ids.append(token)
            left = left[len(self.pieces[token]) :]
        return ids

    def decode(self, ids: Many[int], skip_special_tokens: bool = True) -> str:
        return b"".join(self.pieces[token] for token in ids).decode("utf-8", errors="replace")

    def same_vocabulary(self, other: FakeTokenizer) -> bool:
        return self.pieces == other.pieces


class SpacedTokenizer(FakeTokenizer):
    """Decodes without the space at the start of a text, as tokenizers of the SentencePiece kind do."""

    def decode(self, ids: Many[int], skip_special_tokens: bool = True) -> str:
        return super().decode(ids).removeprefix(" ")


class FallbackTokenizer(SpacedTokenizer):
    """Replaces a whole run of byte tokens if it is not valid UTF-8, as the byte fallback of SentencePiece models does."""

    def decode(self, ids: Many[int], skip_special_tokens: bool = True) -> str:
        text, run = "", b""
        for token in [*ids, None]:
            piece = b"" if token is None else self.pieces[token]
            if token is not None and token < 256 and piece >= b"\x80":
                run += piece
                continue
            try:
                text += run.decode()
            except UnicodeDecodeError:
                text += "\ufffd" * len(run)
            text, run = text + piece.decode("utf-8", errors="replace"), b""
        return text.removeprefix(" ")


def truth(model: TableModel, sequence: Sequence, ancestors: Many[int] = ()) -> int:
    """The token that plain decoding picks after the committed text and `ancestors`."""
    return choose(model.row([*sequence.tokens, *ancestors])[None], [Context(sequence, tuple(ancestors))])[0]


class ScriptedDrafter(Drafter):
    """A drafter whose trees come from `_tree`, with a random stream of its own per sequence and length."""

    name = "scripted"
    kinds = frozenset({Proposal.POINT})

    def __init__(self, model: TableModel, depth: int = 4, seed: int = 0) -> None:
        self.model, self.depth, self.seed = model, depth, seed
        self.budget = Budget(nodes=3 * depth, depth=depth)

    def propose(self, sequences: Many[Sequence], budgets: Many[Budget]) -> list[DraftTree]:
        trees = []
        for sequence, budget in zip(sequences, budgets, strict=True):
            stream = Random(f"{self.seed} {sequence.key} {len(sequence.tokens)}")
            trees.append(self._tree(sequence, budget, stream))
        return trees

    def _tree(self, sequence: Sequence, budget: Budget, stream: Random) -> DraftTree:
        return DraftTree.root(sequence.root)


class EmptyDrafter(ScriptedDrafter):
    """Asks for a budget and never uses it."""


class ChainDrafter(ScriptedDrafter):
    """Chains of tokens that are each right with probability `skill`: 1 always, 0 never."""

    skill = 1.0

    def _tree(self, sequence: Sequence, budget: Budget, stream: Random) -> DraftTree:
        tokens: list[int] = []
        for _ in range(min(budget.depth, budget.nodes, self.depth)):
            right = truth(self.model, sequence, tokens)
            wrong = (right + stream.randrange(1, self.model.vocab_size)) % self.model.vocab_size
            tokens.append(right if stream.random() < self.skill else wrong)
        return DraftTree.chain(sequence.root, tokens, self.name)


class WrongDrafter(ChainDrafter):
    skill = 0.0


class MixedDrafter(ChainDrafter):
    skill = 0.7


class TreeDrafter(ScriptedDrafter):
    """Random trees within the budget; about every second node holds the token that plain decoding would take there."""

    def _tree(self, sequence: Sequence, budget: Budget, stream: Random) -> DraftTree:
        tokens, parents, paths = [sequence.root], [-1], [()]
        for _ in range(stream.randint(0, budget.nodes)):
            parent = stream.choice([len(tokens) - 1, stream.randrange(len(tokens))])
            path: tuple[int, ...] = paths[parent]
            token = self._token(sequence, path, stream)
            taken = {tokens[node] for node, up in enumerate(parents) if up == parent}
            if len(path) < budget.depth and token not in taken:
                tokens.append(token)
                parents.append(parent)
                paths.append((*path, token))
        return DraftTree(tuple(tokens), tuple(parents), sources=("", *[self.name] * (len(tokens) - 1)))

    def _token(self, sequence: Sequence, path: tuple[int, ...], stream: Random) -> int:
        return truth(self.model, sequence, path) if stream.random() < 0.5 else stream.randrange(self.model.vocab_size)


def skewed(stream: Random, size: int) -> int:
    """Low tokens more often: with uniform drafts, a bias towards drafted tokens would cancel out."""
    return min(stream.randrange(size), stream.randrange(size))


class BlindTreeDrafter(TreeDrafter):
    """Random trees drafted without looking at the truth: tokens independent of the noise."""

    def _token(self, sequence: Sequence, path: tuple[int, ...], stream: Random) -> int:
        return skewed(stream, self.model.vocab_size)


class BlindChainDrafter(ScriptedDrafter):
    def _tree(self, sequence: Sequence, budget: Budget, stream: Random) -> DraftTree:
        tokens = [skewed(stream, self.model.vocab_size) for _ in range(min(budget.depth, budget.nodes))]
        return DraftTree.chain(sequence.root, tokens, self.name)


class TrimmingPolicy(FixedPolicy):
    """Trims trees to the nodes that the drafter found likely. For drawn trees that would select among draws."""

    def trimmed(self, sequences: Many[Sequence], trees: Many[DraftTree]) -> list[DraftTree]:
        return [tree.only(node for node in range(1, len(tree)) if self._likely(tree, node)) for tree in trees]

    def _likely(self, tree: DraftTree, node: int) -> bool:
        probs = tree.proposals.get((tree.parents[node], tree.sources[node]))
        return probs is None or float(probs[tree.tokens[node]]) >= 0.35


class DrawnDrafter(Drafter):
    """Draws whole trees from a model's distribution, level by level, as one kind of proposal; `widths` children per node.

    It draws from random streams of its own, so a rule that keeps the law must keep it behind these drafts. amateur: it records
    its distribution at every node. POINT takes the likeliest tokens.
    """

    def __init__(
        self, model: TableModel, kind: Proposal, widths: Many[int] = (2, 1), name: str = "drawn", amateur: bool = False
    ) -> None:
        self.model, self.kind, self.widths, self.name, self.amateur = model, kind, tuple(widths), name, amateur
        self.kinds = frozenset({Proposal.POINT, kind})
        nodes, level = 0, 1
        for width in widths:
            level *= width
            nodes += level
        self.budget = Budget(nodes, len(self.widths))

    def propose(self, sequences: Many[Sequence], budgets: Many[Budget]) -> list[DraftTree]:
        return [self._tree(sequence).pruned(budget) for sequence, budget in zip(sequences, budgets, strict=True)]

    def _tree(self, sequence: Sequence) -> DraftTree:
        tokens, parents, proposals = [sequence.root], [-1], {}
        texts, level = [tuple(sequence.tokens)], [0]
        for width in (*self.widths, 0):
            below = []
            for node in level:
                probs = self.model.row(texts[node]).softmax(-1)
                if self.kind.drawn or self.amateur:
                    proposals[node, self.name] = probs
                for token in self._children(probs, width, sequence, node):
                    below.append(len(tokens))
                    tokens.append(token)
                    parents.append(node)
                    texts.append((*texts[node], token))
            level = below
        return DraftTree(
            tuple(tokens), tuple(parents), self.kind, proposals, ("", *[self.name] * (len(tokens) - 1))
        )  # fmt: skip

    def _children(self, probs: torch.Tensor, width: int, sequence: Sequence, node: int) -> list[int]:
        if not self.kind.drawn or not width:
            return probs.topk(width).indices.tolist()
        return siblings(probs, self.kind, width, sequence, f"draft {self.name}", node)


class GreedyOfBudgetDrafter(ChainDrafter):
    """Ignores its budget and drafts past every limit, as a careless drafter would."""

    def _tree(self, sequence: Sequence, budget: Budget, stream: Random) -> DraftTree:
        return super()._tree(sequence, Budget(2 * self.depth, 2 * self.depth), stream)


def coupled(model: TableModel, depth: int = 3, width: int = 1, disturbed: float = 1.0) -> ModelDrafter:
    """A model drafter with the same noise as the target, on a disturbed table."""
    return ModelDrafter(model.disturbed(disturbed), model.vocab_size, Options(path="fake", depth=depth, width=width))


SCRIPTED: tuple[type[ScriptedDrafter], ...] = (
    EmptyDrafter,
    ChainDrafter,
    WrongDrafter,
    MixedDrafter,
    TreeDrafter,
    BlindTreeDrafter,
    GreedyOfBudgetDrafter,
)
