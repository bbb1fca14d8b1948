"""Restores a damaged log from its own files, a copy, and checkpoints that others have.

What was signed once must stay the beginning of the log for ever. So every tree that is known to have been signed (by
the log's own checkpoint, a copy's, a witness's) has to be the beginning of what is restored, and entries that are there
are never dropped: of all sequences of entries that begin with every known tree, the longest is taken. A log overwrites
no entry that it signed, so whole entries of its own file are those of any larger tree that nobody here knows of.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from odp._system.files.private_files import open_private
from odp._system.files.state_folder import state_errors, write_atomically
from odp._system.posix import fcntl
from odp.crypto.note import LARGEST_NOTE, Kind, Note, NoteKey
from odp.errors import ConfigurationError, StateError, TransparencyError
from odp.trust.log import merkle
from odp.trust.log.checkpoint import Checkpoint, sign_checkpoint
from odp.trust.log.entries import LARGEST_ENTRY, decode
from odp.trust.log.log_files import CHECKPOINT, ENTRIES, HASHES, LENGTH_BYTES, LogFiles


@dataclass(frozen=True)
class Repaired:
    """The result: ``size`` of the log now, of which ``own`` entries were in its own file; ``signed_anew`` if no stored
    checkpoint covers exactly these entries.
    """

    size: int
    own: int
    signed_anew: bool


@dataclass(frozen=True)
class _KnownTree:
    """A tree that was signed, its source, and the note if it is the log's own."""

    tree: Checkpoint
    source: str
    note: Note | None = None


def repair(
    folder: Path, key: NoteKey, *, copies: Sequence[Path] = (), checkpoints: Sequence[Path] = (), now: float
) -> Repaired:
    """Restores the log in ``folder``, whose own key is ``key``. Idempotent; no other program may write it.

    Args:
        copies: folders with another copy of the log, each with a checkpoint under ``key``.
        checkpoints: files with a checkpoint of the log: a signed note, or the text that a witness keeps.
        now: seconds since the epoch, for a checkpoint that is signed anew.

    Raises:
        ConfigurationError: a copy or a checkpoint is none of this log, or nothing says how far the log went.
        StateError: no entries here begin with every tree that was signed, or the folder cannot be used.
    """
    with _locked(folder):
        trees = [*_own_trees(folder, key), *(_copied(copy, key) for copy in copies)]
        trees += [_stated(path, key) for path in checkpoints]
        if not trees:
            raise ConfigurationError(
                f"the size of the log in {folder} is unknown: give --from a copy of it, or --checkpoint the file "
                "that a witness keeps of it"
            )
        own_entries = _own_entries(folder, max(known_tree.tree.size for known_tree in trees))
        candidates = [own_entries]
        for copy in copies:
            size = _copied(copy, key).tree.size
            candidates.append(list(itertools.islice(_whole_entries(copy / ENTRIES), size)))
        entries = _longest(candidates, trees)
        tree = Checkpoint(key.name, len(entries), merkle.root_of(map(merkle.leaf_hash, entries)))
        note = next(
            (known_tree.note for known_tree in trees if known_tree.note is not None and known_tree.tree == tree), None
        )
        _write(folder, entries, sign_checkpoint(tree, key, now=now) if note is None else note)
    # Reads all of it again, as the server does.
    with LogFiles.open(folder, key, now=now):
        return Repaired(len(entries), min(len(own_entries), len(entries)), signed_anew=note is None)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with state_errors(folder):
        if not folder.is_dir():
            raise ConfigurationError(f"{folder} is not the folder of a log")
        file = open_private(folder / ENTRIES, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StateError(f"the log in {folder} is in use: stop its server first") from error
        else:
            yield
        finally:
            os.close(file)


def _own_trees(folder: Path, key: NoteKey) -> list[_KnownTree]:
    """The log's own checkpoint, if it exists and is intact."""
    try:
        return [_signed(folder / CHECKPOINT, key)]
    except ConfigurationError:
        return []


def _copied(copy: Path, key: NoteKey) -> _KnownTree:
    return _signed(copy / CHECKPOINT, key)


def _signed(path: Path, key: NoteKey) -> _KnownTree:
    stated = _stated(path, key)
    if stated.note is None:
        raise ConfigurationError(f"{path} is not signed by this log")
    return stated


def _stated(path: Path, key: NoteKey) -> _KnownTree:
    """The tree of a signed note with a valid signature by the log, or of a bare checkpoint text."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_NOTE + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        note: Note | None = Note.parse(data)
    except TransparencyError:
        note = None
    try:
        tree = Checkpoint.from_body(data if note is None else note.body)
    except TransparencyError as error:
        raise ConfigurationError(f"{path} is not a checkpoint of a log: {error}") from error
    if tree.origin != key.name:
        raise ConfigurationError(f"{path} is of the log {tree.origin!r}, and this one is {key.name!r}")
    if note is not None:
        log_key = key.public(Kind.NOTE)
        if not any(line.is_by(log_key) and log_key.verifies(line, note.body) for line in note.lines):
            raise ConfigurationError(f"{path} is not signed by the key of this log")
    return _KnownTree(tree, str(path), note)


def _whole_entries(path: Path) -> Iterator[bytes]:
    """The entries of a file up to the first damaged one."""
    try:
        with path.open("rb") as file:
            while True:
                length = int.from_bytes(file.read(LENGTH_BYTES), "big")
                data = file.read(length) if 0 < length <= LARGEST_ENTRY else b""
                if not data or len(data) != length:
                    return
                yield data
    except FileNotFoundError:
        return


def _own_entries(folder: Path, covered: int) -> list[bytes]:
    """The entries of the log's own file: as far as trees are known, and later ones that are complete.

    Their hashes say so, which were written after them; without these, that they are records.
    """
    try:
        hashes = (folder / HASHES).read_bytes()
    except FileNotFoundError:
        hashes = b""
    entries = []
    for number, entry in enumerate(_whole_entries(folder / ENTRIES)):
        start = merkle.HASH_BYTES * merkle.position(0, number)
        stored = hashes[start : start + merkle.HASH_BYTES]
        if number >= covered and stored != merkle.leaf_hash(entry) and (stored or not _is_record(entry)):
            break
        entries.append(entry)
    return entries


def _is_record(entry: bytes) -> bool:
    try:
        decode(entry)
    except ConfigurationError:
        return False
    return True


def _longest(candidates: Iterable[Sequence[bytes]], trees: Sequence[_KnownTree]) -> Sequence[bytes]:
    failed = ""
    for entries in sorted(candidates, key=len, reverse=True):
        leaves = [merkle.leaf_hash(entry) for entry in entries]
        if (missing := next((tree for tree in trees if not _begins(leaves, tree.tree)), None)) is None:
            return entries
        failed = failed or f"{missing.source} is of {missing.tree.size} entries that these {len(entries)} do not have"
    raise StateError(f"the log cannot be restored: {failed}; give --from a newer copy, nothing was changed")


def _begins(leaves: Sequence[bytes], tree: Checkpoint) -> bool:
    return len(leaves) >= tree.size and merkle.root_of(leaves[: tree.size]) == tree.root


def _write(folder: Path, entries: Sequence[bytes], note: Note) -> None:
    """Writes the files, the checkpoint last: after an interruption, the log is unchanged or refused, and can be
    repaired again.
    """
    framed = b"".join(len(entry).to_bytes(LENGTH_BYTES, "big") + entry for entry in entries)
    with state_errors(folder):
        write_atomically(folder / ENTRIES, framed)
        write_atomically(folder / HASHES, _hashes(entries))
        write_atomically(folder / CHECKPOINT, note.encode())


def _hashes(entries: Sequence[bytes]) -> bytes:
    stored = bytearray()

    def node(level: int, place: int) -> bytes:
        start = merkle.HASH_BYTES * merkle.position(level, place)
        return bytes(stored[start : start + merkle.HASH_BYTES])

    for number, entry in enumerate(entries):
        stored += b"".join(merkle.completed(merkle.leaf_hash(entry), number, node))
    return bytes(stored)
