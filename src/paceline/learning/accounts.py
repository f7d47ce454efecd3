"""Accounts: what asking a look-up brings in seconds, per request, and when it is worth asking again.

A look-up costs next to nothing, but not nothing: on a small model asking one in vain takes as long as a row saves. Each request
keeps account of what asking brings. The less that is, the more rarely it is asked: what a find would bring is lost for half of
a pause in the mean, so the pause that costs least grows with the root of what asking takes over what it brings. As soon as it
finds something it is asked always again; and what is worth asking whatever a step brings is accounted for now and then, for all
steps since.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence as Many
from dataclasses import dataclass
from math import sqrt

from paceline.budget import NOTHING, Budget, Part
from paceline.learning.costs import Costs
from paceline.sequence import Sequence
from paceline.tree import DraftTree

_LEARN = 0.15
"""Weight of the latest account among all requests."""
_SLOWLY, _MOST = 0.03, 0.5
"""The same among those of one request, for every step since the one before, and at most: a text in which nothing is found for a
while may come to what it holds already, for many tokens on end."""
_BEFORE = 10.0
"""Steps that what is known of other requests counts for."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 4, 128
"""Steps between two trials of a look-up that brings nothing; how many of them, its cost decides."""
_TRIAL_SHARE, _FIRST_SHARE = 0.005, 0.03
"""Share of a sequence's time that may go into asking what brings nothing; and until it is asked for the first time, of a new
request, for what others hold says little of what its text does."""
_UNLIKELY = 8
"""New requests in a row for which asking brought nothing, after which the share of the next is halved, down to a trial's."""
_CREDIT = 4.0
"""Times its cost that a look-up which pays for others is at most held to bring for a new request."""
_HOPEFUL = 8
"""One request in so many begins by asking a look-up that did not pay of late."""
_CROWD, _FEWEST = 256, 4
"""Nodes that a look-up is asked for in a step, over all sequences, and for each at least: what a crowd finds beyond that no
device looks at for next to nothing, and to weigh each of them takes the host's time."""


@dataclass(slots=True)
class Account:
    """Seconds that asking one look-up for one request brings, of late, the asking not counted.

    begun: the step in which it was opened. booked: that of the last account. wakes: that in which it is asked again. pays:
    whether it is worth asking always, though a step may bring nothing.
    """

    gain_s: float
    begun: int
    booked: int
    wakes: int
    pays: bool = False

    def book(self, gain_s: float, ask_s: float, now: int) -> None:
        """Account for having asked in the step before `now`, and ask again. ask_s: what that took."""
        weight = (now - self.booked) * max(_SLOWLY, 1.0 / (_BEFORE + now - self.begun))
        self.gain_s += min(weight, _MOST) * (gain_s - self.gain_s)
        self.booked = self.wakes = now
        self.pays = 2.0 * ask_s <= self.gain_s

    def wait(self, ask_s: float, longest: int) -> None:
        """Having been asked in vain, wait. longest: steps from one trial to the next where nothing is brought."""
        every = sqrt(2.0 * ask_s / self.gain_s) if self.gain_s > 0.0 else longest
        self.wakes += round(min(every, longest)) - 1


class Accounts:
    """Of all look-ups and requests. token_s, step_s: seconds that a token is worth, and of a step for each of its sequences;
    whoever has the accounts keeps them."""

    def __init__(self, costs: Costs) -> None:
        self._costs, self.token_s, self.step_s = costs, 0.0, 0.0
        self._accounts: dict[str, dict[int, Account]] = {}
        """Look-up -> request -> account."""
        self._usual: dict[str, float] = {}
        """Look-up -> seconds that asking it brings, over all requests, the asking not counted."""
        self._begun, self._vain = defaultdict[str, int](int), defaultdict[str, int](int)
        """Look-up -> new requests so far, and those of late in a row for which asking it brought nothing."""
        self._asked: list[tuple[int, Part]] = []
        self._refer: set[str] = set()
        """Those that draft from the reference that a request brings."""

    def budgets(self, part: Part, sequences: Many[Sequence], now: int, learns: bool) -> list[Budget]:
        """What a look-up may draft in step `now`: all it wants, or its share in a crowd, or nothing. learns: whether that step is
        learnt from; where it is not, what pays anyway is not accounted for."""
        accounts, granted = self._accounts.setdefault(part.name, {}), []
        if part.refers:
            self._refer.add(part.name)
        share = max(_CROWD // len(sequences), _FEWEST)
        budget = part.budget.within(Budget(share, share))
        for sequence in sequences:
            account = accounts.get(sequence.key) or self._opened(sequence.key, part, now)
            if account is not None and account.wakes > now:
                granted.append(NOTHING)
                continue
            granted.append(budget)
            if learns or account is None or not account.pays:
                self._asked.append((sequence.key, part))
        return granted

    def awake(self, key: int, now: int) -> bool:
        """Whether a look-up would be asked in step `now` for a request that brings a reference, of those that draft from it where
        there are any; or none ever was."""
        known = {name: accounts[key] for name, accounts in self._accounts.items() if key in accounts}
        refer = [account for name, account in known.items() if name in self._refer] or known.values()
        return not refer or any(account.wakes <= now for account in refer)

    @property
    def asked(self) -> bool:
        """Whether any look-up is asked in this step that will be accounted for."""
        return bool(self._asked)

    def _opened(self, key: int, part: Part, now: int) -> Account | None:
        """A new account; none while it was never timed what asking takes: what that is worth would be nothing."""
        ask_s = self._ask_s(part)
        if not ask_s:
            return None
        self._begun[part.name] += 1
        most_s = _CREDIT * ask_s
        # what pays for others, or is not known yet, is not given up for having found nothing at first
        usual = self._usual.get(part.name, most_s)
        credit_s = min(max(usual, 0.0), most_s)
        share = max(_FIRST_SHARE / (1.0 + self._vain[part.name] / _UNLIKELY), _TRIAL_SHARE)
        waits = self._pause(self._anew_s(part, ask_s), share) if usual < ask_s and self._begun[part.name] % _HOPEFUL else 0
        account = self._accounts[part.name][key] = Account(credit_s, now, now, now + waits)
        return account

    def _ask_s(self, part: Part) -> float:
        """Seconds that asking a look-up takes."""
        return self._costs.draft_s(part.name, part.budget.depth, 1)

    def _anew_s(self, part: Part, ask_s: float) -> float:
        """Seconds that asking a look-up takes for a request of which it lacks much. ask_s: for one that it knows."""
        return max(ask_s, self._costs.resumed.get(part.name, 0.0))

    def _pause(self, ask_s: float, share: float) -> int:
        """Steps in which asking once takes only this share of the time of a sequence."""
        return int(min(max(ask_s / (share * self.step_s + 1e-9), _SHORTEST_PAUSE), _LONGEST_PAUSE))

    def book(
        self,
        sequences: Many[Sequence],
        trees: Many[DraftTree],
        known: dict[int, list[float]],
        forgone_s: dict[int, float],
        beside_s: Callable[[], float],
        now: int,
    ) -> None:
        """Account for every look-up that was asked: the time of the tokens it saves, less rows.

        trees: what the target looked at. known: by request, per depth, how likely what a costly drafter was asked for all the
        same comes true. forgone_s: by request, what one would have brought that was not asked because of what was found.
        beside_s: says what the step took longer, rows and asking aside, because something was drafted. now: the step to come.
        """
        if not self._asked:
            return
        looked_at = {sequence.key: tree for sequence, tree in zip(sequences, trees, strict=True)}
        shares_s: tuple[float, float] | None = None
        for key, part in self._asked:
            tree, account = looked_at.get(key), self._accounts[part.name].get(key)
            if tree is None or account is None:
                continue
            ask_s = self._ask_s(part)
            gain_s = 0.0
            if taken := tree.sources.count(part.name):
                # in most steps nothing is found, and then this is not needed
                row_s, tree_s = shares_s = shares_s or self._shares_s(trees, beside_s())
                gain_s = self.token_s * _brought(tree, part.name, known.get(key)) - row_s * taken
                # what all of a tree costs falls to whoever has nodes in it, by how many
                gain_s -= (tree_s + forgone_s.get(key, 0.0)) * taken / (len(tree) - 1)
            if gain_s > 0.0:
                self._vain[part.name] = 0
            elif account.booked == account.begun:
                self._vain[part.name] += 1
            # an answer that is drafted in vain loses more than asking takes
            lost_s = max(-account.gain_s, 0.0)
            account.book(gain_s, ask_s, now)
            if gain_s <= 0.0 and not account.pays:
                account.wait(ask_s, self._pause(self._anew_s(part, ask_s) + lost_s, _TRIAL_SHARE))
            usual = self._usual.get(part.name, _CREDIT * ask_s)
            self._usual[part.name] = usual + _LEARN * (gain_s - usual)

    def _shares_s(self, trees: Many[DraftTree], beside_s: float) -> tuple[float, float]:
        """Of what the step took longer for its drafts, seconds for each of their rows, and for each tree that has any."""
        rows = sum(map(len, trees))
        row_s = (self._costs.curve(rows) - self._costs.curve(len(trees))) / (rows - len(trees))
        return row_s, beside_s / sum([len(tree) > 1 for tree in trees])

    def forget_asked(self) -> None:
        """Nothing is asked yet in the step that begins."""
        self._asked.clear()

    def release(self, key: int) -> None:
        """Forget a request."""
        for accounts in self._accounts.values():
            accounts.pop(key, None)


def _brought(tree: DraftTree, source: str, known: list[float] | None) -> float:
    """Tokens that a look-up's nodes are expected to bring beyond what is known to come true at their depths without them."""
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
