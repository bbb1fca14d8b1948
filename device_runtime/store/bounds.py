"""Sizes that keep apps from filling the disk, and from blocking a write to the ledger."""

from __future__ import annotations

from dataclasses import dataclass

from device_runtime.store.database import Database
from odp import _validate
from odp.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Sizes, in bytes, and numbers of rows, per service but for ``file_bytes``, which is of the whole store.

    Beyond ``file_bytes`` no row of these tables is added; the ledger and the person's decisions always are.
    """

    event_bytes: int = 16 * 2**10
    events: int = 100_000
    example_bytes: int = 4 * 2**20
    examples: int = 100_000
    request_bytes: int = 64 * 2**10
    requests: int = 10_000
    value_bytes: int = 2**20
    local_bytes: int = 8 * 2**20
    keys: int = 10_000
    downloads_bytes: int = 16 * 2**20
    file_bytes: int = 64 * 2**20

    def __post_init__(self) -> None:
        _validate.integer(low=1, high=2**31, **vars(self))


def require_space(database: Database, size: int, bounds: Bounds, *, whose: str) -> None:
    """Returns if ``size`` further bytes fit into the file. Raises DataError."""
    used, most = database.used_bytes(), bounds.file_bytes
    if used + size > most:
        raise DataError(
            f"device store {database.path} has {used} bytes of at most file_bytes={most}: nothing of {whose} was "
            "added; delete some of its data, or wait until rows expire"
        )
