"""Batches: throughput of many requests at once, plain and drafted, taking turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence as Many
from itertools import cycle, islice
from statistics import median
from typing import Any

from paceline.bench.contest import Rules, answer
from paceline.bench.ours import EngineDecoder


def batch_rows(
    decoders: Many[EngineDecoder],
    prompts: Many[Many[int]],
    size: int,
    rules: Rules,
    advance: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """One row per decoder, the first of which is plain: `size` requests at once, prompts repeated where there are fewer.

    tokens_per_s counts the tokens of all requests over the time until the last one ended.
    """
    asked = list(islice(cycle(prompts), size))
    times: dict[str, list[float]] = {decoder.name: [] for decoder in decoders}
    texts: dict[str, list[list[int]]] = {}
    for turn in range(rules.repeats + 1):
        for decoder in decoders:
            decoder.begin()
            decoded = decoder.decode_batch(asked, rules.max_tokens)
            texts[decoder.name] = [answer(one.token_ids, rules.ends) for one in decoded]
            if turn:
                times[decoder.name].append(max(one.total_s for one in decoded))
            advance()
    plain = decoders[0].name
    rates = {name: sum(map(len, texts[name])) / median(times[name]) for name in times}
    return [
        {
            "mode": name,
            "batch": size,
            "tokens": sum(map(len, texts[name])),
            "total_s": median(times[name]),
            "tokens_per_s": rates[name],
            "plain_tokens_per_s": rates[plain],
            "ratio": rates[name] / rates[plain],
            "equal_prompts": sum(a == b for a, b in zip(texts[name], texts[plain], strict=True)),
            "prompts": size,
        }
        for name in times
    ]
