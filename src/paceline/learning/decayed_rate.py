"""DecayedRate: a rate of hits per trial that forgets older trials."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class DecayedRate:
    """hits, trials: counts, pseudo-counts of a prior included. memory: number of trials from which on both are halved."""

    hits: float
    trials: float
    memory: float

    def see(self, hits: int, trials: int = 1) -> None:
        """Add hits and trials, and halve both until the memory holds them."""
        self.hits += hits
        self.trials += trials
        while self.trials > self.memory:
            self.hits, self.trials = self.hits / 2, self.trials / 2

    @property
    def rate(self) -> float:
        """Hits per trial, from 0 to 1."""
        return self.hits / self.trials
