"""The service's view of a device's store; and a store in memory for tests and for development.

Every method is of one service's own data. Those that write raise DataError where something is too large.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from odp.errors import DataError
from odp.isolated import Columns, Event, PastRequest


class ServiceStore(Protocol):
    """One service's data in an open store."""

    def events(self, *, type: str | None = None, since: float = -math.inf, most: int = 1000) -> Sequence[Event]:
        """The newest ``most`` events, oldest first."""

    def requests(self, *, most: int = 1000) -> Sequence[PastRequest]:
        """The newest ``most`` requests, oldest first."""

    def get(self, key: str) -> bytes | None:
        """One value of the local data."""

    def local_keys(self, *, prefix: str = "") -> Sequence[str]:
        """Keys of the local data, ascending."""

    def downloaded(self, key: str) -> bytes | None:
        """One value of the downloads."""

    def downloaded_keys(self, *, prefix: str = "") -> Sequence[str]:
        """Keys of the downloads, ascending."""

    def add_request(self, app: str, query: Mapping[str, Any], *, time: float) -> int:
        """Stores an app's request; returns its number."""

    def answer(self, request: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Stores the rows of a request, once."""

    def add_event(self, type: str, data: Mapping[str, Any] | bytes, *, time: float, request: int | None = None) -> int:
        """Stores an event; returns its number."""

    def change(self, changes: Mapping[str, bytes | None], *, time: float) -> None:
        """Sets local data; None deletes."""

    def download(self, version: str, entries: Mapping[str, bytes], *, time: float) -> bool:
        """Replaces the downloads; False if that version is stored already."""

    def transaction(self) -> AbstractContextManager[object]:
        """Commits all writes within at its end; if it raises, none of them."""

    def end_when(self, over: Callable[[], bool]) -> None:
        """Ends reads and writes, also one under way, once ``over`` is true; they raise TimeoutError then."""


class MemoryStore:
    """A ``ServiceStore`` in memory; its data end with its process."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._requests: list[PastRequest] = []
        self._local: dict[str, bytes] = {}
        self._downloads: dict[str, bytes] = {}
        self._version: str | None = None

    def events(self, *, type: str | None = None, since: float = -math.inf, most: int = 1000) -> Sequence[Event]:
        wanted = [event for event in self._events if event.time >= since and type in (None, event.type)]
        return sorted(wanted, key=lambda event: (event.time, event.id))[-most:]

    def requests(self, *, most: int = 1000) -> Sequence[PastRequest]:
        return self._requests[-most:]

    def get(self, key: str) -> bytes | None:
        return self._local.get(key)

    def local_keys(self, *, prefix: str = "") -> Sequence[str]:
        return sorted(key for key in self._local if key.startswith(prefix))

    def downloaded(self, key: str) -> bytes | None:
        return self._downloads.get(key)

    def downloaded_keys(self, *, prefix: str = "") -> Sequence[str]:
        return sorted(key for key in self._downloads if key.startswith(prefix))

    def add_request(self, app: str, query: Columns, *, time: float) -> int:
        self._requests.append(PastRequest(len(self._requests) + 1, app, time, query, None))
        return len(self._requests)

    def answer(self, request: int, rows: Sequence[Columns]) -> None:
        if not 1 <= request <= len(self._requests) or self._requests[request - 1].rows is not None:
            raise DataError(f"Expected request={request} to wait for its answer")
        past = self._requests[request - 1]
        self._requests[request - 1] = PastRequest(request, past.app, past.time, past.asked, rows)

    def add_event(self, type: str, data: Columns | bytes, *, time: float, request: int | None = None) -> int:
        if request is not None and not 1 <= request <= len(self._requests):
            raise DataError(f"Expected request={request} of the event to be one of the service")
        self._events.append(Event(len(self._events) + 1, type, time, data, request))
        return len(self._events)

    def change(self, changes: Mapping[str, bytes | None], *, time: float) -> None:
        for key, value in changes.items():
            if value is None:
                self._local.pop(key, None)
            else:
                self._local[key] = value

    def download(self, version: str, entries: Mapping[str, bytes], *, time: float) -> bool:
        if version == self._version:
            return False
        self._version, self._downloads = version, dict(entries)
        return True

    def end_when(self, over: Callable[[], bool]) -> None:
        """Nobody waits for this store."""

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        before = copy.deepcopy(vars(self))
        try:
            yield
        except BaseException:
            vars(self).update(before)
            raise
