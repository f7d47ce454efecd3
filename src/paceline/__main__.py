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
        # all is written, and libraries that clear up behind themselves are interrupted as badly as they are imported
        end_at_once()


if __name__ == "__main__":
    main()
