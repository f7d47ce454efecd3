"""Bodies of whole answers are the same whether they are written at once or in pieces."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, strategies as st

from paceline.params import SamplingParams
from paceline.serve.answer_bodies import whole
from paceline.serve.asking import Ask

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
JSON = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=30
)


@given(JSON, st.integers(60, 70) | st.integers(126, 130))
def test_a_body_written_in_pieces_equals_one_written_at_once(value: Any, many: int) -> None:
    body = {"one": value, "many": [value] * many, "none": [], "nothing": {}}
    asks = [Ask((1,), SamplingParams(logprobs=count)) for count in (None, 0)]
    small, large = (asyncio.run(whole(lambda: body, [ask])) for ask in asks)
    assert small.body == large.body
    assert small.headers == large.headers
