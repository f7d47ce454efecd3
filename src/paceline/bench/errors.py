"""Errors of a measurement that are not bugs."""

from __future__ import annotations

from paceline.errors import PacelineError


class BenchError(PacelineError):
    """A task file, a size or a peer that cannot be used; the message is one sentence for the user."""
