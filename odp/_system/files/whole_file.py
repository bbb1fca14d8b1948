"""Files that a user asked for, written whole or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from odp._system.files.durability import replaced_file
from odp.errors import ConfigurationError


def write_whole(path: str | Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Writes a file, and its folder where there is none; one of that name keeps its bytes until the new ones are whole.

    Raises:
      ConfigurationError: it cannot be written.
      DiskFailed: the disk did not store it.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced_file(path) as file:
            if sys.platform != "win32":
                os.fchmod(file.fileno(), 0o644)  # for any umask
            for piece in pieces:
                file.write(piece)
    except (OSError, ValueError) as error:  # a ValueError is a name with a zero byte
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"cannot write to {path}: {reason}; give another place") from error
