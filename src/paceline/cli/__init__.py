"""The command line. Every error a user can cause is one sentence on stderr and exit code 2.

A new command is a function in a file of its own, named after it, and a line in `app.py`. `options.py` holds the options that
commands share, `terminal.py` what they write to. What needs torch is imported inside the function that uses it, so that help and
wrong usage answer at once.
"""

from __future__ import annotations

import sys

from paceline.cli.app import app


def main() -> None:
    """Entry point: turns every error a user can cause into one sentence and exit code 2."""
    try:
        app(standalone_mode=True)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Exception as error:
        if not isinstance(error, _user_errors()):
            raise
        sys.stderr.write(f"paceline: {error}\n")
        raise SystemExit(2) from None


def _user_errors() -> tuple[type[Exception], ...]:
    from paceline.bench.errors import BenchError
    from paceline.engine.engine import RequestError
    from paceline.models.base import ModelError
    from paceline.registry import UnknownMethod
    from paceline.sampling import LogitsError
    from paceline.spec import SpecError

    return (ModelError, SpecError, UnknownMethod, RequestError, LogitsError, BenchError, *_server_errors())


def _server_errors() -> tuple[type[Exception], ...]:
    # only where the server was started, which has them loaded
    if "paceline.serve.serving" not in sys.modules:
        return ()
    from paceline.serve.process import EngineError
    from paceline.serve.settings import SettingsError

    return (EngineError, SettingsError)
