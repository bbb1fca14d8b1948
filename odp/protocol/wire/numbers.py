"""The one check of all floating-point numbers of a message: a number that no field can mean is refused in any field.

Each algorithm has the range of its own fields. Those hold for fields that it reads; a signed message has others, which
later code, or another version, may read. And what is next to zero, or huge, is no sane choice of any of them.
"""

from __future__ import annotations

import math

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from odp.errors import ConfigurationError

#: Every number is 0, or of a size within these: its square, and the square of that, are ordinary numbers.
SMALLEST, LARGEST = 1e-60, 1e60

_FLOATS = (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT)


def check_numbers(message: Message, what: str) -> None:
    """Returns if every floating-point number in ``message``, which ``what`` names, is of an ordinary size.

    Raises:
      ConfigurationError: one is NaN, infinite, subnormal or otherwise out of ``SMALLEST`` to ``LARGEST``; the message
        names its field.
    """
    _check(message, what, "")


def _check(message: Message, what: str, path: str) -> None:
    for field, held in message.ListFields():
        values = held if field.is_repeated else (held,)
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            for part in values:
                _check(part, what, f"{path}{field.name}.")
        elif field.cpp_type in _FLOATS:
            for value in values:
                # NaN is within nothing.
                if value and not SMALLEST <= math.fabs(value) <= LARGEST:
                    raise ConfigurationError(
                        f"Expected {path}{field.name}={value!r} of the {what} to be 0, or of a size from "
                        f"{SMALLEST:g} to {LARGEST:g}"
                    )
