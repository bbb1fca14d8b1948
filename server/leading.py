"""Which tasks this server leads: leases that it takes, renews, and loses.

Several servers on one database share the tasks. The leader of a task takes its steps, and renews its lease every
second. One that is dead, or paused for longer than the lease, is followed by another server; when it goes on it finds
itself deposed. That a deposed leader stores nothing is the store's promise (``server/storage/leases.py``), and not a
matter of what stands here: this module decides when a step is worth to be begun.

A server that is alone on its database holds a lease for ever: nothing has to be renewed, and its successor at the same
state folder takes it at once, since the lock of that folder says that the process before is gone.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from odp.errors import StateError
from odp.transport.logs import Log, short
from server.storage import Storage
from server.storage.leases import FOR_EVER, Deposed, Holder, Lease, Note
from server.waits import Wait

#: How long a lease lasts that nobody renews, and the pause between two renewals.
LEASE_SECONDS = 3.0
RENEW_SECONDS = 1.0
#: The name of the lease of whoever keeps the transparency log fresh.
LOG = b"log"


class Leads:
    """The leases of this process. Thread-safe.

    Args:
        storage: has the leases.
        place: names the state folder, of which this process has the lock.
        shared: whether other servers use the database.
        log: where taking and losing is noted.
        monotonic: seconds that only grow; a pause of this process counts.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        place: str,
        shared: bool,
        log: Log,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Frees what an earlier process at ``place`` held. Raises StateError."""
        self._storage, self._log, self._monotonic = storage, log, monotonic
        #: What a task waits for at present, for those who ask another server.
        self.waits_for: Callable[[bytes], Wait | None] = lambda name: None
        self._seconds = LEASE_SECONDS if shared else FOR_EVER
        self.shared = shared
        self._holder = Holder(secrets.token_hex(16), place)
        self._lock = threading.Lock()
        # Each lease, and until when nobody can have taken it: as if the request to renew had taken no time.
        self._held: dict[bytes, tuple[Lease, float]] = {}
        storage.leases.recover(self._holder)

    def lead(self, names: Sequence[bytes]) -> set[bytes]:
        """Takes what is free of ``names``, and drops all others; those that this server leads. Raises StateError."""
        wanted = set(names)
        with self._lock:
            # What is over has no successor: its row expires by itself.
            self._held = {name: held for name, held in self._held.items() if name in wanted}
            missing = [name for name in names if self._current(name) is None]
        began = self._monotonic()
        for lease in self._storage.leases.take(missing, self._holder, seconds=self._seconds):
            with self._lock:
                self._held[lease.name] = lease, began + self._seconds
            if self.shared:
                self._log.event("leads", what=_text(lease.name), token=lease.token)
        with self._lock:
            return {name for name in names if self._current(name) is not None}

    def lease(self, name: bytes) -> Lease | None:
        """The lease under which a step may begin; None where this server does not lead, or may not any more."""
        with self._lock:
            return self._current(name)

    @contextlib.contextmanager
    def leading(self, lease: Lease) -> Iterator[None]:
        """Within it this thread stores as the leader. Raises Deposed where another one leads."""
        try:
            with self._storage.leases.fenced(lease):
                yield
        except Deposed:
            self._lose(lease)
            raise

    def renew(self) -> None:
        """Extends all leases. Raises StateError: then they run out, unless a later call comes in time."""
        if not self.shared:
            return
        with self._lock:
            held = [lease for lease, _ in self._held.values()]
        began = self._monotonic()
        notes = {lease: _note(self.waits_for(lease.name)) for lease in held}
        renewed = self._storage.leases.renew(notes, self._holder, seconds=self._seconds)
        for lease in held:
            if lease not in renewed:
                self._lose(lease)
                continue
            with self._lock:
                if lease.name in self._held and self._held[lease.name][0] == lease:
                    self._held[lease.name] = lease, began + self._seconds

    def said(self, name: bytes) -> Wait | None:
        """What another server that leads a task said last that it waits for. Raises StateError."""
        if not self.shared or self.lease(name) is not None:
            return None
        note = self._storage.leases.note(name)
        return Wait(note.reason, note.until) if note is not None and note.reason else None

    def give_back(self) -> None:
        """Frees all leases: this server ends, and another one may lead at once."""
        with self._lock:
            self._held.clear()
        with contextlib.suppress(StateError):  # then they run out
            self._storage.leases.give_back(self._holder)

    def _current(self, name: bytes) -> Lease | None:
        lease, until = self._held.get(name, (None, 0.0))
        return lease if self._monotonic() < until else None

    def _lose(self, lease: Lease) -> None:
        with self._lock:
            lost = self._held.get(lease.name, (None, 0.0))[0] == lease
            if lost:
                del self._held[lease.name]
        if lost:
            self._log.warning("deposed", what=_text(lease.name), token=lease.token)


def _note(wait: Wait | None) -> Note:
    return Note() if wait is None else Note(wait.reason, wait.until)


def _text(name: bytes) -> str:
    return name.decode() if name == LOG else short(name)
