"""Ids of users and items: what their source calls them, as text.

=====================================  =============================================================================
written                                id
=====================================  =============================================================================
a whole number of any numeric type     its digits: 12, 12.0 of a column of floats and 12.00 of decimals are ``"12"``
text                                   the text as it is: ``"007"`` is not ``"7"``, and ``"1.10"`` is not ``"1.1"``
a fraction, a bool, a date             none: an error
=====================================  =============================================================================

The text ``"12"`` and the number 12 are one id in every form of file. An array of ids is int64 where all of them are
digits of such a number, which takes less memory, and text otherwise. That is packing: what an id is, its key and its
place among others follow from its own text.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from odp.errors import DataError

Longs = npt.NDArray[np.int64]
Ids = npt.NDArray[Any]
"""Ids: int64, or text as ``numpy.dtypes.StringDType``."""

LEAST, LARGEST = -(2**63), 2**63 - 1
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
EXACT = 2.0**53
"""Whole numbers from here on are not all floats: two ids may have become one before they came here."""


def text_type() -> Any:
    """The type of text ids; numpy 1, which the environment of TensorFlow Federated has, lacks it."""
    return np.dtypes.StringDType()


def id_text(value: object) -> str:
    """The id that a single value is; the module lists which.

    Raises:
      DataError: the value is none.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return str(int(value))
    if isinstance(value, (float, np.floating)) and math.isfinite(value) and value == int(value):
        if abs(float(value)) < EXACT:
            return str(int(value))
        raise DataError("numbers of 2**53 or more came as floats, which are not exact; write them as text or integers")
    if isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value():
        return str(int(value))
    raise DataError(f"expected whole numbers or text (got a {type(value).__name__})")


def integer_of(text: str) -> int | None:
    """The number of 64 bits whose digits ``text`` is, or None."""
    if not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if LEAST <= number <= LARGEST else None


def checked_ids(ids: npt.ArrayLike, *, what: str, where: str) -> Ids:
    """``ids`` packed: int64 where all are digits of one, otherwise text (``StringDType``).

    Raises:
      DataError: one is no id.
    """
    array = np.asarray(ids)
    if array.dtype.kind == "i" or array.size == 0 or (array.dtype.kind == "u" and array.max() <= LARGEST):
        return np.ascontiguousarray(array, dtype=np.int64)
    if array.dtype.kind not in "UT":
        try:
            texts = [id_text(value) for value in array.ravel().tolist()]
        except DataError as error:
            raise DataError(f"{where}: {what}: {error}") from None
        array = np.array(texts, dtype=text_type()).reshape(array.shape)
    flat = array.ravel()
    # Ids in their order end with what is no number.
    if integer_of(str(flat[-1])) is None:
        return array.astype(text_type())
    numbers = [integer_of(text) for text in flat.tolist()]
    if None in numbers:
        return array.astype(text_type())
    return np.array(numbers, dtype=np.int64).reshape(array.shape)


def joined(numbers: Longs, others: list[str]) -> Ids:
    """Ids packed in their order: numbers ascending, then other texts by code points.

    Which of two ids comes first follows from these two alone.
    """
    if not others:
        return numbers
    return np.array([*map(str, numbers.tolist()), *others], dtype=text_type())


def in_order(texts: Iterable[str]) -> list[str]:
    """Ids in their order, see :func:`joined`."""

    def place(text: str) -> tuple[bool, int, str]:
        number = integer_of(text)
        return number is None, number or 0, text

    return sorted(texts, key=place)


def id_keys(ids: Ids | None, count: int) -> Longs:
    """A number for each id that depends on its text alone, int64 [count]; numbers from 0 without ids.

    The digits of a number of 64 bits have that number; other text is hashed to 64 bits (BLAKE2b, RFC 7693).
    """
    if ids is None:
        return np.arange(count, dtype=np.int64)
    if ids.dtype.kind != "T":
        return ids
    return np.fromiter((_key(text) for text in ids), dtype=np.int64, count=len(ids))


def _key(text: str) -> int:
    number = integer_of(text)
    if number is not None:
        return number
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def packed(ids: Ids) -> Ids:
    """The same in a form of fixed width that numpy's files hold without pickle: int64, or fixed-width text."""
    if ids.dtype.kind != "T":
        return ids
    return ids.astype(f"U{max(int(np.strings.str_len(ids).max(initial=1)), 1)}")


def unpacked(ids: Ids) -> Ids:
    """The opposite of :func:`packed`."""
    return ids.astype(text_type()) if ids.dtype.kind == "U" else ids
