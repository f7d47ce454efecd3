"""Errors: the base class of all errors that are meant for users."""

from __future__ import annotations


class PacelineError(Exception):
    """Base class of the errors that a user can fix; the message is one sentence."""


def validators_words(message: str) -> str:
    """The message of our own validator, without the prefix that pydantic puts before it."""
    return message.removeprefix("Value error, ")
