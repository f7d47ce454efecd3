"""Batches: throughput of many requests at once, plain and drafted, taking turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence as Many
from statistics import median
from typing import Any

from paceline.bench.contest import Rules
from paceline.bench.ours import EngineDecoder, Flow


def batch_rows(
    decoders: Many[EngineDecoder],
    prompts: Many[Many[int]],
    size: int,
    rules: Rules,
    advance: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """One row per decoder, the first of which is plain: `size` requests always in flight, each that ends replaced by the next.

    tokens_per_s counts the tokens of all, over a time in which the batch was full: where places stay empty there is
    nothing to be had from speculation but that some texts end before others.
    """
    flows: dict[str, list[Flow]] = {decoder.name: [] for decoder in decoders}
    for _ in range(rules.repeats):
        for decoder in decoders:
            decoder.begin()
            flows[decoder.name].append(decoder.decode_flow(prompts, size, rules.max_tokens))
            advance()
    plain = decoders[0].name
    rates = {name: median(flow.tokens / flow.seconds for flow in found) for name, found in flows.items()}
    return [
        {
            "mode": name,
            "batch": size,
            "tokens": found[-1].tokens,
            "seconds": found[-1].seconds,
            "tokens_per_s": rates[name],
            "plain_tokens_per_s": rates[plain],
            "ratio": rates[name] / rates[plain],
            **_equal(found[-1].token_ids, flows[plain][-1].token_ids),
        }
        for name, found in flows.items()
    ]


def _equal(texts: dict[int, list[int]], plain: dict[int, list[int]]) -> dict[str, int]:
    """Requests that ended here and in plain decoding, and how many of them emitted the same."""
    both = texts.keys() & plain.keys()
    return {"prompts": len(both), "equal_prompts": sum(texts[number] == plain[number] for number in both)}
