"""JSON over a local socket to an untrusted process: bounded frames, with deadlines.

A frame is four bytes of length, big-endian, then a JSON object of that length. Long bytes from the trusted side may
follow a frame that says how many there are: as text of JSON they would cost more than what is done with them.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

from odp.errors import ConfigurationError

LARGEST_FRAME = 2**21

_LENGTH_BYTES = 4
_READ_BYTES = 2**18
# What a hostile message may hold: 100 MiB of empty lists take 3 GB and 10 s in which no other thread runs.
_SHORT_BYTES, _MOST_MARKS = 4 * 2**20, 2**20
_MARKS = b",", b":", b"[", b"{", b"\\"

#: Seconds that are left; raises TimeoutError where none are.
Remaining = Callable[[], float]


def frame(message: object, *, most: int = LARGEST_FRAME) -> bytes:
    """The bytes of one JSON value. Raises ConfigurationError if it is larger than ``most``."""
    data = json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii")
    if len(data) > most:
        raise ConfigurationError(f"Expected a message of at most {most} bytes, got {len(data)}")
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


def send_frame(
    connection: socket.socket, message: object, *, most: int = LARGEST_FRAME, remaining: Remaining | None = None
) -> None:
    """Sends one JSON value.

    Raises:
        OSError: the other side is gone, or does not read within the socket's timeout or what remains.
        ConfigurationError: it is larger than a frame.
    """
    data = frame(message, most=most)
    if remaining is not None:
        connection.settimeout(remaining())
    connection.sendall(data)


def receive_frame(
    connection: socket.socket, *, most: int = LARGEST_FRAME, remaining: Remaining | None = None, hostile: bool = False
) -> dict[str, Any] | None:
    """The next frame's JSON object, or None if the other side closed the connection between frames.

    However its bytes drip in, it takes no longer than what remains; no more is held than came. Of a ``hostile`` sender,
    a frame of more than 4 MiB may hold long texts, and not many values: it is refused before they are made.

    Raises:
        OSError: the connection broke within a frame, or the time passed.
        ConfigurationError: the frame is too long, of too many values, or not a JSON object of finite numbers.
    """
    if not (head := _read(connection, _LENGTH_BYTES, remaining)):
        return None
    if (length := int.from_bytes(head, "big")) > most:
        raise ConfigurationError(f"Expected a message of at most {most} bytes, got {length}")
    data = _read(connection, length, remaining)
    if hostile and len(data) > _SHORT_BYTES and sum(map(data.count, _MARKS)) > _MOST_MARKS:
        raise ConfigurationError(f"Expected a message of {len(data)} bytes to hold at most {_MOST_MARKS} values")
    try:
        message = json.loads(data, parse_constant=_no_number)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise ConfigurationError("Expected a message to be a JSON object")
    return message


def receive_bytes(connection: socket.socket, length: int) -> bytearray:
    """The bytes that follow a frame of a trusted sender: all ``length`` of them are held from the start.

    Raises:
        OSError: the connection broke, or the socket's timeout passed.
    """
    data = bytearray(length)
    view, read = memoryview(data), 0
    while read < length:
        if not (part := connection.recv_into(view[read:])):
            raise ConnectionError("the connection ended within a frame")
        read += part
    return data


def _no_number(name: str) -> None:
    raise ValueError(name)


def _read(connection: socket.socket, length: int, remaining: Remaining | None) -> bytes:
    data = bytearray()
    while len(data) < length:
        if remaining is not None:
            connection.settimeout(remaining())
        if not (part := connection.recv(min(length - len(data), _READ_BYTES))):
            if data:
                raise ConnectionError("the connection ended within a frame")
            return b""
        data += part
    return bytes(data)
