"""The engine's report to the server: it equals the counts of its sequences, and contains the cache limit."""

from __future__ import annotations

from crowd import drafter_of
from fakes import TableModel
from paceline.engine.scheduler import Limits
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.serve.report import Report
from serving import engine_of

PARAMS = SamplingParams(max_tokens=8, ignore_eos=True)


def test_the_report_is_what_the_steps_did() -> None:
    model = TableModel(5)
    engine = engine_of(model, drafter_of("ngram", model), Limits(batch=2, chunk=16, cache_tokens=500, shortest_prefix=4))
    report, fresh = Report(engine), list[Sequence]()
    sequences = [engine.add([1, 2, 3, 1, 2, 3, 1, 2, n], PARAMS) for n in range(2)]
    steps = rows = 0
    while engine.has_work:
        progress = engine.step()
        report.stepped(progress)
        for one in progress:
            if one.sequence not in fresh:
                fresh.append(one.sequence)
                report.began(one.sequence, 0.5)
        steps, rows = steps + 1, rows + progress[0].outcome.rows
    stats, counts = report.due(), [sequence.speculation for sequence in sequences]
    assert stats is not None
    assert (stats.steps, stats.rows) == (steps, rows)
    assert stats.sequences == sum(one.target_forwards for one in counts)
    assert stats.draft_tokens == sum(one.draft_tokens for one in counts) > 0
    assert stats.accepted_tokens == sum(one.accepted_tokens for one in counts) == sum(stats.accepted_by_depth) > 0
    assert stats.drafts == sum(sum(one.drafted_to.values()) for one in counts)
    assert stats.queued_s == [0.5, 0.5]
    assert (stats.prefix_queries, stats.prefix_hits) == (18, sum(s.cached_tokens for s in sequences))


def test_the_room_that_is_told_is_what_is_left_of_it() -> None:
    engine = engine_of(TableModel(5), limits=Limits(batch=2, chunk=16, cache_tokens=500, shortest_prefix=4))
    report = Report(engine)
    for n in range(2):
        engine.add([1, 2, 3, n], PARAMS)
    engine.step()
    assert engine.scheduler.bound(40)
    report._told_s = -1e9
    report.changed = True
    stats = report.due()
    assert stats is not None
    assert stats.cache_tokens == engine.scheduler.limits.cache_tokens < 500
