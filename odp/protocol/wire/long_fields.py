"""A long field of a protobuf message, read in place: the parser copies such a field, and each access copies it again.

>>> from odp.v1.aggregator_pb2 import Contribution
>>> message = Contribution(round=3, payload=b"numbers").SerializeToString()
>>> rest, payload = split_field(memoryview(message), Contribution.PAYLOAD_FIELD_NUMBER)
>>> Contribution.FromString(rest).round, bytes(payload)
(3, b'numbers')
"""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.message import DecodeError

_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_MOST_VARINT_BYTES = 10


def fields(message: memoryview, number: int) -> Iterator[memoryview]:
    """The values of field ``number``, in place, of a message that has no other field. Raises DecodeError."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        length, position = _varint(message, position)
        position += length
        if tag != number << 3 | _DELIMITED or position > len(message):
            raise DecodeError("the message has another field, or is cut")
        yield message[position - length : position]


def split_field(message: memoryview, number: int) -> tuple[bytes, memoryview]:
    """The message without its field ``number``, which is one of bytes, and the value of that field, in place.

    As the parser has it: the last value counts where there are several, and none is an empty one. The parser checks
    the rest.

    Raises:
      DecodeError: the message is cut, or has fields of a kind that no message of ours has.
    """
    parts: list[memoryview] = []
    value = message[:0]
    position = 0
    while position < len(message):
        start = position
        tag, position = _varint(message, position)
        kind = tag & 7
        if kind == _VARINT:
            _, position = _varint(message, position)
        elif kind == _DELIMITED:
            length, position = _varint(message, position)
            position += length
            if tag >> 3 == number and position <= len(message):
                value = message[position - length : position]
                continue
        elif kind in (_FIXED32, _FIXED64):
            position += 4 if kind == _FIXED32 else 8
        else:
            raise DecodeError("a field is of an unknown kind")
        if position > len(message):
            raise DecodeError("the message is cut")
        parts.append(message[start:position])
    return b"".join(parts), value


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    """The number at ``position``, and where it ends."""
    value = 0
    for index, byte in enumerate(message[position : position + _MOST_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, position + index + 1
    raise DecodeError("a number has no end")
