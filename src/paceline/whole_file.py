"""Whole files: written beside their place and renamed, so that what has the name is whole."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile


def put_whole(file: Path, content: bytes, mode: int) -> None:
    """Write a file whole or not at all: what was there stays until then. mode: who may read it, where the file system knows
    that. Raises OSError."""
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
