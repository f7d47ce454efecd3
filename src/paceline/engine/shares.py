"""Shares: what each payer was served lately, so that the payer with the least comes first.

A counter of tokens per payer. A payer that comes back after a pause starts no lower than those that stayed: unused shares
cannot be saved up. Once no payer is left all start anew.

Source: virtual token counters, Sheng et al. (arXiv:2401.00588), section 4.
"""

from __future__ import annotations

from collections import Counter


class Shares:
    """Counts for payers that have requests, and for those that left with more than the least of them."""

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}
        self._requests: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, payer: str) -> int:
        """Tokens counted for a payer that has a request."""
        return self._tokens[payer]

    def enter(self, payer: str) -> None:
        """Note that a request of this payer arrived."""
        if payer not in self._requests:
            self._tokens[payer] = max(self._tokens.get(payer, 0), self._least)
        self._requests[payer] += 1

    def leave(self, payer: str) -> None:
        """Note that a request of this payer is over."""
        self._requests[payer] -= 1
        if not self._requests[payer]:
            del self._requests[payer]
            least = self._least
            for known in [known for known in self._tokens if known not in self._requests]:
                if not self._requests or self._tokens[known] <= least:
                    del self._tokens[known]

    def charge(self, payer: str, tokens: int) -> None:
        """Count tokens that were computed for a payer that has a request."""
        self._tokens[payer] += tokens

    @property
    def _least(self) -> int:
        return min((self._tokens[payer] for payer in self._requests), default=0)
