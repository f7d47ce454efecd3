"""Batches: throughput of many requests at once, plain and drafted, taking turns.

A flow takes seconds, and a shared machine may change its speed in that time. So flows run in short turns: the one with the least
time so far goes next, until all have ended. A turn is long compared with the time to refill the caches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence as Many
from statistics import median
from typing import Any

from paceline.bench.contest import Rules
from paceline.bench.ours import EngineDecoder, Flow

TURN_S = 0.25
"""Seconds of steps in one turn of a flow."""


def batch_rows(
    decoders: Many[EngineDecoder],
    prompts: Many[Many[int]],
    size: int,
    rules: Rules,
    advance: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """One row per decoder, the first of which is plain: `size` requests always in flight; each that ends is replaced by the next.

    tokens_per_s counts the tokens of all requests, over a time in which the batch was full and as many prompts were read as
    answers were written: with empty places, or unread prompts at the end, speculation would look better than it is. One number
    per repeat: `rounds`, how often the requests in flight were replaced; `held_tokens`, those emitted by requests in flight when
    counting began and ended; `tokens` and `seconds` between.
    """
    flows: dict[str, list[Flow]] = {decoder.name: [] for decoder in decoders}
    for _ in range(rules.repeats):
        for decoder in decoders:
            decoder.begin()
        under_way = [decoder.decode_flow(prompts, size, rules.max_tokens) for decoder in decoders]
        for decoder, flow in zip(decoders, _in_turns(under_way, advance), strict=True):
            flows[decoder.name].append(flow)
    plain = decoders[0].name
    rates = {name: median(flow.measured_tokens / flow.measured_s for flow in found) for name, found in flows.items()}
    return [
        {
            "mode": name,
            "keeps": decoders[number].keeps,
            "batch": size,
            "rounds": [len(flow.token_ids) / size - 1 for flow in found],
            "held_tokens": [[flow.held[step] for step in flow.measured] for flow in found],
            "tokens": [flow.measured_tokens for flow in found],
            "seconds": [flow.measured_s for flow in found],
            "tokens_per_s": rates[name],
            "plain_tokens_per_s": rates[plain],
            "ratio": rates[name] / rates[plain],
            **_equal([flow.token_ids for flow in found], flows[plain][0].token_ids),
        }
        for number, (name, found) in enumerate(flows.items())
    ]


def _in_turns(under_way: Many[Iterator[Flow]], advance: Callable[[], None]) -> list[Flow]:
    """Run all flows to their ends. advance: called at every end."""
    flows = [next(steps) for steps in under_way]
    going = set(range(len(flows)))
    while going:
        at = min(going, key=lambda at: flows[at].all_s)
        until = flows[at].all_s + TURN_S
        while flows[at].all_s < until:
            if next(under_way[at], None) is None:
                going.remove(at)
                advance()
                break
    return flows


def _equal(repeats: Many[dict[int, list[int]]], plain: dict[int, list[int]]) -> dict[str, int]:
    """Number of requests that ended in plain decoding and in any repeat, and of those whose texts equal plain decoding's in all
    repeats in which they ended."""
    texts = {number: [ended[number] for ended in repeats if number in ended] for number in plain}
    both = [number for number, found in texts.items() if found]
    equal = sum(all(text == plain[number] for text in texts[number]) for number in both)
    return {"prompts": len(both), "equal_prompts": equal}
