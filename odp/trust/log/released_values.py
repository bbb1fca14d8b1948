"""The integers of releases that the log has the hash of, as files beside the log: one file for each hash.

A file is whole and checked before it has its name. Nobody trusts it later either: each reader checks the hash again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from odp._system.files.durability import Health, replaced_file, sync_folder
from odp._system.files.state_folder import remove_unfinished, state_errors

#: The folder in that of the log.
VALUES = "values"
PIECE_BYTES = 2**20


class ReleasedValues:
    """The files in ``folder``. Thread-safe.

    Every method raises StateError where the disk is full or the folder cannot be used; ``write`` raises DiskFailed from
    the first sync on that failed.
    """

    def __init__(self, folder: Path, health: Health) -> None:
        self._folder, self._health = folder, health
        with state_errors(folder):
            # What a killed program left: it is fetched again.
            remove_unfinished(folder)

    def holds(self, sha256: bytes) -> bool:
        """Whether values with this hash are stored."""
        return self._path(sha256).is_file()

    def write(self, sha256: bytes, pieces: Iterable[bytes]) -> None:
        """Stores values, all or none. What ``pieces`` raises is passed on, and nothing is stored."""
        with self._health, state_errors(self._folder):
            if not self._folder.is_dir():
                self._folder.mkdir(mode=0o700, exist_ok=True)
                sync_folder(self._folder.parent)
            with replaced_file(self._path(sha256)) as file:
                for piece in pieces:
                    file.write(piece)

    def read(self, sha256: bytes) -> Iterator[bytes]:
        """The values in pieces of 1 MiB; none where they are not stored."""
        return stored_pieces(self._folder, sha256)

    def _path(self, sha256: bytes) -> Path:
        return self._folder / sha256.hex()


def stored_pieces(folder: Path, sha256: bytes) -> Iterator[bytes]:
    """As ``ReleasedValues.read``, for a folder that somebody else writes."""
    with state_errors(folder):
        try:
            file = (folder / sha256.hex()).open("rb")
        except FileNotFoundError:
            return
        with file:
            while piece := file.read(PIECE_BYTES):
                yield piece
