"""`python -m paceline` is the command line, and so is `paceline`."""

from __future__ import annotations

from paceline.interrupts import end_at_once


def main() -> None:
    """Entry point of both."""
    end_at_once()
    # takes a while to import
    from paceline import cli

    try:
        cli.main()
    finally:
        # all output is written, and libraries handle interrupts during their cleanup as badly as during their import
        end_at_once()


if __name__ == "__main__":
    main()
