"""Checks of messages from a call's process: they may hold anything, and ``Unacceptable`` refuses what no contract
allows.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from device_runtime.isolated.limits import Reason
from odp.isolated import RIGHTS, DataKind, Handler, NewEvent

_DEEPEST = 16
_MOST_VALUES = 2**18
_MOST_ROWS = 10_000
_LONGEST_KEY = 512
_LONGEST_REASON = 200
_LARGEST_INTEGER = 2**63
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")


class Unacceptable(Exception):
    """The message is not allowed; ``reason`` is MALFORMED or FORBIDDEN."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True)
class Writes:
    """The changes that a handler asks to store."""

    events: tuple[NewEvent, ...] = field(default=(), repr=False)
    rows: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    local: Mapping[str, bytes | None] = field(default_factory=dict, repr=False)
    downloads: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Reply:
    """A handler's answer: ``value`` by the names of its contract, and the changes to store."""

    value: Mapping[str, Any] = field(repr=False)
    writes: Writes = field(repr=False)


def reply_of(handler: Handler, message: Any) -> Reply:
    """The answer in ``message``, which is JSON of some kind.

    Raises:
      Unacceptable: it is none, or it writes a table that the handler has no right to.
    """
    done = _object(message, "value", "writes")
    written = _object(done["writes"])
    allowed = {table.value for table in RIGHTS[handler].writes}
    if not allowed.issuperset(written):
        raise Unacceptable(Reason.FORBIDDEN)
    _check_json(done["value"])
    _check_json(written)
    return Reply(_VALUES[handler](_object(done["value"])), _writes(written))


def _writes(written: Mapping[str, Any]) -> Writes:
    events, rows, downloads = (
        _list(written.get(table.value, [])) for table in (DataKind.EVENTS, DataKind.REQUESTS, DataKind.DOWNLOADS)
    )
    return Writes(
        events=tuple(map(_event, events)),
        rows=tuple(map(_object, rows)),
        local=_local(_object(written.get(DataKind.LOCAL.value, {}))),
        downloads=tuple(_text(key, _LONGEST_KEY) for key in downloads),
    )


def _event(row: Any) -> NewEvent:
    event = _object(row, "type", "data")
    columns = _object(event["data"])
    if not all(_NAME.fullmatch(name) for name in (_text(event["type"], 64), *columns)):
        raise Unacceptable(Reason.MALFORMED)
    return NewEvent(event["type"], columns)


def _local(changes: Mapping[str, Any]) -> Mapping[str, bytes | None]:
    decoded: dict[str, bytes | None] = {}
    for key, value in changes.items():
        try:
            decoded[_text(key, _LONGEST_KEY)] = None if value is None else base64.b64decode(value, validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise Unacceptable(Reason.MALFORMED) from None
    return decoded


def _requested(value: Mapping[str, Any]) -> Mapping[str, Any]:
    if "declined" in value:
        reason = _text(_object(value, "declined")["declined"], _LONGEST_REASON)
        if not reason.isprintable():
            raise Unacceptable(Reason.MALFORMED)
        return value
    _object(_object(value, "accepted")["accepted"])
    return value


def _executed(value: Mapping[str, Any]) -> Mapping[str, Any]:
    _object(_object(value, "result")["result"])
    return value


def _rendered(value: Mapping[str, Any]) -> Mapping[str, Any]:
    _text(_object(value, "html")["html"], _LARGEST_INTEGER)
    return value


def _nothing(value: Mapping[str, Any]) -> Mapping[str, Any]:
    if value:
        raise Unacceptable(Reason.FORBIDDEN)
    return value


def _examples(value: Mapping[str, Any]) -> Mapping[str, Any]:
    for columns in _list(_object(value, "examples")["examples"]):
        if not all(_NAME.fullmatch(name) for name in _object(columns)):
            raise Unacceptable(Reason.MALFORMED)
    return value


_VALUES = {
    Handler.ON_REQUEST: _requested,
    Handler.ON_EXECUTE: _executed,
    Handler.ON_RENDER: _rendered,
    Handler.ON_EVENT: _nothing,
    Handler.ON_DOWNLOAD: _nothing,
    Handler.ON_TRAINING_EXAMPLES: _examples,
}


def _object(value: Any, *keys: str) -> Mapping[str, Any]:
    """A JSON object; with exactly ``keys`` where some are named."""
    if not isinstance(value, dict) or (keys and set(value) != set(keys)):
        raise Unacceptable(Reason.MALFORMED)
    return value


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list) or len(value) > _MOST_ROWS:
        raise Unacceptable(Reason.MALFORMED)
    return value


def _text(value: Any, longest: int) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= longest:
        raise Unacceptable(Reason.MALFORMED)
    return value


def _check_json(value: Any) -> None:
    """Checks depth, number of values, finite numbers of 64 bits, and text that UTF-8 can encode."""
    waiting = [(value, 0)]
    count = 0
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if depth > _DEEPEST or count > _MOST_VALUES:
            raise Unacceptable(Reason.MALFORMED)
        if isinstance(node, dict):
            waiting += [(key, depth + 1) for key in node]
            waiting += [(inner, depth + 1) for inner in node.values()]
        elif isinstance(node, list):
            waiting += [(inner, depth + 1) for inner in node]
        elif isinstance(node, str):
            try:
                node.encode("utf-8")
            except UnicodeEncodeError:
                raise Unacceptable(Reason.MALFORMED) from None
        elif (isinstance(node, float) and not math.isfinite(node)) or (
            isinstance(node, int) and not -_LARGEST_INTEGER <= node < _LARGEST_INTEGER
        ):
            raise Unacceptable(Reason.MALFORMED)
