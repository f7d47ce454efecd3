"""The report: how rows are summed, over which seconds, and where decoding begins."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.bench.contest import Decoded, Tally
from paceline.bench.prompts import Prepared
from paceline.bench.report import speedups, task_rows, with_total
from paceline.sequence import Speculation


def tally(*answers: tuple[int, float, float]) -> Tally:
    """One prompt per answer: tokens, seconds to the first token and to the last."""
    made = Tally()
    for prompt, (tokens, first_s, total_s) in enumerate(answers):
        made.add(prompt, Decoded(list(range(tokens)), first_s, 1, total_s, Speculation(steps=tokens, emitted_tokens=tokens)))
    return made


def test_all_tasks_together_are_weighed_by_what_they_took() -> None:
    rows = list[dict[str, Any]]()
    for name, counts in (("one", (11, 1.0, 2.0)), ("other", (31, 1.0, 16.0))):
        one = tally(counts)
        next(iter(one.runs.values()))[0].speculation.steps = 11 if name == "one" else 10
        rows += task_rows(Prepared(name, ((1, 2),), 0), {"plain": one}, {}, {"plain": "text"})
    total = with_total(rows)[-1]
    assert (total["task"], total["tokens"], total["prompts"]) == ("all tasks", 42, 2)
    assert total["tokens_per_s"] == pytest.approx(42 / 18)
    assert total["decode_tokens_per_s"] == pytest.approx(40 / 16), "not the mean of 10 and 2"
    assert total["tau"] == pytest.approx(42 / 21), "not the mean of 1 and 3.1"


def test_the_decoding_of_a_peer_begins_where_its_own_plain_decoding_does() -> None:
    tallies = {"plain": tally((11, 3.0, 4.0)), "other plain": tally((11, 1.0, 11.0)), "other draft": tally((11, 2.0, 6.0))}
    peers = {"other plain": "other", "other draft": "other"}
    rows = {row["mode"]: row for row in task_rows(Prepared("one", ((1,),), 0), tallies, peers, {"plain": "text"})}
    assert rows["other draft"]["decode_s"] == 4.0 + 1.0
    assert rows["other draft"]["decode_tokens_per_s"] == pytest.approx(10 / 5)


def test_a_mode_that_failed_in_one_task_has_no_total() -> None:
    rows = list[dict[str, Any]]()
    for name in ("one", "other"):
        failed = Tally(error="broke")
        tallies = {"plain": tally((5, 1.0, 2.0)), "ngram": tally((5, 1.0, 2.0)) if name == "one" else failed}
        rows += task_rows(Prepared(name, ((1,),), 0), tallies, {}, {"plain": "text", "ngram": "text"})
    assert [row["mode"] for row in with_total(rows) if row["task"] == "all tasks"] == ["plain"]


def test_gains_come_with_the_range_of_their_repeats() -> None:
    rows = list[dict[str, Any]]()
    for name in ("one", "other"):
        plain, drafted = tally((11, 1.0, 11.0)), tally((11, 1.0, 6.0))
        for took_s, drafted_s in ((11.0, 3.0), (11.0, 11.0)):
            plain.add(0, Decoded(list(range(11)), 1.0, 1, took_s, Speculation(steps=11, emitted_tokens=11)))
            drafted.add(0, Decoded(list(range(11)), 1.0, 1, drafted_s, Speculation(steps=5, emitted_tokens=11)))
        tallies = {"plain": plain, "ngram": drafted}
        rows += task_rows(Prepared(name, ((1,),), 0), tallies, {}, {"plain": "text", "ngram": "text"})
    for gains in speedups(with_total(rows)).values():
        gain = gains["ngram"]
        assert (gain["ratio"], gain["range"]) == (pytest.approx(11 / 6), pytest.approx([1.0, 11 / 3]))
        assert (gain["decode_ratio"], gain["decode_range"]) == (pytest.approx(2.0), pytest.approx([1.0, 5.0]))
    other = [{**row, "keeps": "law"} for row in rows]
    assert "range" not in speedups(other)["one"]["ngram"], "repeats have other texts, of other lengths"
    once = [row for row in rows if row["task"] == "one"]
    for row in once:
        row["seconds"] = {name: [times[:1] for times in prompts] for name, prompts in row["seconds"].items()}
    assert "range" not in speedups(once)["one"]["ngram"], "a single repeat has no range"
