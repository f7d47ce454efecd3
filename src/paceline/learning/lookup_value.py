"""LookupValue: per request and lookup, the seconds that asking the lookup saves, and in which step it is asked again.

A lookup costs next to nothing, but not nothing: on a small model, asking one in vain takes as long as a row saves. So each
request tracks what its lookups save. The less that is, the more rarely a lookup is asked. A find that is missed is missed for
half a pause on average, so the best pause is proportional to the square root of cost over savings. A lookup that finds something
is asked in every step again. One that is worth asking on average is asked in every step, and its savings are updated only in
steps that are learnt from, for all steps since.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence as Many
from dataclasses import dataclass
from math import sqrt

from paceline.budget import NOTHING, Budget, DrafterInfo
from paceline.learning.costs import Costs
from paceline.sequence import Sequence
from paceline.tree import DraftTree

_LEARN = 0.15
"""Weight of the latest observation in the average over all requests."""
_SLOWLY, _MOST = 0.03, 0.5
"""Weight of the latest observation of one request, for every step since the one before, and at most: a text in which nothing is
found for a while may come to repeat itself for many tokens."""
_BEFORE = 10.0
"""Steps that the prior, from other requests, counts for."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 4, 128
"""Steps between two trials of a lookup that saves nothing, at least and at most; its cost decides."""
_TRIAL_SHARE, _FIRST_SHARE = 0.005, 0.03
"""Share of a sequence's time that may go into asking a lookup that saves nothing; and the share before the first time a new
request asks it, as other requests say little about its text."""
_UNLIKELY = 8
"""New requests in a row for which asking saved nothing after which the share of the next one is halved, down to a trial's."""
_CREDIT = 4.0
"""Times its cost that a lookup is initially assumed to save for a new request, at most."""
_HOPEFUL = 8
"""One new request in so many asks even a lookup that has not paid recently."""
_CROWD, _FEWEST = 256, 4
"""Nodes that a lookup is asked for in a step, over all sequences, and at least for each: no device verifies more for next to
nothing, and ranking them takes the host's time."""


@dataclass(slots=True)
class LookupValue:
    """What asking one lookup for one request saves, in seconds per ask, as a moving average, the time of asking not subtracted.

    begun, updated, next_asked: the steps in which it was created, in which it was last updated, and from which the lookup is
    asked again. pays: whether the lookup is worth asking in every step, though some find nothing.
    """

    gain_s: float
    begun: int
    updated: int
    next_asked: int
    pays: bool = False

    def update(self, gain_s: float, ask_s: float, now: int) -> None:
        """Update with an ask in the step before `now` that saved `gain_s` seconds and took `ask_s`; the next step asks again."""
        weight = (now - self.updated) * max(_SLOWLY, 1.0 / (_BEFORE + now - self.begun))
        self.gain_s += min(weight, _MOST) * (gain_s - self.gain_s)
        self.updated = self.next_asked = now
        self.pays = 2.0 * ask_s <= self.gain_s

    def wait(self, ask_s: float, longest: int) -> None:
        """Postpone the next ask after one in vain. longest: steps from one trial to the next where nothing is saved at all."""
        every = sqrt(2.0 * ask_s / self.gain_s) if self.gain_s > 0.0 else longest
        self.next_asked += round(min(every, longest)) - 1


class LookupValues:
    """All lookups and requests.

    token_s, step_s: seconds that a token is worth, and seconds of a step per sequence; both are set by the owner.
    """

    def __init__(self, costs: Costs) -> None:
        self._costs, self.token_s, self.step_s = costs, 0.0, 0.0
        self._values: dict[str, dict[int, LookupValue]] = {}
        """Lookup -> request -> value."""
        self._usual: dict[str, float] = {}
        """Lookup -> seconds that asking it saves, as a moving average over all requests, the time of asking not subtracted."""
        self._begun, self._vain = defaultdict[str, int](int), defaultdict[str, int](int)
        """Lookup -> new requests so far, and the latest ones in a row for which the first ask saved nothing."""
        self._asked: list[tuple[int, DrafterInfo]] = []
        self._refer: set[str] = set()
        """Lookups that draft from the reference that a request brings."""

    def budgets(self, drafter: DrafterInfo, sequences: Many[Sequence], now: int, learns: bool) -> list[Budget]:
        """Per sequence, what a lookup may draft in step `now`: all it wants, its share in a large batch, or nothing.

        learns: whether the step is learnt from; where it is not, lookups that pay anyway are not updated.
        """
        values, granted = self._values.setdefault(drafter.name, {}), []
        if drafter.refers:
            self._refer.add(drafter.name)
        share = max(_CROWD // len(sequences), _FEWEST)
        budget = drafter.budget.within(Budget(share, share))
        for sequence in sequences:
            value = values.get(sequence.key) or self._opened(sequence.key, drafter, now)
            if value is not None and value.next_asked > now:
                granted.append(NOTHING)
                continue
            granted.append(budget)
            if learns or value is None or not value.pays:
                self._asked.append((sequence.key, drafter))
        return granted

    def awake(self, sequence: Sequence, now: int) -> bool:
        """Whether any lookup would be asked in step `now` that drafts from the reference which the request of `sequence` brings.

        Until such a lookup was asked, every request may have one at its first step, where that shows.
        """
        if not self._refer:
            return not sequence.generated_tokens
        values = [self._values[name].get(sequence.key) for name in self._refer]
        return any(value is None or value.next_asked <= now for value in values)

    @property
    def asked(self) -> bool:
        """Whether a lookup was asked in this step whose value `update` will change."""
        return bool(self._asked)

    def _opened(self, key: int, drafter: DrafterInfo, now: int) -> LookupValue | None:
        """A new value; None while asking was never timed, as nothing could be compared with it."""
        ask_s = self._ask_s(drafter)
        if not ask_s:
            return None
        self._begun[drafter.name] += 1
        most_s = _CREDIT * ask_s
        # a lookup that pays for others, or is not known yet, is not given up after a first ask in vain
        usual = self._usual.get(drafter.name, most_s)
        credit_s = min(max(usual, 0.0), most_s)
        share = max(_FIRST_SHARE / (1.0 + self._vain[drafter.name] / _UNLIKELY), _TRIAL_SHARE)
        waits = self._pause(self._anew_s(drafter, ask_s), share) if usual < ask_s and self._begun[drafter.name] % _HOPEFUL else 0
        value = self._values[drafter.name][key] = LookupValue(credit_s, now, now, now + waits)
        return value

    def _ask_s(self, drafter: DrafterInfo) -> float:
        """Seconds that asking a lookup takes for one request."""
        return self._costs.draft_s(drafter.name, drafter.budget.depth, 1)

    def _anew_s(self, drafter: DrafterInfo, ask_s: float) -> float:
        """Seconds that asking takes for a request whose text the lookup has yet to read. ask_s: for one it has read."""
        return max(ask_s, self._costs.resumed.get(drafter.name, 0.0))

    def _pause(self, ask_s: float, share: float) -> int:
        """Steps over which asking once takes only this share of a sequence's time."""
        return int(min(max(ask_s / (share * self.step_s + 1e-9), _SHORTEST_PAUSE), _LONGEST_PAUSE))

    def update(
        self,
        sequences: Many[Sequence],
        trees: Many[DraftTree],
        known: dict[int, list[float]],
        forgone_s: dict[int, float],
        beside_s: Callable[[], float],
        now: int,
    ) -> None:
        """Update every lookup that was asked with the time of the tokens it is expected to save, less the time of their rows.

        trees: what the target verified. known: by request, the acceptance probabilities per depth of what a costly drafter was
        asked for anyway. forgone_s: by request, what a costly drafter would have saved that was not asked because of a find.
        beside_s: returns the seconds that the step took longer because anything was drafted, rows and drafters aside. now: the
        next step.
        """
        if not self._asked:
            return
        looked_at = {sequence.key: tree for sequence, tree in zip(sequences, trees, strict=True)}
        shares_s: tuple[float, float] | None = None
        for key, drafter in self._asked:
            tree, value = looked_at.get(key), self._values[drafter.name].get(key)
            if tree is None or value is None:
                continue
            ask_s = self._ask_s(drafter)
            gain_s = 0.0
            if taken := tree.sources.count(drafter.name):
                # in most steps nothing is found, and this is not needed
                row_s, tree_s = shares_s = shares_s or self._shares_s(trees, beside_s())
                gain_s = self.token_s * _brought(tree, drafter.name, known.get(key)) - row_s * taken
                # what a tree costs as a whole is split among its drafters by number of nodes
                gain_s -= (tree_s + forgone_s.get(key, 0.0)) * taken / (len(tree) - 1)
            if gain_s > 0.0:
                self._vain[drafter.name] = 0
            elif value.updated == value.begun:
                self._vain[drafter.name] += 1
            # drafts that are rejected lose more than asking takes
            lost_s = max(-value.gain_s, 0.0)
            value.update(gain_s, ask_s, now)
            if gain_s <= 0.0 and not value.pays:
                value.wait(ask_s, self._pause(self._anew_s(drafter, ask_s) + lost_s, _TRIAL_SHARE))
            usual = self._usual.get(drafter.name, _CREDIT * ask_s)
            self._usual[drafter.name] = usual + _LEARN * (gain_s - usual)

    def _shares_s(self, trees: Many[DraftTree], beside_s: float) -> tuple[float, float]:
        """Seconds that the step took longer for its drafts: for each of their rows, and for each tree with any."""
        rows = sum(map(len, trees))
        row_s = (self._costs.curve(rows) - self._costs.curve(len(trees))) / (rows - len(trees))
        return row_s, beside_s / sum([len(tree) > 1 for tree in trees])

    def forget_asked(self) -> None:
        """Forget what was asked in the step before."""
        self._asked.clear()

    def release(self, key: int) -> None:
        """Forget a request."""
        for values in self._values.values():
            values.pop(key, None)


def _brought(tree: DraftTree, source: str, known: list[float] | None) -> float:
    """Tokens that a lookup's nodes are expected to add to those that are accepted at their depths without them."""
    chances = tree.chances
    if known is None and tree.only_source == source:
        return sum(chances) - 1.0
    levels: dict[int, float] = {}
    for node in range(1, tree.candidates):
        if tree.sources[node] == source:
            levels[tree.depth[node]] = levels.get(tree.depth[node], 0.0) + chances[node]
    if known is None:
        return sum(levels.values())
    return sum([max(chance - (known[depth - 1] if depth <= len(known) else 0.0), 0.0) for depth, chance in levels.items()])
