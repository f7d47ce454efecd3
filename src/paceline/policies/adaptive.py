"""Adaptive: drafts whatever makes most tokens a second on this machine, down to nothing at all.

Two things are known: what a forward of so many rows and a draft of so many levels take here (`costs`), and how likely a drafted
token is to come true, by drafter, depth, confidence and request (`acceptance`). Three decisions follow, each per step:

- *Is a look-up worth its time?* Each request keeps account of what asking brought in seconds. While that is a loss the drafter is
  asked ever more rarely, and as soon as it would have paid, always again.
- *How deep does a costly drafter go, and for whom?* The depth and the set of sequences with the most expected tokens per second,
  counting the levels the target would see anyway from what look-ups proposed. One that is never worth it is tried now and then.
- *What does the target look at?* All nodes of all trees in the order of their probability, as far as each still raises tokens per
  second: on a machine where rows are nearly free much, on a crowded one little.

Source: the trade of tree size against measured verification time, Sequoia (arXiv:2402.12374), section 4.3; per-request
goodput under load, SmartSpec (Liu et al., arXiv:2406.14066), section 4.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import accumulate

from pydantic import BaseModel

from paceline.costs import Timings
from paceline.policies.base import Policy
from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.tree import NOTHING, Budget, DraftTree, Part

_LEARN = 0.15
"""Weight of the latest account of a look-up."""
_LONGEST_PAUSE = 64
"""Steps between two trials of a look-up that does not pay."""
_TRIED_LEVELS = 3
_TRIAL_SHARE = 0.01
"""Share of all time that may go into trying a costly drafter where it is not thought to be worth it."""
_LONGEST_REST = 8
"""Steps for which the decision that nobody asks a costly drafter may stand."""
_HOPEFUL = 8
"""One request in so many begins by asking a look-up that did not pay of late."""
_SMOOTH = 0.1


class Options(BaseModel):
    """None."""


@dataclass
class _Account:
    """Seconds that asking one look-up for one request brings, of late; `sleep` steps are left until it is asked again."""

    gain_s: float = 0.0
    sleep: int = 0
    pause: int = 0

    def book(self, gain_s: float) -> None:
        self.gain_s += _LEARN * (gain_s - self.gain_s)
        if gain_s > 0.0 or self.gain_s > 0.0:
            self.pause = 0
        else:
            self.pause = min(max(2 * self.pause, 1), _LONGEST_PAUSE)
        self.sleep = self.pause


@dataclass
class _Rest:
    """The decision that nobody asks a costly drafter stands for some steps, longer each time, while the batch is as it was."""

    left: int = 0
    length: int = 0
    batch: int = 0

    def goes_on(self, batch: int) -> bool:
        self.left -= 1
        return self.left >= 0 and batch == self.batch

    def decided(self, batch: int, asked: bool) -> None:
        if asked:
            self.left = self.length = 0
        elif self.left < 0 or batch != self.batch:
            self.length = min(self.length + 1, _LONGEST_REST)
            self.left, self.batch = self.length, batch


class AdaptivePolicy(Policy):
    name = "adaptive"
    measures = True

    def __init__(self) -> None:
        super().__init__()
        self._accounts: dict[int, dict[str, _Account]] = {}
        self._usual: dict[str, float] = {}
        """Look-up -> seconds that asking it brings, over all requests."""
        self._begun: dict[str, int] = {}
        self._tried: dict[str, dict[int, int]] = {}
        """Costly drafter -> request -> the step in which it was last asked for it."""
        self._rests: dict[str, _Rest] = {}
        self._steps, self._decoding_s, self._trials_s = 0, 0.0, 0.0
        self._asked: list[tuple[int, Part]] = []
        self._batch = 0
        self._drafted_s = 0.0
        self._other_s = 0.0
        self._token_s = 0.0

    def budgets(self, part: Part, sequences: Many[Sequence], trees: Many[DraftTree]) -> list[Budget]:
        self._batch = len(sequences)
        if part.costly:
            return self._deep(part, sequences, trees)
        granted = []
        for sequence in sequences:
            account = self._account(sequence.key, part.name)
            if account.sleep > 0:
                account.sleep -= 1
                granted.append(NOTHING)
            else:
                self._asked.append((sequence.key, part))
                granted.append(part.budget)
        return granted

    def _account(self, key: int, part: str) -> _Account:
        accounts = self._accounts.setdefault(key, {})
        account = accounts.get(part)
        if account is None:
            self._begun[part] = self._begun.get(part, 0) + 1
            hopeless = self._usual.get(part, 0.0) < 0.0 and self._begun[part] % _HOPEFUL
            account = accounts[part] = _Account(sleep=_LONGEST_PAUSE if hopeless else 0)
        return account

    def _deep(self, part: Part, sequences: Many[Sequence], trees: Many[DraftTree]) -> list[Budget]:
        """Budgets for the depth, and the sequences, with the most expected tokens per second."""
        rest = self._rests.setdefault(part.name, _Rest())
        depth, chosen = (0, ()) if rest.goes_on(len(sequences)) else self._best(part, sequences, trees)
        rest.decided(len(sequences), bool(chosen))
        tried = self._tried.setdefault(part.name, {})
        if not chosen:
            depth, chosen = self._trial(part, sequences, sum(map(len, trees)), tried)
        granted = [NOTHING] * len(sequences)
        for at in chosen:
            granted[at] = Budget(depth * part.width, depth)
            tried[sequences[at].key] = self._steps
        if chosen:
            self._drafted_s += self.costs.draft_s(part.name, depth, len(chosen))
        return granted

    def _best(self, part: Part, sequences: Many[Sequence], trees: Many[DraftTree]) -> tuple[int, Many[int]]:
        """The depth, and the places of the sequences, with the most expected tokens per second; depth 0 for none."""
        rows = sum(map(len, trees))
        before = [_levels(tree, part.budget.depth) for tree in trees]
        # what the trees so far are expected to emit, the target's own token of every sequence included
        tokens = len(trees) + sum(map(sum, before))
        gains = [
            list(accumulate(map(_more, accumulate(self._chain(sequence, part), _times), levels)))
            for sequence, levels in zip(sequences, before, strict=True)
        ]
        best, depth, chosen = tokens / max(self._time(rows), 1e-9), 0, ()
        for level in range(1, part.budget.depth + 1):
            order = sorted(range(len(gains)), key=lambda at, level=level: -gains[at][level - 1])
            gained = list(accumulate(gains[at][level - 1] for at in order))
            # of two drafts for one sequence the better nodes will be looked at, not all
            added = list(accumulate(max(1 + level * part.width - len(trees[at]), 0) for at in order))
            for count in _sizes(len(order)):
                seconds = self._time(rows + added[count - 1]) + self.costs.draft_s(part.name, level, count)
                rate = (tokens + gained[count - 1]) / max(seconds, 1e-9)
                if rate > best:
                    best, depth, chosen = rate, level, order[:count]
        return depth, chosen

    def _trial(self, part: Part, sequences: Many[Sequence], rows: int, tried: dict[int, int]) -> tuple[int, Many[int]]:
        """One sequence to try a drafter on that is not thought to be worth it, if enough time has passed: so it can come back.

        A request that was never tried goes first, then the one tried longest ago.
        """
        depth = min(_TRIED_LEVELS, part.budget.depth)
        cost_s = self.costs.draft_s(part.name, depth, 1) + self.costs.curve(rows + depth) - self.costs.curve(rows)
        if self._trials_s + cost_s > _TRIAL_SHARE * self._decoding_s:
            return 0, ()
        self._trials_s += cost_s
        return depth, (min(range(len(sequences)), key=lambda at: tried.get(sequences[at].key, -1)),)

    def _chain(self, sequence: Sequence, part: Part) -> list[float]:
        return self.acceptance.of_chain(sequence.key, part.name, part.budget.depth)

    def _time(self, rows: int) -> float:
        """Seconds of a step whose forward has so many rows, its drafts not counted."""
        return self.costs.curve(rows) + self._other_s

    def trimmed(self, sequences: Many[Sequence], trees: Many[DraftTree]) -> list[DraftTree]:
        chances = [_chances(tree) for tree in trees]
        nodes = sorted(
            ((chance, -node, at) for at, row in enumerate(chances) for node, chance in enumerate(row) if node), reverse=True
        )
        rows = max(self._batch, len(trees)) + sum(tree.probes for tree in trees)
        tokens = float(max(self._batch, len(trees)))
        best, count = 0.0, 0
        for kept, chance in enumerate([0.0, *[chance for chance, _, _ in nodes]]):
            tokens += chance
            rate = tokens / max(self._time(rows + kept) + self._drafted_s, 1e-9)
            if rate > best:
                best, count = rate, kept
        if count == len(nodes):
            return list(trees)
        kept_nodes: list[list[int]] = [list(range(tree.candidates, len(tree))) for tree in trees]
        for _, node, at in nodes[:count]:
            kept_nodes[at].append(-node)
        return [tree.only(sorted(kept)) for tree, kept in zip(trees, kept_nodes, strict=True)]

    def observe(self, sequences: Many[Sequence], trees: Many[DraftTree], verdicts: Many[Verdict], timings: Timings) -> None:
        if not trees:
            return
        # the parts of a draft that are not a costly drafter's are part of every step
        other = timings.verify_s + timings.commit_s
        self._other_s = other if not self._other_s else self._other_s + _SMOOTH * (other - self._other_s)
        self._steps += 1
        self._decoding_s += timings.draft_s + timings.forward_s + other
        emitted = sum(len(verdict.tokens) for verdict in verdicts) or len(verdicts)
        token_s = (timings.draft_s + timings.forward_s + other) / emitted
        self._token_s = token_s if not self._token_s else self._token_s + _SMOOTH * (token_s - self._token_s)
        if self._asked:
            self._book({sequence.key: tree for sequence, tree in zip(sequences, trees, strict=True)})
        self._asked, self._drafted_s = [], 0.0

    def _book(self, trees: dict[int, DraftTree]) -> None:
        """Account for every look-up that was asked: the time of the tokens it saves, less rows, less asking."""
        rows = sum(map(len, trees.values()))
        extra = rows - len(trees)
        row_s = (self.costs.curve(rows) - self.costs.curve(len(trees))) / extra if extra else 0.0
        for key, part in self._asked:
            tree = trees.get(key)
            if tree is None:
                continue
            ask_s = self.costs.draft_s(part.name, part.budget.depth, 1)
            gain_s = -ask_s
            if len(tree) > 1:
                chances = _chances(tree)
                mine = [node for node in range(1, tree.candidates) if tree.sources[node] == part.name]
                gain_s += self._token_s * sum(chances[node] for node in mine) - row_s * len(mine)
            self._account(key, part.name).book(gain_s)
            usual = self._usual.get(part.name, 0.0)
            self._usual[part.name] = usual + _LEARN * (gain_s - usual)

    def release(self, key: int) -> None:
        self._accounts.pop(key, None)
        for tried in self._tried.values():
            tried.pop(key, None)


def _chances(tree: DraftTree) -> list[float]:
    """Per candidate the probability that it comes true with all its ancestors."""
    chances = [1.0]
    for node in range(1, tree.candidates):
        chances.append(chances[tree.parents[node]] * tree.confidences[node])
    return chances


def _levels(tree: DraftTree, depth: int) -> list[float]:
    """Per depth from 1 on, the probability that some node of that depth comes true."""
    levels = [0.0] * depth
    if len(tree) > 1:
        for chance, level in zip(_chances(tree), tree.depth, strict=False):
            if 0 < level <= depth:
                levels[level - 1] += chance
    return levels


def _sizes(count: int) -> list[int]:
    """Powers of two up to `count`, and itself: how many sequences of a batch may be worth a draft."""
    return [1 << bit for bit in range((count - 1).bit_length())] + [count]


def _times(left: float, right: float) -> float:
    return left * right


def _more(chance: float, known: float) -> float:
    """What a chain adds at a depth where other drafts come true with probability `known`: nothing, if they are better."""
    return max(chance - known, 0.0)


def build(options: Options) -> AdaptivePolicy:
    return AdaptivePolicy()
