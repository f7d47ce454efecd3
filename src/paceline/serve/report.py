"""Report: sums of the engine's work between two reports to the server."""

from __future__ import annotations

from time import monotonic

from paceline.engine.engine import Engine, Progress
from paceline.sequence import Sequence
from paceline.serve.pipe import Stats

_EVERY_S = 0.1
"""Shortest time between two reports while the engine has work."""


class Report:
    """changed: whether sequences were added or ended since the last report."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._stats = engine, Stats()
        self._told_s, self._preemptions = 0.0, 0
        # so that the first report is sent before there is work; it has the size of the cache
        self.changed = True

    def began(self, sequence: Sequence, queued_s: float) -> None:
        """Note the first step of a sequence. queued_s: from its admission until that step began."""
        stats = self._stats
        stats.queued_s.append(queued_s)
        stats.prefix_queries += len(sequence.prompt)
        stats.prefix_hits += sequence.cached_tokens

    def stepped(self, progress: list[Progress]) -> None:
        """Add one step, with the progress of all of its sequences."""
        stats, first = self._stats, progress[0].outcome
        stats.steps += 1
        stats.rows += first.rows
        stats.sequences += len(progress)
        stats.draft_s += first.timings.draft_s
        stats.forward_s += first.timings.forward_s
        stats.verify_s += first.timings.verify_s
        for outcome in (one.outcome for one in progress):
            tree, verdict = outcome.tree, outcome.verdict
            if tree is None or tree.candidates == 1:
                continue
            stats.drafts += 1
            stats.draft_tokens += tree.candidates - 1
            stats.accepted_tokens += verdict.accepted
            while len(stats.accepted_by_depth) < verdict.accepted:
                stats.accepted_by_depth.append(0)
            for depth in range(verdict.accepted):
                stats.accepted_by_depth[depth] += 1
            for node in verdict.path:
                source = tree.sources[node]
                stats.accepted_by_source[source] = stats.accepted_by_source.get(source, 0) + 1

    def due(self) -> Stats | None:
        """The next report, if there is anything new: every `_EVERY_S`, and when the engine becomes idle."""
        now, engine = monotonic(), self._engine
        news = self._stats.steps or self.changed
        if not news or (engine.has_work and now - self._told_s < _EVERY_S):
            return None
        scheduler = engine.scheduler
        stats, self._stats, self._told_s, self.changed = self._stats, Stats(), now, False
        stats.running, stats.waiting = len(scheduler.running), len(scheduler.waiting)
        stats.running_tokens = sum(len(sequence.tokens) for sequence in scheduler.running)
        stats.held_tokens = engine.prefixes.kept_tokens + stats.running_tokens
        stats.cache_tokens = scheduler.limits.cache_tokens
        stats.preemptions, self._preemptions = scheduler.preemptions - self._preemptions, scheduler.preemptions
        return stats
