"""Leases: which of the servers on one database leads a task, with a token that fences off the ones before.

A lease is a row: who holds it, until when by the clock of the database, and a token that grows each time that somebody
takes it. Taking is a compare-and-set: of two servers one gets it, and only where the lease before has expired. The
clocks of the servers do not matter. If that of the database was set back, a lease that seems to last longer than any
does is free: whoever holds it is deposed by the token, or has renewed it.

A holder can be wrong about itself: it was paused, and another one leads. So time decides only who may take a lease.
What decides about a change is the token, in the transaction of the change: ``Leases.fenced``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from odp.errors import OdpError
from server.storage.schema import LEASES

#: Seconds of a lease of a server alone on its database; as long as a clock of any kind goes.
FOR_EVER = 1e12


class Deposed(OdpError):
    """Another server leads: what was to be stored under an older lease was not, and must not be tried again."""


@dataclass(frozen=True)
class Holder:
    """A server that takes leases.

    Attributes:
      name: of this process, and of no other, 1 to 64 letters.
      place: of its state folder, which one process at a time has; 1 to 64 letters.
    """

    name: str
    place: str


@dataclass(frozen=True)
class Lease:
    """A lease that was taken; ``token`` is larger than that of every lease of this name before."""

    name: bytes
    token: int


@dataclass(frozen=True)
class Note:
    """What the leader says about its task: what it waits for, until when (seconds since the epoch, or None)."""

    reason: str = ""
    until: float | None = None


class Leases:
    """The store of leases. Thread-safe; durable when a method returns. Raises StateError as ``Storage``.

    Args:
        engine: of the database.
        insert: SQLAlchemy's ``insert`` with ``ON CONFLICT``.
        errors: as of ``server.storage.sql.Storage``.
        now: an expression, or a number, for the present time.
    """

    def __init__(
        self,
        engine: sa.Engine,
        *,
        insert: Callable[[sa.Table], Any],
        errors: Callable[[], AbstractContextManager[None]],
        now: Callable[[], Any],
    ) -> None:
        self._engine, self._insert, self._errors, self._now = engine, insert, errors, now
        self._fences = threading.local()

    def take(self, names: Sequence[bytes], holder: Holder, *, seconds: float) -> list[Lease]:
        """Takes those of the leases that are free: never taken, given back, or expired."""
        if not names:
            return []
        with self._errors(), self._engine.connect() as connection:
            query = sa.select(LEASES.c.name).where(LEASES.c.name.in_(names), sa.not_(_is_free(self._now(), seconds)))
            held = {bytes(row.name) for row in connection.execute(query)}
        # One transaction each: a lease whose row another server has locked does not delay the others for long.
        taken = [self._take(name, holder, seconds) for name in names if name not in held]
        return [lease for lease in taken if lease is not None]

    def _take(self, name: bytes, holder: Holder, seconds: float) -> Lease | None:
        now = self._now()
        of = {"holder": holder.name, "place": holder.place, "expires": now + seconds, "wait_reason": ""}
        first = self._insert(LEASES).values(name=name, token=1, wait_until=None, **of).on_conflict_do_nothing()
        later = (
            sa.update(LEASES)
            .where(LEASES.c.name == name, _is_free(now, seconds))
            .values(token=LEASES.c.token + 1, wait_until=None, **of)
            .returning(LEASES.c.token)
        )
        with self._errors(), self._engine.begin() as connection:
            if (row := connection.execute(later).first()) is not None:
                return Lease(name, int(row.token))
            inserted = connection.execute(first.execution_options(preserve_rowcount=True)).rowcount == 1
        return Lease(name, 1) if inserted else None

    def renew(self, leases: Mapping[Lease, Note], holder: Holder, *, seconds: float) -> set[Lease]:
        """Extends leases, from now on, and stores their notes; those that nobody has taken meanwhile.

        A lease that expired is extended as well where nobody took it.
        """
        if not leases:
            return set()
        renewed = set()
        with self._errors(), self._engine.begin() as connection:
            # Always in the same order: two transactions never wait for each other's rows.
            for lease, note in sorted(leases.items(), key=lambda entry: entry[0].name):
                held = (LEASES.c.name == lease.name, LEASES.c.token == lease.token, LEASES.c.holder == holder.name)
                values = {"expires": self._now() + seconds, "wait_reason": note.reason, "wait_until": note.until}
                if connection.execute(sa.update(LEASES).where(*held).values(**values)).rowcount == 1:
                    renewed.add(lease)
        return renewed

    def give_back(self, holder: Holder) -> None:
        """Frees all leases of a process, which ends."""
        with self._errors(), self._engine.begin() as connection:
            connection.execute(sa.update(LEASES).where(LEASES.c.holder == holder.name).values(expires=0.0))

    def recover(self, holder: Holder) -> None:
        """Frees the leases of earlier processes at the place of ``holder``, which are dead: it has their place."""
        before = (LEASES.c.place == holder.place, LEASES.c.holder != holder.name, LEASES.c.expires > 0.0)
        with self._errors(), self._engine.begin() as connection:
            connection.execute(sa.update(LEASES).where(*before).values(expires=0.0))

    def note(self, name: bytes) -> Note | None:
        """The newest note of a lease; None where nobody has it now."""
        query = sa.select(LEASES.c.wait_reason, LEASES.c.wait_until)
        query = query.where(LEASES.c.name == name, LEASES.c.expires > self._now())
        with self._errors(), self._engine.connect() as connection:
            row = connection.execute(query).first()
        return None if row is None else Note(row.wait_reason, row.wait_until)

    @contextlib.contextmanager
    def fenced(self, lease: Lease) -> Iterator[None]:
        """Within it every transaction of this thread is stored only if no later lease of this name was taken before.

        What was to be stored otherwise raises Deposed, and has no effect.
        """
        before: Collection[Lease] = getattr(self._fences, "leases", ())
        self._fences.leases = (*before, lease)
        try:
            yield
        finally:
            self._fences.leases = before

    def check(self, connection: sa.Connection) -> None:
        """Ends a transaction whose thread is fenced by a lease that is not the newest. Raises Deposed.

        The row is locked until the commit, which comes next: nobody takes the lease in between.
        """
        for lease in getattr(self._fences, "leases", ()):
            query = sa.select(LEASES.c.token).where(LEASES.c.name == lease.name).with_for_update(read=True)
            row = connection.execute(query).first()
            if row is None or row.token != lease.token:
                raise Deposed("another server leads this task")


def _is_free(now: Any, seconds: float) -> sa.ColumnElement[bool]:
    # Twice, since clocks are corrected by a little all the time.
    stale = sa.and_(LEASES.c.expires > now + 2 * seconds, LEASES.c.expires < now + FOR_EVER / 2)
    return sa.or_(LEASES.c.expires <= now, stale)
