"""Report: from tallies to the record of a run. Every ratio is stored with both of its terms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence as Many
from statistics import median
from typing import Any

from paceline.bench.contest import Tally
from paceline.bench.ours import PLAIN
from paceline.bench.prompts import Prepared
from paceline.bench.tasks import ALL


def task_rows(
    task: Prepared, tallies: Mapping[str, Tally], peers: Mapping[str, str], keeps: Mapping[str, str]
) -> list[dict[str, Any]]:
    """One row per decoder. peers: decoder -> its peer. keeps: decoder of this engine -> what it guarantees, such as "text"."""
    plain = tallies[PLAIN]
    rows = []
    for name, tally in tallies.items():
        row: dict[str, Any] = {"task": task.name, "mode": name, "peer": peers.get(name), "prompts": len(task.prompts)}
        if tally.error is not None:
            rows.append({**row, "error": tally.error})
            continue
        own = tallies.get(f"{peers[name]} {PLAIN}") if name in peers else plain
        own = None if own is None or own.error is not None else own
        # without plain decoding of its peer, a mode is compared with itself
        base = own or tally
        row |= {
            "prompt_tokens": sum(map(len, task.prompts)),
            "tokens": tally.tokens,
            "total_s": tally.total_s,
            "first_s": tally.first_s,
            "decode_s": tally.decode_s(base),
            "seconds": tally.seconds,
            "answer_tokens": tally.answer_tokens,
            "tokens_per_s": tally.tokens_per_s,
            "decode_tokens_per_s": tally.decode_tokens_per_s(base),
            "equal_prompts": tally.equal_prompts(plain),
        }
        if name == PLAIN:
            row["looped_tokens"] = tally.looped_tokens
        if name not in peers:
            row |= {"keeps": keeps[name], **_speculation(tally)}
        elif own is not None:
            row["equal_to_its_own_plain"] = tally.equal_prompts(own)
        rows.append(row)
    return rows


def _speculation(tally: Tally) -> dict[str, Any]:
    count = tally.speculation
    return {
        "tau": count.tau,
        "predicted_tau": count.predicted_tau,
        "steps": count.steps,
        "emitted_tokens": count.emitted_tokens,
        "draft_tokens": count.draft_tokens,
        "accepted_tokens": count.accepted_tokens,
        "drafted_by_depth": count.drafted_by_depth,
        "accepted_by_depth": count.accepted_by_depth,
        "later_steps": tally.steps,
        "step_ms": tally.step_ms,
    }


def same_text(row: Mapping[str, Any]) -> str:
    """How many texts equal plain decoding's; if that is not guaranteed, the guarantee instead."""
    if row["mode"] == PLAIN:
        return ""
    kept = row.get("keeps", "text")
    return f"{row['equal_prompts']} of {row['prompts']}" if kept == "text" else {"law": "in distribution"}.get(kept, "lossy")


def with_total(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, followed by one that sums up all tasks for each mode that did not fail in any."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    if len(tasks) < 2:
        return rows
    totals = []
    for mode in dict.fromkeys(row["mode"] for row in rows):
        mine = [row for row in rows if row["mode"] == mode and "error" not in row]
        if len(mine) == len(tasks):
            totals.append(_total(mine))
    return rows + totals


def _total(rows: list[dict[str, Any]]) -> dict[str, Any]:
    summed = {
        name: sum(row[name] for row in rows)
        for name, value in rows[0].items()
        if isinstance(value, int) and all(name in row for row in rows)
    }
    total_s, first_s, decode_s = (sum(row[name] for row in rows) for name in ("total_s", "first_s", "decode_s"))
    decoded = [(row["decode_tokens_per_s"], row["decode_s"]) for row in rows if row["decode_tokens_per_s"]]
    total: dict[str, Any] = {
        "task": ALL,
        "mode": rows[0]["mode"],
        "peer": rows[0]["peer"],
        **({"keeps": rows[0]["keeps"]} if "keeps" in rows[0] else {}),
        **summed,
        "total_s": total_s,
        "first_s": first_s,
        "decode_s": decode_s,
        "tokens_per_s": summed["tokens"] / total_s,
        "decode_tokens_per_s": sum(rate * s for rate, s in decoded) / sum(s for _, s in decoded) if decoded else None,
    }
    if "steps" in summed:
        total["tau"] = summed["emitted_tokens"] / summed["steps"]
        total["predicted_tau"] = sum(row["predicted_tau"] * row["steps"] for row in rows) / summed["steps"]
        for name in ("drafted_by_depth", "accepted_by_depth"):
            total[name] = _added(row[name] for row in rows)
        total["step_ms"] = {
            part: sum(row["step_ms"][part] * row["later_steps"] for row in rows) / max(summed["later_steps"], 1)
            for part in rows[0]["step_ms"]
        }
    return total


def _added(lists: Iterable[list[int]]) -> list[int]:
    """Elementwise sums of lists of different lengths."""
    found: list[int] = []
    for values in lists:
        found += [0] * (len(values) - len(found))
        for place, value in enumerate(values):
            found[place] += value
    return found


def speedups(rows: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Task -> mode -> tokens per second against this engine's plain decoding: both terms, their ratio and, with several repeats,
    its range; for whole answers and, if there are tokens after the first ones, for decoding alone."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    plain = {row["task"]: row for row in rows if row["mode"] == PLAIN}
    for row in rows:
        if row["mode"] == PLAIN or "error" in row:
            continue
        base, terms = plain[row["task"]], {}
        for prefix in ("", "decode_"):
            theirs, mine = base[f"{prefix}tokens_per_s"], row[f"{prefix}tokens_per_s"]
            if theirs and mine is not None:
                ratio = mine / theirs
                terms |= {f"plain_{prefix}tokens_per_s": theirs, f"{prefix}tokens_per_s": mine, f"{prefix}ratio": ratio}
                # where only the distribution is kept, repeats have other texts, of other lengths
                keeps_text = row.get("keeps", "text") == "text"
                if keeps_text and (gains := _gains(*(_repeats(rows, one, prefix) for one in (base, row)))):
                    terms[f"{prefix}range"] = [ratio * min(gains), ratio * max(gains)]
        found.setdefault(row["task"], {})[row["mode"]] = terms
    return found


def _gains(plain: Many[float], drafted: Many[float]) -> list[float]:
    """The gain in each repeat over the median gain; empty for a single repeat. plain, drafted: seconds."""
    if len(plain) != len(drafted) or len(drafted) < 2 or not min(*plain, *drafted) > 0.0:
        return []
    usual = median(plain) / median(drafted)
    return [one / other / usual for one, other in zip(plain, drafted, strict=True)]


def _repeats(rows: Many[Mapping[str, Any]], row: Mapping[str, Any], prefix: str) -> list[float]:
    """Seconds of each repeat, summed over all prompts; with a prefix only those after the first tokens."""
    parts = [one for one in rows if one["mode"] == row["mode"] and one["task"] != ALL] if row["task"] == ALL else [row]
    if not all("seconds" in one for one in parts):
        return []
    totals, firsts = (
        [float(sum(times)) for times in zip(*(prompt for one in parts for prompt in one["seconds"][name]), strict=True)]
        for name in ("total_s", "first_s")
    )
    return [total - first for total, first in zip(totals, firsts, strict=True)] if prefix else totals


def against_peers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per task and peer: plain against plain, and the best mode of each; whole answers, and decoding alone."""
    found = []
    for task in dict.fromkeys(row["task"] for row in rows):
        here = [row for row in rows if row["task"] == task and "error" not in row]
        ours = [row for row in here if row["peer"] is None]
        for peer in dict.fromkeys(row["peer"] for row in here if row["peer"] is not None):
            theirs = [row for row in here if row["peer"] == peer]
            entry: dict[str, Any] = {"task": task, "peer": peer}
            for prefix in ("", "decode_"):
                rate = f"{prefix}tokens_per_s"
                pairs = {
                    f"{prefix}plain": [
                        [row for row in side if row["mode"] in (PLAIN, f"{peer} {PLAIN}")] for side in (ours, theirs)
                    ],
                    f"{prefix}best": [ours, theirs],
                }
                for name, (left, right) in pairs.items():
                    if any(row[rate] for row in left) and any(row[rate] for row in right):
                        entry[name] = _versus(_fastest(left, rate), _fastest(right, rate), rate)
            found.append(entry)
    return found


def _fastest(rows: list[dict[str, Any]], rate: str) -> dict[str, Any]:
    return max(rows, key=lambda row: row[rate] or 0.0)


def _versus(ours: dict[str, Any], theirs: dict[str, Any], rate: str) -> dict[str, Any]:
    return {
        "ours": ours["mode"],
        "ours_tokens_per_s": ours[rate],
        "theirs": theirs["mode"],
        "theirs_tokens_per_s": theirs[rate],
        "ratio": ours[rate] / theirs[rate],
    }
