"""Whole files: written beside their place and renamed, so that a file of that name is always whole."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile


def put_whole(file: Path, content: bytes, mode: int) -> None:
    """Write a file whole or not at all: the old content stays until then. mode: its permissions, where the file system supports
    them. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=file.parent, prefix=f".{file.name}.", delete=False) as part:
        try:
            part.write(content)
            part.close()
            with suppress(OSError):
                os.chmod(part.name, mode)
            os.replace(part.name, file)
        except BaseException:
            with suppress(OSError):
                os.unlink(part.name)
            raise
