"""Answers the reads of a call's process, as far as its handler has the right to them."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

from device_runtime.isolated.limits import CallLimits, Reason
from device_runtime.isolated.replies import Unacceptable
from device_runtime.isolated.stores import ServiceStore
from odp._system.sandbox.frames import frame
from odp.errors import ConfigurationError
from odp.isolated import RIGHTS, DataKind, Handler
from odp.isolated.worker import LARGEST_INPUT

_MOST_ROWS = 100_000
_LONGEST = 512
#: Seconds; SQLite has no larger whole numbers.
_FURTHEST = 2.0**62


class Reader:
    """Reads for one call, and counts the reads."""

    def __init__(self, handler: Handler, store: ServiceStore, limits: CallLimits) -> None:
        self._handler, self._store = handler, store
        self._reads = limits.reads
        self._bytes = limits.read_bytes

    def answer(self, message: Mapping[str, Any]) -> bytes:
        """The frame that answers one read; a value of a table of bytes follows its frame.

        Raises:
          Unacceptable: there is no such table, the handler has no right to it, or it read too much.
        """
        if (table := next((table for table in DataKind if table.value == message["read"]), None)) is None:
            raise Unacceptable(Reason.MALFORMED)
        if table not in RIGHTS[self._handler].reads:
            raise Unacceptable(Reason.FORBIDDEN)
        arguments = {name: value for name, value in message.items() if name != "read"}
        if not _valid(table, arguments):
            answer = frame({"refused": True})
        else:
            content = self._read(table, arguments)
            try:
                answer = _framed(content) if isinstance(content, bytes) else frame({"ok": content}, most=LARGEST_INPUT)
            except ConfigurationError:
                raise Unacceptable(Reason.TOO_MUCH) from None
        self._reads -= 1
        self._bytes -= len(answer)
        if self._reads < 0 or self._bytes < 0:
            raise Unacceptable(Reason.TOO_MUCH)
        return answer

    def _read(self, table: DataKind, arguments: Mapping[str, Any]) -> object:
        store = self._store
        if table is DataKind.EVENTS:
            since = -math.inf if arguments.get("since") is None else arguments["since"]
            events = store.events(type=arguments.get("type"), since=since, most=arguments.get("most", 1000))
            return [[row.id, row.type, row.time, _data(row.data), row.request] for row in events]
        if table is DataKind.REQUESTS:
            requests = store.requests(most=arguments.get("most", 1000))
            return [[row.id, row.app, row.time, row.asked, row.rows] for row in requests]
        if "prefix" in arguments:
            prefix = arguments["prefix"]
            keys = store.local_keys(prefix=prefix) if table is DataKind.LOCAL else store.downloaded_keys(prefix=prefix)
            return list(keys)
        key = arguments["key"]
        return store.get(key) if table is DataKind.LOCAL else store.downloaded(key)


def _framed(value: bytes) -> bytes:
    if len(value) > LARGEST_INPUT:
        raise ConfigurationError(f"Expected a value of at most {LARGEST_INPUT} bytes (got {len(value)})")
    return frame({"bytes": len(value)}) + value


def _valid(table: DataKind, arguments: Mapping[str, Any]) -> bool:
    most, since = arguments.get("most", 1), arguments.get("since")
    if not isinstance(most, int) or isinstance(most, bool) or not 1 <= most <= _MOST_ROWS:
        return False
    if since is not None and (
        isinstance(since, bool) or not isinstance(since, int | float) or not -_FURTHEST <= since <= _FURTHEST
    ):
        return False
    if any(not _is_text(arguments[name]) for name in ("key", "prefix", "type") if arguments.get(name) is not None):
        return False
    names = set(arguments)
    if table is DataKind.EVENTS:
        return names <= {"type", "since", "most"}
    if table is DataKind.REQUESTS:
        return names <= {"most"}
    return (names == {"key"} and arguments["key"] is not None) or (
        names == {"prefix"} and arguments["prefix"] is not None
    )


def _is_text(value: Any) -> bool:
    if not isinstance(value, str) or len(value) > _LONGEST:
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _data(data: Mapping[str, Any] | bytes) -> object:
    return [base64.b64encode(data).decode("ascii")] if isinstance(data, bytes) else data
