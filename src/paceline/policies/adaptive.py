"""Adaptive: drafts as much as yields the most tokens per second on this machine, or nothing at all.

It learns how long forward passes with so many rows and drafts with so many levels take here (`learning/costs`), and how likely a
draft token is to be right, by drafter, depth, confidence and request (`learning/acceptance`, `learning/depth_acceptance`). From
these it makes five decisions per step:

- *Does any drafter run?* From time to time a few steps go without drafts, and are timed against those before. If tokens come
  faster that way twice in a row, no drafter runs for a while (`learning/draft_pauses`); the other decisions also compare with
  the time of such steps.
- *Is a lookup worth its time?* Each request tracks how many seconds lookups saved (`learning/lookup_value`), beyond what a costly
  drafter, not run because of them, would have saved.
- *Does a costly drafter run, and for which sequences?* It runs for the set of sequences, and to the depth, with the most expected
  tokens per second, given the levels that the target would verify anyway because lookups proposed them. A drafter that is never
  worth it is tried from time to time. One that can end its drafts early may use its full depth, any other only that depth.
- *Where does its draft end early?* After a token that makes the whole path so unlikely that one more level would take more time
  per expected token than tokens usually take.
- *What does the target verify?* The nodes of all trees in order of probability, as long as each still raises tokens per second:
  many where rows are nearly free, few on a busy machine.

Source: the trade-off of tree size against measured verification time, Sequoia (arXiv:2402.12374), section 4.3; per-request
goodput under load, SmartSpec (Liu et al., arXiv:2406.14066), section 4; the end of a draft, SpecDec++ (Huang et al.,
arXiv:2405.19715), section 4.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Many
from itertools import accumulate
from time import perf_counter

from paceline.budget import NOTHING, Budget, DrafterInfo
from paceline.learning.calibration import Calibration
from paceline.learning.costs import Timings
from paceline.learning.decision_cache import ALONE, NOBODY, Decision, DecisionCache, situation_of
from paceline.learning.depth_search import DepthSearch
from paceline.learning.draft_curve import bucket
from paceline.learning.draft_history import DraftHistory
from paceline.learning.draft_pauses import DraftPauses
from paceline.learning.exploration import Exploration
from paceline.learning.learning_interval import LearningInterval
from paceline.learning.lookup_value import LookupValues
from paceline.learning.reconsideration import Reconsideration
from paceline.learning.step_time import CLEARLY, StepTime
from paceline.policies.base import Policy
from paceline.sequence import Sequence
from paceline.spec import NoOptions as Options
from paceline.step import Verdict
from paceline.stopping import Stopping
from paceline.tree import DraftTree

_TRIED_LEVELS = 2
"""Depth of a trial (`exploration`), in levels."""


class AdaptivePolicy(Policy):
    name = "adaptive"
    measures = True

    def __init__(self) -> None:
        super().__init__()
        self._lookup_values, self._draft_history, self._step_time = LookupValues(self.costs), DraftHistory(), StepTime(self.costs)
        self._calibration = Calibration()
        self._search = DepthSearch(
            self.costs, self.acceptance, self.depth_acceptance, self._calibration, self._step_time, self._draft_history
        )
        self._decision_caches = defaultdict[str, DecisionCache](DecisionCache)
        self._pays: tuple[float, float] | None = None
        """Probabilities from which the first node of a chain, and any further one, is worth its row, where a chain is all that is
        drafted in this step."""
        self._exploration = Exploration()
        self._steps = self._expected = 0
        """Steps so far, and their number when the calibration was last updated."""
        self._deepened: dict[int, list[float]] = {}
        """Request -> acceptance probabilities per depth of what a costly drafter was asked for in this step although a lookup
        had found something."""
        self._forgone_s: dict[int, float] = {}
        """Request -> seconds that a costly drafter would have saved which was not asked because of what lookups found."""
        self._learning_s = [0.0, 0.0]
        """Seconds that learning from a step took last, for a plain step and for one with drafts."""
        self._drafted_s = 0.0
        """Expected seconds of the costly drafters in this step."""
        self._draft_pauses_at = defaultdict[int, DraftPauses](DraftPauses)
        """By batch size, as drafts may lose in a large batch and win for a single sequence."""
        self._draft_pauses = self._draft_pauses_at[1]
        self._reconsideration, self._learning_interval = Reconsideration(), LearningInterval()
        self._paused = False
        """Whether no drafter is asked in this step because of `_draft_pauses`."""
        self._step_s = 0.0
        """Seconds of the last step outside pauses that was learnt from."""

    def begin(self, rows: int, sequences: int) -> None:
        # the step before may have failed without being observed
        self._forget_step()
        self._step_time.begin(rows, sequences)
        self._draft_pauses, self._paused = self._draft_pauses_at[bucket(sequences)], False
        self._reconsideration.begin()
        # where only prompts are read there is nothing to learn
        self.learns = sequences > 0 and self._learning_interval.begin()

    def skips_drafting(self, sequences: Many[Sequence]) -> bool:
        # a request's own reference was not there when drafts lost
        awake, now = self._lookup_values.awake, self._steps
        if any(one.reference and awake(one, now) for one in sequences):
            return False
        self._paused = self._draft_pauses.active
        skips = self._paused or self._reconsideration.skips(max([sequence.key for sequence in sequences]), len(sequences))
        if skips:
            # a machine that becomes faster or slower meanwhile is followed in a long pause too
            due = self._draft_pauses.timing or self._learning_interval.overdue if self._paused else self._reconsideration.observed
            self.learns = self._learning_interval.skip(due)
        return skips

    def budgets(self, drafter: DrafterInfo, sequences: Many[Sequence], trees: Many[DraftTree]) -> list[Budget]:
        if drafter.costly:
            return self._deep(drafter, sequences, trees)
        return self._lookup_values.budgets(drafter, sequences, self._steps, self.learns)

    def _deep(self, drafter: DrafterInfo, sequences: Many[Sequence], trees: Many[DraftTree]) -> list[Budget]:
        """Budgets for the depth, and the sequences, with the most expected tokens per second."""
        cache = self._decision_caches[drafter.name]
        situation, decision = ALONE, NOBODY
        alone = len(sequences) == 1
        # the beginning of an answer needs a decision of its own, but most of a batch is past it
        begins = alone and not sequences[0].generated_tokens
        if not cache.declined(sequences, self._steps) or begins:
            lacking = self._draft_history.lacking(drafter.name, sequences[0]) if alone else 0
            situation = situation_of(trees, self._step_time.fed - self._step_time.batch, lacking, begins)
            unfound = [] if alone or not situation.found else [at for at, tree in enumerate(trees) if len(tree) == 1]
            decision = cache.get(sequences, situation, unfound)
            if decision is None:
                decision = self._search.decided(drafter, sequences, self.trimmed(sequences, trees) if situation.found else trees)
                cache.put(decision, sequences, situation, unfound, self._learning_interval.mean_steps)
        depth, chosen = decision.depth, decision.chosen
        if not chosen:
            if self.learns and self._exploration.may_be_due(drafter.name):
                depth, chosen = self._tried(drafter, sequences)
            if not chosen:
                if situation.found and self._lookup_values.asked:
                    self._forgo(drafter, sequences, trees, cache.latest(sequences, situation._replace(found=0)))
                return [NOTHING] * len(sequences)
        granted = [NOTHING] * len(sequences)
        chances = self.acceptance.chances(drafter.name)
        for at in chosen:
            key = sequences[at].key
            stopping = Stopping(chances, self.acceptance.odds(key, drafter.name), decision.least)
            granted[at] = Budget(depth * drafter.width, depth, stopping=stopping)
            self._draft_history.record(drafter.name, sequences[at], self._steps, tried=not decision.chosen)
            if self._lookup_values.asked and len(trees[at]) > 1:
                self._deepened[key] = self._search.chain(sequences[at], drafter, trees[at])[:depth]
        self._pays = decision.pays if self._step_time.batch == 1 and not situation.found else None
        # a trial has no decision, and drafts to its full depth
        self._drafted_s += decision.draft_s or self.costs.draft_s(drafter.name, depth, len(chosen))
        return granted

    def _forgo(self, drafter: DrafterInfo, sequences: Many[Sequence], trees: Many[DraftTree], alone: Decision) -> None:
        """Note what a costly drafter would have been worth that is not asked because of what lookups found. alone: the last
        decision where they found nothing."""
        for at in alone.chosen:
            chain, rows = self._search.chain(sequences[at], drafter, trees[at])[: alone.depth], self._step_time.fed
            rows_s = self.costs.curve(rows + round(alone.drafted * drafter.width)) - self.costs.curve(rows)
            worth_s = self._lookup_values.token_s * self._calibration.factor(drafter.name) * sum(chain)
            self._forgone_s[sequences[at].key] = max(worth_s - rows_s - alone.draft_s / len(alone.chosen), 0.0)

    def _tried(self, drafter: DrafterInfo, sequences: Many[Sequence]) -> tuple[int, Many[int]]:
        """One sequence to try a drafter on that is not thought to be worth it, if there is time for that.

        Among requests that there is time for, one that was never tried goes first, then the one tried longest ago.
        """
        depth = min(_TRIED_LEVELS, drafter.budget.depth)
        least_s = self.costs.draft_s(drafter.name, depth, 1) + self._step_time.drafting_s
        places = {sequence.key: at for at, sequence in enumerate(sequences)}
        waited = sorted(sequences, key=lambda sequence: self._draft_history.last(drafter.name, sequence))
        costs_s = {sequence.key: self._search.reading_s(drafter, sequence) + least_s for sequence in waited}
        tried = self._exploration.begin(drafter.name, costs_s, least_s)
        return (0, ()) if tried is None else (depth, (places[tried],))

    def trimmed(self, sequences: Many[Sequence], trees: Many[DraftTree]) -> list[DraftTree]:
        if len(trees) == 1 and trees[0].is_chain and not trees[0].probes:
            # on a small model most steps draft one, and the shortcut saves noticeable time
            return [trees[0].first(self._paying(trees[0], sequences[0].stop_ids))]
        nodes = list[tuple[float, int, int]]()
        for at, (sequence, tree) in enumerate(zip(sequences, trees, strict=True)):
            # an end of the text is chosen at the row before it, and needs no row of its own
            ends, tokens = sequence.stop_ids, tree.tokens
            chances = enumerate(self._calibration.chances(tree))
            nodes += [(chance, -node, at) for node, chance in chances if node and tokens[node] not in ends]
        nodes.sort(reverse=True)
        count = self._worthwhile([chance for chance, _, _ in nodes], sum([tree.probes for tree in trees]))
        if count == sum([tree.candidates - 1 for tree in trees]):
            return list(trees)
        kept_nodes: list[list[int]] = [list(range(tree.candidates, len(tree))) for tree in trees]
        for _, node, at in nodes[:count]:
            kept_nodes[at].append(-node)
        # most trees are kept as they are
        return [
            tree if len(kept) == len(tree) - 1 else tree.only(sorted(kept)) for tree, kept in zip(trees, kept_nodes, strict=True)
        ]

    def _worthwhile(self, chances: Many[float], probes: int) -> int:
        """How many nodes to verify. chances: their probabilities of being right, the largest first."""
        rows = max(self._step_time.fed, self._step_time.batch) + probes
        forwards = self.costs.curve.span(rows, len(chances))
        worth, clearly = self._step_time.worth(CLEARLY)
        fixed_s = self._step_time.step_s(rows, True) - forwards[0] + self._drafted_s
        tokens = accumulate(chances, initial=float(self._step_time.batch))
        steps_s = [forward_s + fixed_s for forward_s in forwards]
        # nodes that are verified are also judged, moved and learnt from
        steps_s[0] -= self._step_time.kept_s
        values = list(map(worth, tokens, steps_s))
        values[0] *= clearly
        return values.index(max(values))

    def _paying(self, chain: DraftTree, ends: frozenset[int]) -> int:
        """How many nodes of a chain to verify."""
        chances = self._calibration.chances(chain)
        # an end of the text is chosen at the row before it
        paying = len(chain) - 1 - (chain.tokens[-1] in ends)
        if not self._pays or chances[1] < self._pays[0]:
            return self._worthwhile(chances[1 : paying + 1], 0)
        while paying > 1 and chances[paying] < self._pays[1]:
            paying -= 1
        return paying

    def predicted(self, tree: DraftTree) -> float:
        return sum(self._calibration.chances(tree))

    def observe(self, sequences: Many[Sequence], trees: Many[DraftTree], verdicts: Many[Verdict], timings: Timings) -> None:
        if not trees:
            return
        self._steps += 1
        for sequence, verdict in zip(sequences, verdicts, strict=True):
            if verdict.finish is not None:
                self._draft_history.ended(sequence)
        asked, reconsideration = bool(timings.asked_s), self._reconsideration
        if not self._paused:
            reconsideration.saw(asked)
        # where a sequence names its drafters, a pause does not apply
        timed = self._paused == self._draft_pauses.active and self._draft_pauses.passed(asked, self._step_time.reads)
        if not self.learns:
            self._learning_interval.passed(timings.commit_s)
            self._end_step(sequences, trees)
            return
        began, tokens = perf_counter(), sum([len(verdict.tokens) for verdict in verdicts]) or len(verdicts)
        commit_s, steps = self._learning_interval.mean(timings.commit_s), self._learning_interval.steps
        # a step without decisions has no drafts, and stands for those since the last that was learnt from
        thought = not (self._paused or reconsideration.skipping)
        alike = 1 if thought else steps
        drafted = thought and any(len(tree) > 1 for tree in trees)
        if timed:
            seconds = timings.draft_s + timings.forward_s + timings.verify_s + commit_s + self._step_time.between_s
            if thought:
                # learning takes time too, which a pause saves
                seconds += self._learning_s[drafted] / self._learning_interval.mean_steps
            if timed_s := self._draft_pauses.saw(seconds, tokens, alike):
                self._step_time.saw_calm(timed_s)
            if self._draft_pauses.due:
                self._draft_pauses.begin(
                    self.costs.forward_s(self._step_time.batch, self._step_time.batch) / self._step_time.batch
                )
        behind_s = timings.verify_s + commit_s + self._learning_s[drafted] / self._learning_interval.mean_steps
        self._step_time.saw_behind(behind_s, drafted, alike)
        if self._paused or (reconsideration.skipping and not reconsideration.last):
            self._exploration.all_s += self._step_s * steps
            self._step_time.ended()
            return
        self._calibration.observe(trees, verdicts, self._steps - self._expected)
        self._expected = self._steps
        other = timings.draft_s - timings.asked_s + behind_s
        rows = sum(map(len, trees))
        self._step_time.saw_beside(other, drafted, reconsideration.skipping)
        self._step_s = step_s = timings.asked_s + self.costs.forward_s(rows, len(trees)) + other + self._step_time.between_s
        self._exploration.all_s += step_s * steps
        self._step_time.saw(step_s, tokens)
        if self._lookup_values.asked:
            self._lookup_values.token_s, self._lookup_values.step_s = self._step_time.token_s, self._step_time.sequence_s
        if trial := self._exploration.begun:
            for sequence, tree, verdict in zip(sequences, trees, verdicts, strict=True):
                if sequence.key == trial.key:
                    self._exploration.end(self._gain_s(trial.drafter, tree, verdict, rows))
        self._learning_s[drafted] = learning_s = self._end_step(sequences, trees) - began
        self._learning_interval.learnt(learning_s, step_s)

    def _end_step(self, sequences: Many[Sequence], trees: Many[DraftTree]) -> float:
        """Account for what was asked in this step, and forget it. Returns the time when that is done."""
        self._lookup_values.update(
            sequences, trees, self._deepened, self._forgone_s, self._step_time.total_drafting_s, self._steps
        )
        self._forget_step()
        return self._step_time.ended()

    def _gain_s(self, drafter: str, tree: DraftTree, verdict: Verdict, rows: int) -> float:
        """Seconds that one drafter's nodes in a tree were worth, less those of their rows. rows: of the step."""
        brought = sum([tree.sources[node] == drafter for node in verdict.path])
        rows_s = self.costs.curve(rows) - self.costs.curve(rows - tree.sources.count(drafter))
        return brought * self._step_time.token_s - rows_s

    def _forget_step(self) -> None:
        self._lookup_values.forget_asked()
        self._deepened, self._forgone_s = {}, {}
        self._drafted_s, self._exploration.begun, self._pays = 0.0, None, None

    def fork(self, key: int, new_key: int, length: int) -> None:
        self._draft_history.fork(key, new_key, length)

    def release(self, key: int) -> None:
        self._lookup_values.release(key)
        self._draft_history.release(key)


def build(options: Options) -> AdaptivePolicy:
    return AdaptivePolicy()
