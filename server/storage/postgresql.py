"""The server's store in a PostgreSQL database, which several processes and machines can share.

Transactions are READ COMMITTED. Each transition is one ``UPDATE .. WHERE state = expected``: the second writer waits
for the row, reads it again, and changes nothing. So nothing has to be serialized, and no transaction is repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from odp.storage.postgresql import check_server, postgresql_place
from server.storage.sql import Storage

_CONNECTIONS = 8
_LEASE_CONNECTIONS = 2


def open_postgresql(
    url: str, *, clock: Callable[[], float] = time.time, lease_clock: Callable[[], float] | None = None
) -> Storage:
    """Opens the database that ``url`` names, as ``postgresql://user:password@host:5432/name``; its tables are created.

    At most 10 connections are open, two of them for leases. The user owns the database, or may create tables in its
    first schema. Over a network, ``?sslmode=verify-full`` at the end of ``url`` checks the certificate of the database.
    ``lease_clock`` takes the place of the database's own clock.

    Raises:
        ConfigurationError: ``url`` is not of PostgreSQL, or the driver (the extra ``postgres``) is not installed.
        StateError: the database cannot be used, is older than PostgreSQL 14, or keeps commits in memory only.
    """
    place = postgresql_place(url, program="odp-server")
    engine, lease_engine = place.engine(_CONNECTIONS), place.engine(_LEASE_CONNECTIONS)
    try:
        with place.errors():
            check_server(engine, place.name)
        return Storage(engine, errors=place.errors, clock=clock, lease_clock=lease_clock, lease_engine=lease_engine)
    except BaseException:
        engine.dispose()
        lease_engine.dispose()
        raise
