"""Shares: what each tenant was served lately, so that whoever had least comes first.

A counter of tokens per tenant. One who comes back after a pause starts no lower than those who stayed: what was not asked
for cannot be saved up. Once nobody is left all start anew.

Source: virtual token counters, Sheng et al. (arXiv:2401.00588), section 4.
"""

from __future__ import annotations

from collections import Counter


class Shares:
    """Counts tenants that have requests, and those that left with more than the least of them."""

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}
        self._requests: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, tenant: str) -> int:
        """Tokens counted for a tenant that has a request."""
        return self._tokens[tenant]

    def enter(self, tenant: str) -> None:
        """A request of this tenant came."""
        if tenant not in self._requests:
            self._tokens[tenant] = max(self._tokens.get(tenant, 0), self._least)
        self._requests[tenant] += 1

    def leave(self, tenant: str) -> None:
        """A request of this tenant is over."""
        self._requests[tenant] -= 1
        if not self._requests[tenant]:
            del self._requests[tenant]
            least = self._least
            for known in [known for known in self._tokens if known not in self._requests]:
                if not self._requests or self._tokens[known] <= least:
                    del self._tokens[known]

    def charge(self, tenant: str, tokens: int) -> None:
        """So many tokens were computed for a tenant that has a request."""
        self._tokens[tenant] += tokens

    @property
    def _least(self) -> int:
        return min((self._tokens[tenant] for tenant in self._requests), default=0)
