"""Errors: what all that are meant for users have in common."""

from __future__ import annotations


class PacelineError(Exception):
    """Something that a user can mend; the message is one sentence."""
