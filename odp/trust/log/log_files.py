"""A log as three plain files: its entries, the hashes of its tree, and the newest signed checkpoint.

=============== ================================================================================================
``entries``     each entry as length (4 bytes, big-endian) and bytes, in order
``hashes``      32 bytes for each complete subtree, in the order of ``odp.trust.log.merkle``
``checkpoint``  the signed note of the tree
=============== ================================================================================================

A batch is appended in this order, each step on the disk before the next: entries, hashes, checkpoint (renamed into
place), and only then is it published. So a death at any point leaves the log of the last checkpoint, with unpublished
bytes behind it: ``open`` cuts them off. A checkpoint leaves this object only after it is stored, so no two trees of one
size are ever signed, as long as nobody brings back old files; who does is found out by everyone who saw a newer
checkpoint.

A log has a checkpoint before it has an entry. Where the other files hold anything and the checkpoint is missing, it was
lost, and the log is not opened: ``odp.trust.log.repair`` restores it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from odp import _validate
from odp._system.closing import Closing
from odp._system.files.durability import Health, sync
from odp._system.files.private_files import make_folders, open_private
from odp._system.files.state_folder import remove_unfinished, state_errors, write_atomically
from odp._system.posix import fcntl
from odp.crypto.note import Kind, Note, NoteKey, SignatureLine
from odp.errors import ConfigurationError, StateError, TransparencyError
from odp.trust.log import merkle
from odp.trust.log.checkpoint import Checkpoint, sign_checkpoint
from odp.trust.log.entries import LARGEST_ENTRY

ENTRIES, HASHES, CHECKPOINT = "entries", "hashes", "checkpoint"
LENGTH_BYTES = 4
_LARGEST_BATCH = 256 * 2**20
_CLOSED = -1


@dataclass(frozen=True)
class _Batch:
    """New entries: their leaf hashes, their frames in the file of entries, the new subtrees, and the tree with them."""

    leaves: list[bytes]
    framed: list[bytes]
    hashes: bytes
    tree: Checkpoint


class LogFiles(Closing):
    """The log in one folder, locked; thread-safe. Reading an entry or a proof takes O(log size) small reads."""

    def __init__(self, folder: Path, key: NoteKey, health: Health, entries: int, hashes: int) -> None:
        self.folder = folder
        self._health, self._key, self._entries_file = health, key, entries
        self._hashes_file = hashes
        self._lock = threading.RLock()
        self._offsets = array("Q", [0])
        self._index: dict[bytes, int] = {}
        self._note = Note(b"", ())
        self._torn = False

    @classmethod
    def open(cls, folder: Path, key: NoteKey, *, now: float, health: Health | None = None) -> Self:
        """Opens the log, or starts it with a signed empty tree if the folder has none.

        ``health`` is told of the first sync that fails; nothing is appended or signed after it (DiskFailed).

        Raises:
            StateError: another program holds it, it is damaged, its checkpoint is missing, or it is another log than
                that of ``key``.
        """
        health = Health() if health is None else health
        with contextlib.ExitStack() as undo, health, state_errors(folder):
            make_folders(folder)
            files = []
            for name in (ENTRIES, HASHES):
                files.append(open_private(folder / name, os.O_RDWR | os.O_CREAT))
                undo.callback(os.close, files[-1])
            try:
                fcntl.flock(files[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StateError(f"the log in {folder} is in use by another program; stop that program") from error
            remove_unfinished(folder)
            log = cls(folder, key, health, *files)
            log._restore(now)
            undo.pop_all()
            return log

    @property
    def size(self) -> int:
        """How many entries the newest checkpoint covers."""
        return len(self._offsets) - 1

    @property
    def note(self) -> bytes:
        """The newest checkpoint, as stored."""
        with self._lock:
            return self._note.encode()

    @property
    def checkpoint(self) -> Checkpoint:
        """The newest tree."""
        with self._lock:
            return Checkpoint.from_body(self._note.body)

    def append(self, entries: Sequence[bytes], *, now: float, unless: Callable[[], bool] = lambda: False) -> list[int]:
        """Appends the new ones of the entries, all or none, and signs the tree. Returns the number of each entry.

        Once it returns, the entries are on the disk and under a signed checkpoint. Where ``unless`` is true, nothing is
        appended, and the result is empty; nobody else changes the log between that and the append.

        Raises:
            ConfigurationError: an entry is empty or too long.
            StateError: the disk is full; the log is as before. DiskFailed: only a restart can determine its state.
        """
        check_entries(entries)
        with self._lock:
            if unless():
                return []
            leaves = [merkle.leaf_hash(entry) for entry in entries]
            new = {leaf: entry for leaf, entry in zip(leaves, entries, strict=True) if leaf not in self._index}
            if new:
                with self._storing():
                    if self._torn:
                        # The batch before failed halfway: only the files know whether its checkpoint was stored.
                        self._mend(now)
                        return self.append(entries, now=now)
                    batch = self._planned(list(new.values()), list(new))
                    self._write(batch, sign_checkpoint(batch.tree, self._key, now=now))
            return [self._index[leaf] for leaf in leaves]

    def sign_again(self, *, now: float) -> None:
        """Signs the present tree again with the time ``now``; cosignatures stay. Raises StateError."""
        with self._lock:
            self._store(self._note.with_lines([self._key.cosign(self._note.body, now=now)]))

    def add_cosignatures(self, body: bytes, lines: Sequence[SignatureLine]) -> bool:
        """Adds lines of witnesses to the checkpoint with the text ``body``; False if that is not the newest one."""
        with self._lock:
            if body != self._note.body:
                return False
            self._store(self._note.with_lines(lines))
            return True

    def reach(self, size: int) -> None:
        """Called before an answer about a tree of ``size`` entries, which a reader may have seen elsewhere."""

    def index_of(self, leaf: bytes) -> int | None:
        """Number of the entry with this leaf hash; None if there is none."""
        with self._lock:
            return self._index.get(leaf)

    def entry(self, index: int) -> bytes:
        """The bytes of an entry.

        Raises:
            ConfigurationError: there is no such entry.
            StateError: it does not have the hash that the tree has for it.
        """
        with self._lock, state_errors(self.folder):
            _validate.integer(low=0, high=max(self.size - 1, 0), index=index)
            if not self.size:
                raise ConfigurationError("Expected an entry of the log, which is empty")
            data = _read(self._entries_file, *self._span(index))
            if merkle.leaf_hash(data) != self.node(0, index):
                raise StateError(f"entry {index} of the log in {self.folder} is damaged: restore it from a copy")
            return data

    def head(self, index: int, count: int) -> bytes:
        """The first ``count`` bytes of an entry, unchecked."""
        with self._lock, state_errors(self.folder):
            start, length = self._span(index)
            return _read(self._entries_file, start, min(count, length))

    def length(self, index: int) -> int:
        """Bytes of an entry."""
        return self._span(index)[1]

    def node(self, level: int, place: int) -> bytes:
        """Hash of a complete subtree."""
        return _read(self._hashes_file, merkle.HASH_BYTES * merkle.position(level, place), merkle.HASH_BYTES)

    def inclusion_proof(self, index: int, size: int) -> list[bytes]:
        """See ``merkle.inclusion_proof``; ``size`` is at most the log's."""
        with self._lock, state_errors(self.folder):
            _validate.integer(low=1, high=max(self.size, 1), size=size)
            return merkle.inclusion_proof(index, size, self.node)

    def consistency_proof(self, first: int, second: int) -> list[bytes]:
        """See ``merkle.consistency_proof``; ``second`` is at most the log's size."""
        with self._lock, state_errors(self.folder):
            _validate.integer(low=0, high=self.size, second=second)
            return merkle.consistency_proof(first, second, self.node)

    def hashes(self, level: int, start: int, count: int) -> list[bytes]:
        """Up to ``count`` hashes of complete subtrees of one level, from number ``start`` on."""
        with self._lock, state_errors(self.folder):
            end = min(start + count, self.size >> level)
            return [self.node(level, place) for place in range(start, end)]

    def close(self) -> None:
        """Releases the folder. Idempotent."""
        with self._lock:
            for file in (self._hashes_file, self._entries_file):
                if file != _CLOSED:
                    os.close(file)
            # The system gives the old numbers to other files: whoever still asks must not read or write those.
            self._hashes_file = self._entries_file = _CLOSED

    def _span(self, index: int) -> tuple[int, int]:
        start = self._offsets[index] + LENGTH_BYTES
        return start, self._offsets[index + 1] - start

    @contextlib.contextmanager
    def _storing(self) -> Iterator[None]:
        with self._health, state_errors(self.folder):
            yield

    def _mend(self, now: float) -> None:
        """Goes back to what the files say, after a batch that failed halfway."""
        self._restore(now)
        self._torn = True
        self._store(self._note)
        self._torn = False

    def _planned(self, entries: list[bytes], leaves: list[bytes]) -> _Batch:
        """What the files get for entries that are new to them."""
        size, added = self.size, bytearray()
        base = merkle.stored_hashes(size)

        def node(level: int, place: int) -> bytes:
            at = merkle.HASH_BYTES * (merkle.position(level, place) - base)
            return bytes(added[at : at + merkle.HASH_BYTES]) if at >= 0 else self.node(level, place)

        for number, leaf in enumerate(leaves, start=size):
            added += b"".join(merkle.completed(leaf, number, node))
        end = size + len(entries)
        framed = [len(entry).to_bytes(LENGTH_BYTES, "big") + entry for entry in entries]
        return _Batch(leaves, framed, bytes(added), Checkpoint(self._key.name, end, merkle.root(end, node)))

    def _write(self, batch: _Batch, note: Note) -> None:
        """The three steps of a batch; nothing of this object changes before the last one is done."""
        size = self.size
        self._torn = True
        self._write_at(self._entries_file, self._offsets[-1], b"".join(batch.framed))
        self._write_at(self._hashes_file, merkle.HASH_BYTES * merkle.stored_hashes(size), batch.hashes)
        self._store(note)
        for number, (leaf, frame) in enumerate(zip(batch.leaves, batch.framed, strict=True), start=size):
            self._index[leaf] = number
            self._offsets.append(self._offsets[-1] + len(frame))
        self._torn = False

    def _store(self, note: Note) -> None:
        with self._storing():
            write_atomically(self.folder / CHECKPOINT, note.encode())
        self._note = note

    def _restore(self, now: float) -> None:
        try:
            stored = (self.folder / CHECKPOINT).read_bytes()
        except FileNotFoundError:
            stored = b""
            if os.fstat(self._entries_file).st_size or os.fstat(self._hashes_file).st_size:
                raise _incomplete(self.folder, f"it holds entries, and the file {CHECKPOINT!r} is gone") from None
        log_key = self._key.public(Kind.NOTE)
        if stored:
            self._note = self._parsed(stored)
            line = next((line for line in self._note.lines if line.is_by(log_key)), None)
            if line is None or not log_key.verifies(line, self._note.body):
                raise StateError(
                    f"the checkpoint of the log in {self.folder} is not signed by the log's own key {log_key.name!r}; "
                    "restore file or key"
                )
            tree = self.checkpoint
        else:
            tree = Checkpoint(self._key.name, 0, merkle.EMPTY_ROOT)
        self._scan(tree.size)
        self._cut(self._entries_file, self._offsets[-1])
        hash_bytes = merkle.HASH_BYTES * merkle.stored_hashes(tree.size)
        if os.fstat(self._hashes_file).st_size < hash_bytes:
            raise _incomplete(self.folder, "its hashes are fewer than its checkpoint covers")
        self._cut(self._hashes_file, hash_bytes)
        if merkle.root(tree.size, self.node) != tree.root:
            raise _incomplete(self.folder, "its hashes do not give the root of its checkpoint")
        self._index = {self.node(0, number): number for number in range(tree.size)}
        self._torn = False
        if not stored:
            self._store(sign_checkpoint(tree, self._key, now=now))

    def _parsed(self, stored: bytes) -> Note:
        try:
            note = Note.parse(stored)
            Checkpoint.from_body(note.body)
        except TransparencyError as error:
            raise _incomplete(self.folder, "its checkpoint is damaged") from error
        return note

    def _scan(self, size: int) -> None:
        """The offsets of the first ``size`` entries."""
        self._offsets = array("Q", [0])
        length_of_file, at = os.fstat(self._entries_file).st_size, 0
        for number in range(size):
            length = int.from_bytes(os.pread(self._entries_file, LENGTH_BYTES, at), "big")
            at += LENGTH_BYTES + length
            if not 0 < length <= LARGEST_ENTRY or at > length_of_file:
                raise _incomplete(self.folder, f"entry {number} is damaged")
            self._offsets.append(at)

    def _write_at(self, file: int, start: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(file, view, start)
            view, start = view[written:], start + written
        sync(file, self.folder)

    def _cut(self, file: int, length: int) -> None:
        if os.fstat(file).st_size > length:
            os.ftruncate(file, length)
            sync(file, self.folder)


def check_entries(entries: Sequence[bytes]) -> None:
    """Raises ConfigurationError where entries are too long to be appended, alone or together."""
    if sum(map(len, entries)) > _LARGEST_BATCH:
        raise ConfigurationError(f"Expected at most {_LARGEST_BATCH} bytes at once")
    for entry in entries:
        _validate.integer(low=1, high=LARGEST_ENTRY, entry_bytes=len(entry))


def _incomplete(folder: Path, why: str) -> StateError:
    return StateError(
        f"the log in {folder} cannot be opened: {why}; `odp audit repair` restores it from a copy, or from the "
        "checkpoint that a witness keeps"
    )


def _read(file: int, start: int, count: int) -> bytes:
    data = os.pread(file, count, start)
    if len(data) != count:
        raise StateError("the files of the log are shorter than its checkpoint says: restore them from a copy")
    return data
