"""The stores of an aggregator's host that ``trusted_aggregator/test_storage.py`` holds to what ``Storage`` promises."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Protocol

from odp.transport.state_folder import StateFolder
from trusted_aggregator.host.sqlite_storage import SqliteStorage
from trusted_aggregator.host.storage import Storage


class AggregatorStores(Protocol):
    """One implementation. A place is a state folder; what a store keeps belongs to it, wherever it lies."""

    def open(self, state: StateFolder) -> Storage:
        """Opens the store of a state folder, made on first use."""
        ...

    def copy(self, place: Path, into: Path) -> Path:
        """Makes ``into`` a place whose store holds the same; nobody has the first one open."""
        ...

    def traces(self, place: Path, secret: bytes) -> bool:
        """Whether the bytes are anywhere on the disk of the store."""
        ...


class SqliteStores:
    """Files in the state folder."""

    def open(self, state: StateFolder) -> Storage:
        return SqliteStorage(state)

    def copy(self, place: Path, into: Path) -> Path:
        shutil.copytree(place, into)
        return into

    def traces(self, place: Path, secret: bytes) -> bool:
        return any(secret in path.read_bytes() for path in place.rglob("*") if path.is_file())


#: Every implementation, by name.
AGGREGATOR_STORES: dict[str, type[AggregatorStores]] = {"sqlite": SqliteStores}
