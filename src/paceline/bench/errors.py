"""What can go wrong with a measurement through no fault of the program."""

from __future__ import annotations

from paceline.errors import PacelineError


class BenchError(PacelineError):
    """A task file, a size or a peer that cannot be used; the message is one sentence for the user."""
