"""Files that a user asked for, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from odp.errors import ConfigurationError


def write_whole(path: str | Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Writes a file, and its folder where there is none; one of that name keeps its bytes until the new ones are whole.

    Raises:
      ConfigurationError: it cannot be written.
    """
    path = Path(path)
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = Path(file.name)
            for piece in pieces:
                file.write(piece)
            file.flush()
            # A power cut must not leave the name on half a file.
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except (OSError, ValueError) as error:  # a ValueError is a name with a zero byte
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"cannot write to {path}: {reason}; give another place") from error
