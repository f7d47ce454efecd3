"""Budget: how much may be drafted, and what a policy sees of a drafter."""

from __future__ import annotations

from paceline.frozen import frozen
from paceline.stopping import Stopping


@frozen
class Budget:
    """What a drafter may propose for one sequence in one step: nodes besides the root, and levels below it.

    floor: a draft ends behind a token whose confidence is below this. stopping: a further rule for where it ends; costly drafters
    follow it, others may ignore it.
    """

    nodes: int
    depth: int
    floor: float = 0.0
    stopping: Stopping | None = None

    @property
    def some(self) -> bool:
        """Whether anything may be drafted."""
        return self.nodes > 0 and self.depth > 0

    @property
    def levels(self) -> int:
        """How deep a draft may go: each level takes a node."""
        return min(self.nodes, self.depth)

    def within(self, other: Budget) -> Budget:
        """The stricter limits of both."""
        if self.nodes <= other.nodes and self.depth <= other.depth and self.floor >= other.floor and not other.stopping:
            return self
        floor, stopping = max(self.floor, other.floor), self.stopping or other.stopping
        return Budget(min(self.nodes, other.nodes), min(self.depth, other.depth), floor, stopping)


NOTHING = Budget(0, 0)


@frozen
class DrafterInfo:
    """A drafter as a policy sees it: its name, the budget it asks for per step, whether drafting takes time that counts beside a
    forward, whether it drafts from the request's reference, and whether a costly draft ends where `Budget.stopping` says and
    takes no more time."""

    name: str
    budget: Budget
    costly: bool = False
    refers: bool = False
    ends_early: bool = False

    @property
    def width(self) -> int:
        """Nodes per level that it asks for."""
        return -(-self.budget.nodes // max(self.budget.depth, 1))
