"""Large objects outside of a database: each whole or absent, and never changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol


class Objects(Protocol):
    """Objects by key, of one program. Thread-safe. All methods raise StateError where the store cannot be used."""

    def put(self, key: str, pieces: Iterable[bytes | memoryview]) -> None:
        """Stores an object, durably; replaces one. Where ``pieces`` raises, nothing is stored, and that is raised."""
        ...

    def read(self, key: str, *, start: int = 0, length: int | None = None, size: int = 2**20) -> Iterator[bytes]:
        """Opens an object at once, then gives ``length`` bytes from ``start`` on (default: all) in pieces of ``size``.

        Raises FileNotFoundError (at once) where there is none.
        """
        ...

    def keys(self, prefix: str) -> list[str]:
        """All keys with this beginning, ascending."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Removes objects; those that do not exist are ignored."""
        ...
