"""The transparency log of servers that share a database: its rows are the log, and the files of each server a copy.

Any of the servers appends, in one transaction that has the newest checkpoint locked: it takes in what others appended,
signs the tree with its own entries, and stores both together. Only then does it write its own files. So the files are
never ahead of the rows, and a checkpoint that is shown to anybody is stored for all. All servers have the same key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from odp._system.files.durability import Health
from odp.crypto.note import Kind, Note, NoteKey, SignatureLine
from odp.errors import StateError, TransparencyError
from odp.trust.log import merkle
from odp.trust.log.checkpoint import Checkpoint, sign_checkpoint
from odp.trust.log.log_files import LogFiles, check_entries
from server.storage.log_rows import LogChange, LogRows

_PAGE = 1000


class SharedLog(LogFiles):
    """``LogFiles`` whose truth is in a database; ``SharedLog.join`` makes one. Thread-safe."""

    _rows: LogRows
    _clock: Callable[[], float]

    @classmethod
    def join(
        cls, folder: Path, key: NoteKey, rows: LogRows, *, clock: Callable[[], float], health: Health | None = None
    ) -> SharedLog:
        """Opens the copy in ``folder``, and takes in what it lacks; where the database has no log, it gets this one.

        Raises:
            StateError: as ``LogFiles.open``; the log of the database has another key, or is another log.
        """
        log = cls.open(folder, key, now=clock(), health=health)
        log._rows, log._clock = rows, clock
        try:
            with log._lock, rows.changing() as change:
                size, note = change.newest()
                if note:
                    log._take(change, size, note)
                else:
                    for start in range(0, log.size, _PAGE):
                        pages = range(start, min(start + _PAGE, log.size))
                        change.append(start, [log.entry(index) for index in pages])
                    change.sign(log.size, log.note)
        except BaseException:
            log.close()
            raise
        return log

    def append(self, entries: Sequence[bytes], *, now: float, unless: Callable[[], bool] = lambda: False) -> list[int]:
        """As ``LogFiles.append``, for all servers at once. Raises Deposed as well, and then nothing is appended."""
        check_entries(entries)
        leaves = [merkle.leaf_hash(entry) for entry in entries]
        with self._lock:
            if not unless() and all(leaf in self._index for leaf in leaves):
                return [self._index[leaf] for leaf in leaves]
            with self._rows.changing() as change:
                self._take(change, *change.newest())
                if unless():
                    return []
                new = {leaf: entry for leaf, entry in zip(leaves, entries, strict=True) if leaf not in self._index}
                if new:
                    batch = self._planned(list(new.values()), list(new))
                    note = sign_checkpoint(batch.tree, self._key, now=now)
                    change.append(self.size, list(new.values()))
                    change.sign(batch.tree.size, note.encode())
            if new:
                with self._storing():
                    self._write(batch, note)
            return [self._index[leaf] for leaf in leaves]

    def sign_again(self, *, now: float) -> None:
        self._renote(lambda: self._note.with_lines([self._key.cosign(self._note.body, now=now)]))

    def add_cosignatures(self, body: bytes, lines: Sequence[SignatureLine]) -> bool:
        return self._renote(lambda: self._note.with_lines(lines) if body == self._note.body else None)

    def reach(self, size: int) -> None:
        """Catches up where another server may have shown a larger tree. Raises StateError."""
        if size > self.size:
            self.catch_up()

    def catch_up(self) -> bool:
        """Takes in what other servers appended and signed; whether there was anything. Raises StateError."""
        size, note = self._rows.newest()
        with self._lock:
            return size >= self.size and self._take(self._rows, size, note)

    def _renote(self, make: Callable[[], Note | None]) -> bool:
        with self._lock:
            with self._rows.changing() as change:
                self._take(change, *change.newest())
                if (note := make()) is None:
                    return False
                change.sign(self.size, note.encode())
            self._store(note)
            return True

    def _take(self, rows: LogChange | LogRows, size: int, encoded: bytes) -> bool:
        """Brings the files up to the checkpoint ``encoded`` of ``size`` entries; whether that changed anything."""
        if size == self.size and encoded == self._note.encode():
            return False
        note = self._verified(encoded)
        tree = Checkpoint.from_body(note.body)
        if tree.size != size or size < self.size:
            raise self._another(f"it has {size} entries, and its copy {self.size}")
        with self._storing():
            if self._torn:
                self._mend(self._clock())
            while self.size < size:
                if not (page := rows.entries(self.size, min(_PAGE, size - self.size))):
                    raise self._another(f"entry {self.size} is missing")
                batch = self._planned(page, [merkle.leaf_hash(entry) for entry in page])
                if batch.tree.size == size and batch.tree.root != tree.root:
                    raise self._another("its entries are not those of its checkpoint")
                # In between the copy has a tree of its own: a part of the one that is signed already.
                part = note if batch.tree.size == size else sign_checkpoint(batch.tree, self._key, now=self._clock())
                self._write(batch, part)
            if merkle.root(size, self.node) != tree.root:
                raise self._another("its checkpoint is of other entries")
            self._store(note)
        return True

    def _verified(self, encoded: bytes) -> Note:
        log_key = self._key.public(Kind.NOTE)
        try:
            note = Note.parse(encoded)
            Checkpoint.from_body(note.body)
        except TransparencyError as error:
            raise self._another("its checkpoint is damaged") from error
        line = next((line for line in note.lines if line.is_by(log_key)), None)
        if line is None or not log_key.verifies(line, note.body):
            raise self._another(f"its checkpoint is not signed by {log_key.name!r}; copy log.key of the other servers")
        return note

    def _another(self, why: str) -> StateError:
        return StateError(
            f"the log in the database is not the one of {self.folder}: {why}; nothing was appended: give a --state "
            "folder of the servers that share the database, or restore the database"
        )
