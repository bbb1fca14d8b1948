"""The server's store as one SQLite file."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path

from odp._system.files.durability import Health
from odp.storage.sqlite import database_errors, open_database
from server.storage.sql import Storage


def open_sqlite(
    path: Path,
    *,
    health: Health | None = None,
    clock: Callable[[], float] = time.time,
    lease_clock: Callable[[], float] | None = None,
) -> Storage:
    """Opens or creates the file ``path``. Raises StateError if it cannot be used."""
    engine = open_database(path, health=health)
    return Storage(engine, errors=functools.partial(database_errors, path), clock=clock, lease_clock=lease_clock)
