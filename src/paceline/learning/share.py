"""Share: how often something was so, of late."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Share:
    """Hits and trials, those that were only believed among them. memory: trials remembered before older ones fade."""

    hits: float
    trials: float
    memory: float

    def see(self, hits: int, trials: int = 1) -> None:
        self.hits += hits
        self.trials += trials
        while self.trials > self.memory:
            self.hits, self.trials = self.hits / 2, self.trials / 2

    @property
    def rate(self) -> float:
        return self.hits / self.trials
