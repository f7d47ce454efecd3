"""How many tokens at the end of a text are a loop: a phrase that is repeated at least three times."""

from __future__ import annotations

import pytest

from paceline.bench.loops import LONGEST, looped_tokens


@pytest.mark.parametrize(
    ("text", "looped"),
    [
        ("", 0),
        ("a", 0),
        ("abc", 0),
        ("xaa", 0),
        ("xaaa", 3),
        ("so, it is, it is, it is", 21),
        ("it is, it is, it is, no", 0),
        ("abababc", 0),
        ("abababa", 7),
    ],
)
def test_a_loop_is_a_phrase_that_stands_three_times_at_the_end(text: str, looped: int) -> None:
    assert looped_tokens([*map(ord, text)]) == looped


def test_a_phrase_longer_than_the_limit_is_no_loop() -> None:
    for size, found in ((LONGEST, 3 * LONGEST), (LONGEST + 1, 0)):
        assert looped_tokens([*range(size)] * 3) == found
