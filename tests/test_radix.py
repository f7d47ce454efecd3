"""The radix tree says what a comparison of every text with every other would say, and holds no more than it must."""

from __future__ import annotations

from itertools import takewhile

from hypothesis import given, settings, strategies as st

from paceline.engine.radix import RadixTree

TEXTS = st.lists(st.integers(0, 2), max_size=7)
ACTIONS = st.lists(st.tuples(st.integers(0, 6), st.none() | TEXTS), max_size=40)


def common(one: list[int], other: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@settings(max_examples=300, deadline=None)
@given(actions=ACTIONS, asked=TEXTS)
def test_any_life_of_the_tree_is_that_of_a_list_of_texts(actions: list[tuple[int, list[int] | None]], asked: list[int]) -> None:
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
        spans = list(tree.spans())
        # every token that differs is held once, and a stretch ends only where a text does or where two part
        assert sum(map(len, spans)) == len(beginnings)
        assert len(spans) <= max(2 * len(texts) - 1, 0)
    found = tree.alike(asked)
    assert [length for length, _ in found] == sorted({length for length, _ in found}, reverse=True)
    for length, keys in found:
        assert set(keys) == {key for key, text in texts.items() if common(text, asked) >= length}
    longest = {key: common(text, asked) for key, text in texts.items()}
    assert (found[0][0] if found else 0) == max(longest.values(), default=0)
