"""Arrays of ids of users and items, which are texts: see ``odp.identity``.

The text ``"12"`` and the number 12 are one id in every form of file. An array of ids is int64 where all of them are
digits of such a number, which takes less memory, and text otherwise. That is packing: what an id is, its key and its
place among others follow from its own text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from odp.errors import DataError
from odp.identity import LARGEST, id_text, integer_of

Longs = npt.NDArray[np.int64]
Ids = npt.NDArray[Any]
"""Ids: int64, or text as ``numpy.dtypes.StringDType``."""


def text_type() -> Any:
    """The type of text ids; numpy 1, which the environment of TensorFlow Federated has, lacks it."""
    return np.dtypes.StringDType()


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
            texts = [id_text(value) for value in array.ravel()]
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
    """The same in a form of fixed width that numpy's files hold without pickle: int64, or fixed-width text.

    Raises:
      DataError: an id ends with a zero byte, which text of fixed width loses: another id would come back.
    """
    if ids.dtype.kind != "T":
        return ids
    fixed = ids.astype(f"U{max(int(np.strings.str_len(ids).max(initial=1)), 1)}")
    if (unpacked(fixed) != ids).any():
        raise DataError("an id ends with a zero byte, which files of numpy do not hold; mend it")
    return fixed


def unpacked(ids: Ids) -> Ids:
    """The opposite of :func:`packed`."""
    return ids.astype(text_type()) if ids.dtype.kind == "U" else ids
