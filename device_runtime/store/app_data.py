"""What a developer's on-device code keeps in a store, in a namespace of its own: a *service*, by name.

==============  =================================================  ==========================
table           what it holds                                      how it changes
==============  =================================================  ==========================
``events``      what the app saw happen, in the order of entry     rows are added, never changed
``examples``    tensors with labels (``labelled_examples.py``)     rows are added, never changed
``requests``    what an app asked, and the log rows of the answer  a request is answered once
``local``       the developer's own key-value data                 set and deleted by key
``downloads``   key-value data that were downloaded                replaced as a whole
==============  =================================================  ==========================

Nothing here ever leaves the device but through a signed task that names it. Every row, every namespace and the file
have a maximum size (``Bounds``), so that no app can fill the disk or block a write to the ledger.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

from device_runtime.store.database import Bounds, Database, require_space
from device_runtime.store.labelled_examples import LabelledExamples
from odp import _validate
from odp.errors import DataError
from odp.isolated import Event, PastRequest

#: Rows that one call reads at most.
MOST_READ = 100_000

_LONGEST_KEY = 512
_MOST_COLUMNS = 64


class AppData:
    """The data of one service in an open store. Every change is one transaction, durable when it returns."""

    def __init__(self, database: Database, service: str, bounds: Bounds) -> None:
        _validate.identifier(service=service)
        self._database, self._service, self._bounds = database, service, bounds

    def transaction(self) -> AbstractContextManager[None]:
        """Commits all writes within together, or none of them."""
        return self._database.transaction()

    def end_when(self, over: Callable[[], bool]) -> None:
        """As ``Database.end_when``."""
        self._database.end_when(over)

    def add_event(self, type: str, data: Mapping[str, Any] | bytes, *, time: float, request: int | None = None) -> int:
        """Adds an event; returns its id.

        Args:
          type: a name of [a-z0-9_.-]; a task's data specification asks for events by it.
          data: columns by name, values as JSON has them; or bytes, which no specification reads.
          time: when it happened, seconds since the epoch.
          request: the id of the request that it belongs to.

        Raises:
          ConfigurationError: the type or a column's name is no name.
          DataError: the event, the namespace or the file would be too large; nothing was added.
          StateError: the store cannot be written.
        """
        _validate.identifier(type=type)
        _validate.finite(time=time)
        content = self._event(data)
        with self._database.transaction():
            self._require_space(len(content))
            self._rows_at_most("events", self._bounds.events)
            if request is not None and not self._has_request(request):
                raise DataError(f"Expected request={request} of the event to be one of service {self._service!r}")
            self._database.execute(
                "INSERT INTO events (service, type, time, request, data) VALUES (?, ?, ?, ?, ?)",
                (self._service, type, time, request, content),
            )
            return self._last_id()

    def events(self, *, type: str | None = None, since: float = -math.inf, most: int = 1000) -> list[Event]:
        """The newest ``most`` events, oldest first: of one type or of all, with times from ``since`` on."""
        _validate.integer(low=1, high=MOST_READ, most=most)
        rows = self._database.all(
            "SELECT id, type, time, data, request FROM events WHERE service = ?1 AND (?2 IS NULL OR type = ?2) "
            "AND time >= ?3 ORDER BY time DESC, id DESC LIMIT ?4",
            (self._service, type, since, most),
        )
        return [Event(id, kind, time, _loaded(data), request) for id, kind, time, data, request in reversed(rows)]

    def replace_events(self, type: str, rows: Sequence[Mapping[str, Any]], *, time: float) -> None:
        """Replaces all events of a type with ``rows``. Raises as ``add_event``, and then changes nothing."""
        _validate.identifier(type=type)
        _validate.finite(time=time)
        contents = [self._event(row) for row in rows]
        with self._database.transaction():
            self._database.execute("DELETE FROM events WHERE service = ? AND type = ?", (self._service, type))
            self._require_space(sum(map(len, contents)))
            self._rows_at_most("events", self._bounds.events, adding=len(contents))
            self._database.execute_many(
                "INSERT INTO events (service, type, time, data) VALUES (?, ?, ?, ?)",
                [(self._service, type, time, content) for content in contents],
            )

    @property
    def examples(self) -> LabelledExamples:
        """Its labelled examples: tasks name them as the table ``examples.SERVICE``."""
        return LabelledExamples(self._database, self._service, self._bounds)

    def add_request(self, app: str, query: Mapping[str, Any], *, time: float) -> int:
        """Stores an app's request; returns its id. Raises as ``add_event``."""
        _validate.identifier(app=app)
        _validate.finite(time=time)
        content = _json(query, what="request")
        self._at_most(content, self._bounds.request_bytes, "request", "request_bytes")
        with self._database.transaction():
            self._require_space(len(content))
            self._rows_at_most("requests", self._bounds.requests)
            self._database.execute(
                "INSERT INTO requests (service, app, time, asked) VALUES (?, ?, ?, ?)",
                (self._service, app, time, content),
            )
            return self._last_id()

    def answer(self, request: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Stores the log rows of a request's answer, once. Raises DataError if it has an answer or is unknown."""
        content = _json(list(rows), what="rows")
        self._at_most(content, self._bounds.request_bytes, "rows", "request_bytes")
        with self._database.transaction():
            self._require_space(len(content))
            changed = self._database.execute(
                "UPDATE requests SET rows = ? WHERE id = ? AND service = ? AND rows IS NULL",
                (content, request, self._service),
            )
            if not changed:
                raise DataError(f"Expected request={request} of service {self._service!r} to wait for its answer")

    def requests(self, *, most: int = 1000) -> list[PastRequest]:
        """The newest ``most`` requests, oldest first."""
        _validate.integer(low=1, high=MOST_READ, most=most)
        rows = self._database.all(
            "SELECT id, app, time, asked, rows FROM requests WHERE service = ? ORDER BY id DESC LIMIT ?",
            (self._service, most),
        )
        return [
            PastRequest(id, app, time, json.loads(query), None if logged is None else json.loads(logged))
            for id, app, time, query, logged in reversed(rows)
        ]

    def set(self, key: str, value: bytes, *, time: float) -> None:
        """Sets one value of the developer's own local data. Raises DataError if it is too large."""
        self.change({key: value}, time=time)

    def change(self, changes: Mapping[str, bytes | None], *, time: float) -> None:
        """Sets several values of the local data, or deletes those that are None: all of them, or none.

        Raises:
          DataError: a key, a value, the namespace or the file would be too large; nothing was changed.
        """
        _validate.finite(time=time)
        for key, value in changes.items():
            _checked_key(key)
            if value is not None:
                self._at_most(value, self._bounds.value_bytes, f"value of {key!r}", "value_bytes")
        with self._database.transaction():
            self._require_space(sum(len(value) for value in changes.values() if value is not None))
            for key, value in changes.items():
                if value is None:
                    self._database.execute("DELETE FROM local_data WHERE service = ? AND key = ?", (self._service, key))
                else:
                    self._database.execute(
                        "INSERT OR REPLACE INTO local_data (service, key, value, time) VALUES (?, ?, ?, ?)",
                        (self._service, key, value, time),
                    )
            count, size = self._database.first(
                "SELECT count(*), coalesce(sum(length(value)), 0) FROM local_data WHERE service = ?", (self._service,)
            ) or (0, 0)
            self._whole(count, size, self._bounds.local_bytes, "local data", "local_bytes")

    def get(self, key: str) -> bytes | None:
        """One value of the local data, or None."""
        return cast(
            "bytes | None",
            self._database.value("SELECT value FROM local_data WHERE service = ? AND key = ?", (self._service, key)),
        )

    def local_keys(self, *, prefix: str = "") -> list[str]:
        """The keys of the local data that begin with ``prefix``, ascending."""
        return self._keys("local_data", prefix)

    def download(self, version: str, entries: Mapping[str, bytes], *, time: float) -> bool:
        """Replaces all downloaded data with another version in one transaction; False if that version is stored
        already.

        A version is immutable: the same one with other content is refused.

        Raises:
          ConfigurationError: the version is no name.
          DataError: it holds other data than before under the same name, or is too large; nothing was changed.
        """
        _validate.identifier(version=version)
        _validate.finite(time=time)
        for key, value in entries.items():
            _checked_key(key)
            self._at_most(value, self._bounds.value_bytes, f"value of {key!r}", "value_bytes")
        size = sum(map(len, entries.values()))
        self._whole(len(entries), size, self._bounds.downloads_bytes, "downloads", "downloads_bytes")
        digest = hashlib.sha256()
        for key, value in sorted(entries.items()):
            for part in (key.encode(), value):
                digest.update(len(part).to_bytes(8, "little") + part)
        with self._database.transaction():
            stored = self._database.first(
                "SELECT version, sha256 FROM download_versions WHERE service = ?", (self._service,)
            )
            if stored is not None and stored[0] == version:
                if stored[1] != digest.digest():
                    raise DataError(
                        f"Expected version={version!r} to have the same content as before: a version is immutable"
                    )
                return False
            self._database.execute("DELETE FROM downloads WHERE service = ?", (self._service,))
            self._require_space(size)
            for key, value in entries.items():
                self._database.execute(
                    "INSERT INTO downloads (service, key, value) VALUES (?, ?, ?)", (self._service, key, value)
                )
            self._database.execute(
                "INSERT OR REPLACE INTO download_versions (service, version, sha256, time) VALUES (?, ?, ?, ?)",
                (self._service, version, digest.digest(), time),
            )
        return True

    def downloaded(self, key: str) -> bytes | None:
        """One value of the downloaded data, or None."""
        return cast(
            "bytes | None",
            self._database.value("SELECT value FROM downloads WHERE service = ? AND key = ?", (self._service, key)),
        )

    def downloaded_keys(self, *, prefix: str = "") -> list[str]:
        """The keys of the downloaded data that begin with ``prefix``, ascending."""
        return self._keys("downloads", prefix)

    def count(self, table: str) -> int:
        """Rows of the service in ``events``, ``examples``, ``requests``, ``local_data`` or ``downloads``."""
        _validate.one_of(("events", "examples", "requests", "local_data", "downloads"), table=table)
        return int(self._database.value(f"SELECT count(*) FROM {table} WHERE service = ?", (self._service,)) or 0)

    def _keys(self, table: str, prefix: str) -> list[str]:
        rows = self._database.all(
            f"SELECT key FROM {table} WHERE service = ? AND substr(key, 1, ?) = ? ORDER BY key",
            (self._service, len(prefix), prefix),
        )
        return [key for (key,) in rows]

    def _has_request(self, request: int) -> bool:
        statement = "SELECT 1 FROM requests WHERE id = ? AND service = ?"
        return self._database.first(statement, (request, self._service)) is not None

    def _last_id(self) -> int:
        return int(self._database.value("SELECT last_insert_rowid()") or 0)

    def _require_space(self, size: int) -> None:
        require_space(self._database, size, self._bounds, whose=f"service {self._service!r}")

    def _event(self, data: Mapping[str, Any] | bytes) -> bytes | str:
        """The stored form of an event. Raises ConfigurationError, DataError as ``add_event``."""
        content: bytes | str
        if isinstance(data, bytes):
            content = data
        else:
            _columns(data)
            content = _json(data, what="event")
        self._at_most(content, self._bounds.event_bytes, "event", "event_bytes")
        return content

    def _rows_at_most(self, table: str, most: int, *, adding: int = 1) -> None:
        if self.count(table) + adding > most:
            raise DataError(
                f"Expected at most {table}={most} of service {self._service!r}; nothing was added; a "
                "shorter retention deletes rows earlier"
            )

    def _whole(self, count: int, size: int, most: int, what: str, bound: str) -> None:
        if count > self._bounds.keys:
            raise DataError(f"Expected at most keys={self._bounds.keys} in the {what} of service {self._service!r}")
        if size > most:
            raise DataError(
                f"Expected the {what} of service {self._service!r} to be at most {bound}={most} bytes (got {size})"
            )

    def _at_most(self, content: bytes | str, most: int, what: str, bound: str) -> None:
        if not isinstance(content, (bytes, str)):
            raise DataError(f"Expected the {what} of service {self._service!r} to be bytes")
        if (size := len(content if isinstance(content, bytes) else content.encode())) > most:
            raise DataError(
                f"Expected the {what} of service {self._service!r} to be at most {bound}={most} bytes (got {size})"
            )


def services(database: Database) -> list[str]:
    """The services with data in a store, ascending."""
    tables = ("events", "examples", "requests", "local_data", "download_versions")
    rows = database.all(" UNION ".join(f"SELECT service FROM {table} WHERE service <> ''" for table in tables))
    return sorted(service for (service,) in rows)


def _columns(data: Mapping[str, Any]) -> None:
    if not isinstance(data, Mapping):
        raise DataError(f"Expected the event's data to be a mapping or bytes, got a {type(data).__name__}")
    if len(data) > _MOST_COLUMNS:
        raise DataError(f"Expected the event to have at most {_MOST_COLUMNS} columns (got {len(data)})")
    for column in data:
        _validate.identifier(column=column)


def _json(value: object, *, what: str) -> str:
    try:
        content = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        # What a JSON library says quotes the value, which is private.
        raise DataError(f"Expected the {what} to be JSON values: text, finite numbers, lists, objects") from None
    if "\\ud" in content:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            # SQLite would give text that is no UTF-8, and a task could read no event at all.
            raise DataError(f"Expected the {what} to be text without lone surrogates") from None
    return content


def _loaded(data: str | bytes) -> Mapping[str, Any] | bytes:
    if isinstance(data, bytes):
        return data
    return cast("Mapping[str, Any]", json.loads(data))


def _checked_key(key: str) -> None:
    if not isinstance(key, str) or not 1 <= len(key.encode()) <= _LONGEST_KEY:
        raise DataError(f"Expected a key to be text of 1 to {_LONGEST_KEY} bytes")
