"""A radix tree: which texts begin alike, and how far. Exact tokens, no hashes: two texts are never mistaken for one.

Source: RadixAttention, SGLang, Zheng et al. (arXiv:2312.07104), section 3.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence as Many
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(eq=False, slots=True)
class _Node:
    """A span of tokens that all texts below have in common. keys: of those texts, in the order in which they came."""

    span: tuple[int, ...]
    keys: dict[int, None] = field(default_factory=dict)
    children: dict[int, _Node] = field(default_factory=dict)

    def split(self, length: int) -> None:
        """Leave the first `length` tokens here and move the rest, with all that is below, into a child."""
        below = _Node(self.span[length:], dict(self.keys), self.children)
        self.span, self.children = self.span[:length], {below.span[0]: below}

    def join(self) -> None:
        """Merge the only child into this node, where no text ends or branches off between them."""
        if len(self.children) == 1:
            (child,) = self.children.values()
            if len(child.keys) == len(self.keys):
                self.span, self.children = self.span + child.span, child.children


class RadixTree:
    """Texts under their keys. Takes memory in proportion to all of their tokens."""

    def __init__(self) -> None:
        self._top = _Node(())
        self._texts: dict[int, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._texts)

    def put(self, key: int, tokens: Many[int]) -> None:
        """Hold a text under its key, in place of what that key held before."""
        self.remove(key)
        text = self._texts[key] = tuple(tokens)
        node, at = self._top, 0
        node.keys[key] = None
        while at < len(text):
            child = node.children.get(text[at])
            if child is None:
                node.children[text[at]] = _Node(text[at:], {key: None})
                return
            same = _common(child.span, text[at : at + len(child.span)])
            if same < len(child.span):
                child.split(same)
            child.keys[key] = None
            node, at = child, at + same

    def remove(self, key: int) -> None:
        """Forget a text; a no-op for a key that holds none."""
        text = self._texts.get(key)
        if text is None:
            return
        path, at = [self._top], 0
        # after an interrupt of `put` the key may be in only a part of its nodes
        while at < len(text) and (node := path[-1].children.get(text[at])) is not None and key in node.keys:
            path.append(node)
            at += len(node.span)
        for above, node in reversed([*pairwise(path)]):
            if len(node.keys) == 1:
                # no other text passes through here, nor anywhere below
                del above.children[node.span[0]]
            else:
                del node.keys[key]
                node.join()
        self._top.keys.pop(key, None)
        del self._texts[key]

    def alike(self, tokens: Many[int]) -> list[tuple[int, Collection[int]]]:
        """How far texts begin as `tokens` do: (tokens in common, keys of the texts with as many or more), most first."""
        text, node, at = tuple(tokens), self._top, 0
        found: list[tuple[int, Collection[int]]] = []
        while at < len(text) and (child := node.children.get(text[at])) is not None:
            same = _common(child.span, text[at : at + len(child.span)])
            at += same
            found.append((at, tuple(child.keys)))
            if same < len(child.span):
                break
            node = child
        return found[::-1]


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Length of the common prefix of two spans."""
    if one == other:
        return len(one)
    low, high = 0, min(len(one), len(other))
    # comparing slices is C's work, a token at a time is Python's
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
