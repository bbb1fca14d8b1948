"""Private keys of the log's parties in files that only their owner can read, created on first use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from odp._system.files.state_folder import made_once
from odp.crypto.note import NoteKey
from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError, StateError

_Key = TypeVar("_Key")


def note_key(path: Path, *, name: str) -> NoteKey:
    """The key of a log or a witness in ``path``; a new one of that ``name`` where the file does not exist.

    Raises:
        StateError: the file cannot be read or written, or holds no such key.
    """
    return _loaded_or_made(
        path,
        lambda: NoteKey.generate(name),
        lambda key: key.to_text().encode(),
        lambda data: NoteKey.from_text(data.decode("ascii")),
    )


def endorser_key(path: Path) -> SigningKey:
    """The key of an endorser in ``path``, 64 hex digits; a new one where the file does not exist.

    Raises:
        StateError: the file cannot be read or written, or holds no such key.
    """
    return _loaded_or_made(
        path,
        SigningKey.generate,
        lambda key: key.to_bytes().hex().encode() + b"\n",
        lambda data: SigningKey.from_bytes(bytes.fromhex(data.decode("ascii").strip())),
    )


def _loaded_or_made(
    path: Path, make: Callable[[], _Key], write: Callable[[_Key], bytes], read: Callable[[bytes], _Key]
) -> _Key:
    data = made_once(path, lambda: write(make()))
    try:
        return read(data)
    except (ConfigurationError, ValueError) as error:
        raise StateError(f"{path} is not a key of its kind; restore it from a backup") from error
