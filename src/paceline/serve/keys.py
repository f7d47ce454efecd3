"""API keys: whether what a client shows is one of them, in a time that says nothing about how near it came."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from hashlib import blake2b
from hmac import compare_digest


class Keys:
    """A fixed set of keys. Digests are compared, so that lengths are equal; each is compared, so that places take equal time."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._salt = secrets.token_bytes(32)
        self._digests = [self._digest(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def _digest(self, key: bytes) -> bytes:
        return blake2b(key, key=self._salt, digest_size=32).digest()

    def which(self, shown: bytes) -> int | None:
        """The place of the key that was shown; None for none of them."""
        digest, found = self._digest(shown), None
        for place, known in enumerate(self._digests):
            if compare_digest(known, digest):
                found = place
        return found


def shown_key(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """What `Authorization: Bearer` (OpenAI's clients) or `x-api-key` (Anthropic's) holds; empty for neither.

    headers: names in lower case.
    """
    found = dict(headers)
    scheme, _, token = found.get(b"authorization", b"").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else found.get(b"x-api-key", b"").strip()
