"""The radix tree gives the results of comparing all texts, and stores every shared token once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, takewhile
from types import FrameType
from typing import Any

from hypothesis import given, settings, strategies as st

from paceline.engine import radix
from paceline.engine.radix import RadixTree

TEXTS = st.lists(st.integers(0, 2), max_size=7)
ACTIONS = st.lists(st.tuples(st.integers(0, 6), st.none() | TEXTS), max_size=40)


def common(one: list[int], other: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def spans(tree: RadixTree) -> Iterator[tuple[int, ...]]:
    """The token spans of all nodes: shared by texts, or of one text alone."""
    left = list(tree._top.children.values())
    while left:
        node = left.pop()
        yield node.span
        left += node.children.values()


@settings(max_examples=300, deadline=None)
@given(actions=ACTIONS, asked=TEXTS)
def test_a_radix_tree_finds_what_a_list_of_texts_finds_after_any_actions(
    actions: list[tuple[int, list[int] | None]], asked: list[int]
) -> None:
    tree, texts = RadixTree(), dict[int, list[int]]()
    for key, text in actions:
        if text is None:
            tree.remove(key)
            texts.pop(key, None)
        else:
            tree.put(key, text)
            texts[key] = text
        assert len(tree) == len(texts)
        beginnings = {tuple(text[:length]) for text in texts.values() for length in range(1, len(text) + 1)}
        held = list(spans(tree))
        # every distinct prefix token is stored once, and a span ends only where a text ends or where two texts part
        assert sum(map(len, held)) == len(beginnings)
        assert len(held) <= max(2 * len(texts) - 1, 0)
    found = tree.alike(asked)
    assert [length for length, _ in found] == sorted({length for length, _ in found}, reverse=True)
    for length, keys in found:
        assert set(keys) == {key for key, text in texts.items() if common(text, asked) >= length}
    longest = {key: common(text, asked) for key, text in texts.items()}
    assert (found[0][0] if found else 0) == max(longest.values(), default=0)


def interrupted(action: Callable[[], object], line: int) -> bool:
    """Interrupts an action at the `line`-th executed line of the tree's code; returns whether it got that far."""
    left = [line]

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != radix.__file__:
            return None
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def shape(tree: RadixTree) -> tuple[int, int, object]:
    """The numbers of texts and tokens, and which texts share how much of a given one; the split into spans may vary."""
    found = tree.alike([1, 2, 3, 4, 5])
    return len(tree), sum(map(len, spans(tree))), {frozenset(keys): length for length, keys in reversed(found)}


def test_a_text_can_be_removed_after_an_interrupted_put_or_remove() -> None:
    others = {0: [1, 2, 3, 4], 1: [1, 2, 5], 2: [1, 2, 3, 4, 4]}
    for text in ([1, 2, 3, 4], [1, 2, 3, 1], [1, 9], [2], [1, 2, 3, 4, 4, 4]):
        for action in ("put", "remove"):
            for line in count(1):
                tree = RadixTree()
                for key, other in others.items():
                    tree.put(key, other)
                wanted = shape(tree)
                if action == "remove":
                    tree.put(7, text)
                act = partial(tree.put, 7, text) if action == "put" else partial(tree.remove, 7)
                if not interrupted(act, line):
                    break
                tree.remove(7)
                assert shape(tree) == wanted, (text, action, line)
