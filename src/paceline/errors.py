"""Errors: what all that are meant for users have in common."""

from __future__ import annotations


class PacelineError(Exception):
    """Something that a user can mend; the message is one sentence."""


def validators_words(message: str) -> str:
    """What a validator of ours says, of a message of pydantic, which puts words of its own before it."""
    return message.removeprefix("Value error, ")
