"""Structured logs: one line per event, ``time level program event key=value ..``; never an array, never private data.

Values are numbers, short strings and short identifiers. Bytes are refused (an identifier is logged as hex by the
caller, shortened with ``short``), so that no key, payload or row can slip into a log by accident.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

from odp.refusing import places
from odp.transport import observing

#: Of the environment: text or json.
FORMAT_VARIABLE = "ODP_LOG_FORMAT"

Value = str | int | float | bool | None
_LONGEST = 200


class Log:
    """Writes events of one program to a text stream; thread-safe.

    ``as_json``: one JSON object per line; None is what ODP_LOG_FORMAT of the environment says, text or json.
    """

    def __init__(
        self,
        program: str,
        *,
        stream: TextIO | None = None,
        as_json: bool | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._program = program
        self._stream = stream if stream is not None else sys.stderr
        self._json = os.environ.get(FORMAT_VARIABLE) == "json" if as_json is None else as_json
        self._clock = clock
        self._lock = threading.Lock()

    def event(self, event: str, **fields: Value) -> None:
        """One line at level ``info``."""
        self._write("info", event, fields)

    def warning(self, event: str, **fields: Value) -> None:
        """One line at level ``warning``: the program goes on."""
        self._write("warning", event, fields)

    def error(self, event: str, **fields: Value) -> None:
        """One line at level ``error``: an operation failed."""
        self._write("error", event, fields)

    def crash(self, event: str, error: BaseException) -> None:
        """An unforeseen error: its place in the code, without the message, which could contain data."""
        self._write("error", event, {"kind": type(error).__name__, "where": places(error)})

    def _write(self, level: str, event: str, fields: dict[str, Value]) -> None:
        observing.logged(level, event, fields)
        moment = self._clock()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment)) + f".{int(moment % 1 * 1000):03d}Z"
        checked = {name: _checked(name, value) for name, value in fields.items()}
        if self._json:
            head = {"time": stamp, "level": level, "program": self._program, "event": event}
            line = json.dumps(head | {f"{name}_" if name in head else name: value for name, value in checked.items()})
        else:
            tail = "".join(f" {name}={_text(value)}" for name, value in checked.items())
            line = f"{stamp} {level} {self._program} {event}{tail}"
        # A full disk or a closed pipe under the log must not stop the program that logs.
        with self._lock, contextlib.suppress(OSError):
            self._stream.write(line + "\n")
            self._stream.flush()


def short(identifier: bytes) -> str:
    """The first 12 hex digits of a hash: enough to find it, too few to reconstruct it."""
    return identifier[:6].hex()


def _checked(name: str, value: Value) -> Value:
    if value is not None and not isinstance(value, (str, int, float, bool)):
        raise TypeError(f"log field {name} is a {type(value).__name__}; only numbers and short strings are logged")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no word for it
    return value[:_LONGEST] if isinstance(value, str) else value


def _text(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return (
        json.dumps(text)
        if isinstance(value, str) and (not text or any(c.isspace() or c in '"=' or not c.isprintable() for c in text))
        else text
    )
