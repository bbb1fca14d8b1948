"""A device's view of a log: the newest checkpoint that it accepted; later checkpoints must continue it.

A device must not say what it saw last: the size would link its visits. So it asks for no consistency proof. It keeps
the leaf hashes of the last, unfinished *tile* of 256 leaves, and of all tiles before it what a head needs: one hash for
each one in the binary form of their number. To follow the log it fetches the leaf hashes from the beginning of that
tile on, in whole tiles: they have to start with those that it has, and all together have to give the new root. What it
reveals is the number of a tile.

The leaf hashes also show whether an endorsement was withdrawn, since each endorsement names the leaf that would
withdraw it: no further message is needed, and the log's server cannot hide it. A leaf is looked for as long as its
endorsement is valid. So what is remembered stays small, however long the log grows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from odp._system.files.private_files import open_private, read_private
from odp._system.files.state_folder import state_errors, write_atomically
from odp._system.posix import fcntl
from odp._system.recent import Recent
from odp.crypto.log_reasons import LogReason, refused
from odp.crypto.note import Note
from odp.errors import StateError
from odp.refusing import require_resources
from odp.trust.enclave.log_policy import LogPolicy
from odp.trust.log.checkpoint import Checkpoint, check_age, verify_checkpoint
from odp.trust.log.merkle import HASH_BYTES, LARGEST_TREE, Frontier, root_of

TILE_LEVEL = 8
TILE = 1 << TILE_LEVEL
#: Hashes per request: a few tiles.
PAGE = 8 * TILE
#: Maximum number of entries that a device may have missed; 32 MiB of hashes.
_LONGEST_GAP = 2**20
#: Of endorsements that are valid at one time; dozens are, where each of a few enclaves gets one per month.
MOST_WATCHED = 256
#: Longer than any clock is wrong with which a checkpoint is accepted as recent and not of the future.
_PRUNED_AFTER_SECONDS = 24 * 3600
_REMEMBERED = 16
_FORMAT = "odp-log-view-2"

#: (level, start, count) -> hashes of complete subtrees, from whoever serves the log.
FetchHashes = Callable[[int, int, int], Sequence[bytes]]


@dataclasses.dataclass(frozen=True, order=True)
class Watched:
    """A leaf that would withdraw an endorsement.

    Attributes:
        leaf: looked for in every leaf since it was watched, and in those from its endorsement on before.
        until: when its endorsement ends, in seconds since the epoch.
        withdrawn: whether it was found.
    """

    leaf: bytes
    until: int
    withdrawn: bool = False


@dataclasses.dataclass(frozen=True)
class LogView:
    """The remembered state of one log. Immutable: ``advanced``, ``watching`` and ``pruned`` return the next one.

    Attributes:
        note: the newest accepted checkpoint; empty before the first.
        tiles: the tree over the hashes of complete tiles.
        tail: leaf hashes after the last complete tile.
        watched: leaves that would withdraw endorsements which have not ended, ascending.
    """

    note: bytes = b""
    tiles: Frontier = dataclasses.field(default_factory=Frontier)
    tail: tuple[bytes, ...] = ()
    watched: tuple[Watched, ...] = ()

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest accepted tree."""
        return Checkpoint.from_body(Note.parse(self.note).body) if self.note else None

    @property
    def size(self) -> int:
        """Its number of leaves."""
        return TILE * self.tiles.size + len(self.tail)

    @property
    def root(self) -> bytes:
        """The root that the remembered hashes give."""
        return Frontier(self.size, (*self.tiles.hashes, *Frontier().extended(self.tail).hashes)).root()

    def advanced(self, checkpoint: Checkpoint, note: bytes, fetch: FetchHashes) -> LogView:
        """The view after a checkpoint whose signatures were verified.

        Raises:
            TransparencyError: ``shrunk``, ``split_view``, ``inconsistent``.
        """
        if checkpoint.size < self.size:
            raise refused(
                LogReason.SHRUNK,
                f"the log has {checkpoint.size} entries; this device knows a checkpoint of {self.size}",
            )
        if checkpoint.size == self.size and self.note:
            if checkpoint.root != self.root:
                raise refused(LogReason.SPLIT_VIEW, f"two different trees of {self.size} entries were signed")
            return dataclasses.replace(self, note=note)
        if not self.note:
            full = checkpoint.size >> TILE_LEVEL
            tiles = Frontier().extended(_fetched(fetch, TILE_LEVEL, 0, full))
            tail = tuple(_fetched(fetch, 0, TILE * full, checkpoint.size - TILE * full))
            after = dataclasses.replace(self, note=note, tiles=tiles, tail=tail)
        else:
            after = self._grown(checkpoint, note, fetch)
        if after.root != checkpoint.root:
            raise refused(
                LogReason.INCONSISTENT, f"the hashes of its {checkpoint.size} entries do not give the signed root"
            )
        return after

    def watching(self, leaf: bytes, until: int, index: int, fetch: FetchHashes) -> LogView:
        """The view that watches for ``leaf``, which would withdraw an endorsement.

        The endorsement is entry number ``index`` of the log, and ends at ``until`` by itself. Looks from its tile on; a
        withdrawal before its endorsement makes every audit fail. So a leaf that was watched before, and forgotten, is
        found again.

        Raises:
            TransparencyError: ``inconsistent``; ``not_endorsed`` where too many are watched.
        """
        if self.watch(leaf) is not None:
            return self
        if len(self.watched) >= MOST_WATCHED:
            raise refused(
                LogReason.NOT_ENDORSED,
                f"more than {MOST_WATCHED} endorsements of this log are valid at one time; some have to end first",
            )
        withdrawn = leaf in self.tail
        first = min(index >> TILE_LEVEL, self.tiles.size)
        tiles = Frontier().extended(_fetched(fetch, TILE_LEVEL, 0, first)) if first < self.tiles.size else self.tiles
        for place in range(first, self.tiles.size):
            leaves = _fetched(fetch, 0, TILE * place, TILE)
            tiles = tiles.extended([root_of(leaves)])
            withdrawn = withdrawn or leaf in leaves
        if tiles.hashes != self.tiles.hashes:
            raise refused(LogReason.INCONSISTENT, f"the hashes from tile {first} on are not those of the signed tree")
        return dataclasses.replace(self, watched=tuple(sorted((*self.watched, Watched(leaf, until, withdrawn)))))

    def watch(self, leaf: bytes) -> Watched | None:
        """The state of a watched leaf."""
        return next((entry for entry in self.watched if entry.leaf == leaf), None)

    def pruned(self, now: float) -> LogView:
        """The view without leaves whose endorsements ended long before ``now``: those cover no enclave any more."""
        remaining = tuple(entry for entry in self.watched if entry.until + _PRUNED_AFTER_SECONDS >= now)
        return dataclasses.replace(self, watched=remaining)

    def _grown(self, checkpoint: Checkpoint, note: bytes, fetch: FetchHashes) -> LogView:
        start = TILE * self.tiles.size
        if checkpoint.size - start > _LONGEST_GAP:
            raise refused(
                LogReason.INCONSISTENT,
                f"the log grew by more than {_LONGEST_GAP} entries since this device last read it",
            )
        leaves = _fetched(fetch, 0, start, checkpoint.size - start)
        if tuple(leaves[: len(self.tail)]) != self.tail:
            raise refused(LogReason.INCONSISTENT, "the log changed entries that this device knows")
        full = len(leaves) >> TILE_LEVEL
        tiles = (root_of(leaves[TILE * place : TILE * (place + 1)]) for place in range(full))
        shown = frozenset(leaves)
        watched = (
            dataclasses.replace(entry, withdrawn=entry.withdrawn or entry.leaf in shown) for entry in self.watched
        )
        return dataclasses.replace(
            self,
            note=note,
            tiles=self.tiles.extended(tiles),
            tail=tuple(leaves[TILE * full :]),
            watched=tuple(watched),
        )

    def encode(self) -> bytes:
        """JSON, for the file."""
        content = {
            "format": _FORMAT,
            "note": self.note.decode(),
            "tail": [leaf.hex() for leaf in self.tail],
            "tiles": {"count": self.tiles.size, "hashes": [tile.hex() for tile in self.tiles.hashes]},
            "watched": [[entry.leaf.hex(), entry.until, entry.withdrawn] for entry in self.watched],
        }
        return json.dumps(content, indent=1).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> LogView:
        """The view that ``encode`` wrote. Raises ValueError."""
        content = json.loads(data)
        tiles = content["tiles"]
        view = cls(
            content["note"].encode(),
            Frontier(tiles["count"], [bytes.fromhex(text) for text in tiles["hashes"]]),
            tuple(bytes.fromhex(text) for text in content["tail"]),
            tuple(
                Watched(bytes.fromhex(leaf), int(until), bool(withdrawn))
                for leaf, until, withdrawn in content["watched"]
            ),
        )
        checkpoint = view.checkpoint
        signed_tree = (0, b"") if checkpoint is None else (checkpoint.size, checkpoint.root)
        if content["format"] != _FORMAT or signed_tree != (view.size, view.root if view.note else b""):
            raise ValueError("the remembered hashes do not belong to the remembered checkpoint")
        return view


class LogMemory:
    """The newest ``LogView`` of one log, in a file that several programs of one person may share. Thread-safe.

    Args:
        policy: what is pinned.
        file: where the view lies between runs; None keeps it in memory.
        fetch: where hashes come from.
    """

    def __init__(self, policy: LogPolicy, file: Path | None, fetch: FetchHashes) -> None:
        self.policy = policy
        self._file, self._fetch = file, fetch
        self._lock = threading.Lock()
        self._view = LogView()
        #: What ``_view`` was decoded from; None where it was not, or a change of this process came after it.
        self._decoded: bytes | None = None
        self._accepted: Recent[bytes, Checkpoint] = Recent(_REMEMBERED)

    @property
    def view(self) -> LogView:
        """The present view."""
        with self._lock:
            return self._view

    def accept(self, note: bytes, *, now: float) -> Checkpoint:
        """The checkpoint of ``note``, after all checks; it is stored durably before this returns.

        An older checkpoint is accepted again only where this process accepted it before: it may still be in an answer
        that was on its way when a newer one came.

        Raises:
            TransparencyError: see ``verify_checkpoint``, ``check_age`` and ``LogView.advanced``; nothing is remembered.
            StateError: the file cannot be read or written.
        """
        verified = verify_checkpoint(note, self.policy)
        check_age(verified, self.policy, now=now)
        checkpoint = verified.checkpoint
        with self._changing() as view:
            if checkpoint.size < view.size and self._accepted.get(checkpoint.body):
                return checkpoint
            is_newer = note == view.note or (verified.time or 0) >= _time(view.note, self.policy)
            newer = note if is_newer else view.note
            same = view.note and checkpoint.size == view.size
            after = view.advanced(checkpoint, newer if same else note, self._fetch)
            # By the time that the checkpoint states, which ``check_age`` found to be near this device's clock.
            self._keep(after.pruned(verified.time or 0), view)
            self._accepted.put(checkpoint.body, checkpoint)
        return checkpoint

    def require_not_withdrawn(self, leaf: bytes, *, until: int, index: int) -> None:
        """Returns if the endorsement at entry ``index`` that ends at ``until``, which ``leaf`` would withdraw, stands.

        Raises:
            TransparencyError: ``withdrawn``, ``inconsistent``, ``not_endorsed``.
            StateError: the file cannot be read or written.
        """
        with self._changing() as view:
            after = view.watching(leaf, until, index, self._fetch)
            self._keep(after, view)
        watch = after.watch(leaf)
        if watch is not None and watch.withdrawn:
            raise refused(LogReason.WITHDRAWN, f"the endorsement at entry {index} was withdrawn")

    def _keep(self, after: LogView, before: LogView) -> None:
        if after != before and self._file is not None:
            with state_errors(self._file.parent):
                write_atomically(self._file, after.encode())
            self._decoded = None
        self._view = after

    @contextlib.contextmanager
    def _changing(self) -> Iterator[LogView]:
        """The newest view, of this process or another one, locked against other changes."""
        with self._lock:
            if self._file is None:
                yield self._view
                return
            with state_errors(self._file.parent):
                lock = open_private(self._file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                kept_before = os.fstat(lock).st_size > 0
                self._view = self._load(self._file, kept_before=kept_before)
                yield self._view
                # A view that is lost later must not look like that of a new device.
                if self._view.note and not kept_before:
                    os.pwrite(lock, b"1", 0)
            finally:
                os.close(lock)

    def _load(self, file: Path, *, kept_before: bool) -> LogView:
        with state_errors(file.parent):
            try:
                data = read_private(file)
            except FileNotFoundError:
                if kept_before:
                    raise StateError(
                        f"{file} is gone: this device's state of the log is lost; restore it from a "
                        f"backup, or remove {file.with_suffix('.lock').name} too, to trust the next log"
                    ) from None
                return LogView()
        if data == self._decoded:
            return self._view
        try:
            view = LogView.decode(data)
        except Exception as error:
            require_resources(error, f"read {file}")
            raise StateError(
                f"{file} is damaged: this device's state of the log is lost; restore it from a backup"
            ) from error
        checkpoint = view.checkpoint
        if checkpoint is not None and checkpoint.origin != self.policy.origin:
            # The person pinned another log: the state of the old one does not apply to it.
            return LogView()
        self._decoded = data
        return view


def _time(note: bytes, policy: LogPolicy) -> int:
    return (verify_checkpoint(note, policy).time or 0) if note else 0


def _fetched(fetch: FetchHashes, level: int, start: int, count: int) -> list[bytes]:
    """Exactly ``count`` hashes, page by page."""
    if not 0 <= count <= LARGEST_TREE >> level:
        raise refused(LogReason.MALFORMED, f"a log of {count} entries")
    hashes: list[bytes] = []
    while len(hashes) < count:
        wanted = min(PAGE, count - len(hashes))
        # Whole tiles are asked for, whatever is needed: an unfinished one ends where the log does.
        page = list(fetch(level, start + len(hashes), -(-wanted // TILE) * TILE))[:wanted]
        if len(page) != wanted or any(len(value) != HASH_BYTES for value in page):
            raise refused(LogReason.INCONSISTENT, "the log does not return the hashes that its checkpoint covers")
        hashes += page
    return hashes
