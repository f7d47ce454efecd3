"""API keys, compared in constant time: how long it takes does not depend on how much of a wrong key matches."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from hashlib import blake2b
from hmac import compare_digest


class Keys:
    """A fixed set of keys. Digests are compared, so lengths are equal; all are, so time does not depend on which one matches."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._salt = secrets.token_bytes(32)
        self._digests = [self._digest(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def _digest(self, key: bytes) -> bytes:
        return blake2b(key, key=self._salt, digest_size=32).digest()

    def which(self, shown: bytes) -> int | None:
        """The index of the key that was sent; None if it is not in the set."""
        digest, found = self._digest(shown), None
        for place, known in enumerate(self._digests):
            if compare_digest(known, digest):
                found = place
        return found


def shown_key(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The key in `Authorization: Bearer` (OpenAI's clients) or `x-api-key` (Anthropic's); empty without either.

    headers: names in lower case.
    """
    found = dict(headers)
    scheme, _, token = found.get(b"authorization", b"").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else found.get(b"x-api-key", b"").strip()
