"""Errors: the base class of all errors that are meant for users."""

from __future__ import annotations


class PacelineError(Exception):
    """Base class of the errors that a user can fix; the message is one sentence."""


def validators_words(message: str) -> str:
    """What a validator of ours says, of a message of pydantic, which puts words of its own before it."""
    return message.removeprefix("Value error, ")
