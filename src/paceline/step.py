"""Step and Verdict: what goes into one forward, and what comes out of it.

The layout is flat and ragged: one row of T tokens for the whole batch, a range of rows per sequence. The rows of a sequence
are the committed tokens its cache lacks, as a chain, and then the nodes of its tree below the root. The chain of a decoding
sequence is its root alone; a prefill chunk is a chain that may stop short of the root, and then there is no tree.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from functools import cached_property

import torch

from paceline.frozen import frozen
from paceline.sequence import Sequence
from paceline.tree import DraftTree


@frozen
class Feed:
    """Committed tokens to feed for one sequence: `tokens` go to the cache slots from `start` on.

    tree: the draft below the last of them, or None where the chain stops short of the root (a prefill chunk). prompt_logits:
    whether the logits of the committed tokens are wanted too, for log-probabilities of the prompt.
    """

    sequence: Sequence
    start: int
    tokens: tuple[int, ...]
    tree: DraftTree | None = None
    prompt_logits: bool = False


@frozen
class Segment:
    """The rows [low, high) of a step that belong to one sequence.

    start: committed tokens already in its cache, which is the slot and the position of the first row. Row `low + i` is staged
    in slot `start + i`; its position is its own for the chain and root + depth for a node.
    """

    sequence: Sequence
    low: int
    start: int
    chain: int
    tree: DraftTree | None
    prompt_logits: bool = False

    @property
    def rows(self) -> int:
        return self.chain + (len(self.tree.tokens) - 1 if self.tree is not None else 0)

    @property
    def high(self) -> int:
        return self.low + self.rows

    @property
    def end(self) -> int:
        """Slots in use once this segment is staged."""
        return self.start + self.rows

    @property
    def is_chain(self) -> bool:
        """True where every row sees exactly the rows before it."""
        return self.tree is None or self.tree.is_chain

    @property
    def nodes(self) -> int:
        """Rows whose logits decide what comes next: the root and the nodes below it; none for a prefill chunk."""
        return len(self.tree.tokens) if self.tree is not None else 0

    @property
    def prompt_rows(self) -> int:
        """Rows of committed tokens, from the first on, whose logits are wanted as well; the root's is not among them."""
        return self.chain - (self.tree is not None) if self.prompt_logits else 0

    @property
    def row_positions(self) -> tuple[int, ...]:
        """The position of every row."""
        chain = range(self.start, self.start + self.chain)
        if self.tree is None or len(self.tree) == 1:
            return tuple(chain)
        root = self.start + self.chain - 1
        return (*chain, *[root + depth for depth in self.tree.depth[1:]])

    @property
    def row_parents(self) -> tuple[int, ...]:
        """Per row its parent row, counted within this segment, -1 for the first: a row sees itself and what its parent sees."""
        chain = range(-1, self.chain - 1)
        if self.tree is None or len(self.tree) == 1:
            return tuple(chain)
        root = self.chain - 1
        return (*chain, *[root + parent for parent in self.tree.parents[1:]])

    @cached_property
    def positions(self) -> torch.Tensor:
        """int64 [rows]."""
        return torch.tensor(self.row_positions, dtype=torch.int64)

    @cached_property
    def ancestors(self) -> torch.Tensor:
        """bool [rows, rows]: row i may see row j, both counted within this segment."""
        seen = torch.ones(self.rows, self.rows, dtype=torch.bool).tril()
        if not self.is_chain and self.tree is not None:
            seen[self.chain - 1 :, self.chain - 1 :] = self.tree.ancestors
        return seen

    def slot(self, node: int) -> int:
        """The cache slot in which a node of the tree (the root included) is staged."""
        return self.start + self.chain - 1 + node


@frozen
class Step:
    """The flat view of one forward.

    tokens: T token ids. The views in plain integers are for callers that need no tensors, and are computed at every access;
    tensors are made at the first access and kept.
    """

    segments: tuple[Segment, ...]
    tokens: tuple[int, ...]

    @classmethod
    def of(cls, feeds: Many[Feed]) -> Step:
        """Lay the feeds of several sequences out in one flat row."""
        segments: list[Segment] = []
        tokens: list[int] = []
        for feed in feeds:
            if not feed.tokens:
                raise ValueError("every sequence of a step feeds at least one token")
            segments.append(Segment(feed.sequence, len(tokens), feed.start, len(feed.tokens), feed.tree, feed.prompt_logits))
            tokens += feed.tokens
            if feed.tree is not None:
                if feed.tree.tokens[0] != feed.tokens[-1]:
                    raise ValueError("the root of a tree is the last committed token fed")
                tokens += feed.tree.tokens[1:]
        return cls(tuple(segments), tuple(tokens))

    @property
    def row_positions(self) -> tuple[int, ...]:
        """The position of each of the T rows."""
        return tuple([position for segment in self.segments for position in segment.row_positions])

    @property
    def wanted_rows(self) -> tuple[int, ...]:
        """The W rows whose logits are computed: segment by segment those of the trees, in node order (root first), and behind
        all of them, again by segment, those of committed tokens whose logits are wanted."""
        rows: list[int] = []
        for segment in self.segments:
            if (tree := segment.tree) is not None:
                root = segment.low + segment.chain - 1
                rows += range(root, root + len(tree.tokens))
        for segment in self.segments:
            if segment.prompt_logits:
                rows += range(segment.low, segment.low + segment.prompt_rows)
        return tuple(rows)

    @property
    def wants_all(self) -> bool:
        """Whether every row is wanted, in its own order."""
        return self.wanted_rows == tuple(range(len(self.tokens)))

    @cached_property
    def token_ids(self) -> torch.Tensor:
        """int64 [T]."""
        return torch.tensor(self.tokens, dtype=torch.int64)

    @cached_property
    def positions(self) -> torch.Tensor:
        """int64 [T]."""
        return torch.tensor(self.row_positions, dtype=torch.int64)

    @cached_property
    def wants(self) -> torch.Tensor:
        """int64 [W]: `wanted_rows`."""
        return torch.tensor(self.wanted_rows, dtype=torch.int64)


@frozen
class Verdict:
    """The target's answer to one tree.

    path: accepted nodes from below the root down. tokens: what is emitted: the accepted tokens, then the one the target chose
    at the end of the path. Token i was chosen at node `(0, *path)[i]` and, where i < len(path), proposed by node `path[i]`. A
    stop may cut both: then `finish` names the reason and `accepted` still counts what the target accepted. A prefill chunk
    has the empty verdict.
    """

    path: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    accepted: int = 0
    finish: str | None = None

    def cut(self, count: int, finish: str | None) -> Verdict:
        """The first `count` tokens, and the nodes that proposed them."""
        return Verdict(self.path[:count], self.tokens[:count], self.accepted, finish)

    @property
    def kept(self) -> tuple[int, ...]:
        """The nodes whose keys and values a cache keeps: all before the last emitted token, which is the new root."""
        return self.path[: max(len(self.tokens) - 1, 0)]
