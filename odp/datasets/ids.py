"""Original ids of users and items: whole numbers or text."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from odp.errors import DataError

Longs = npt.NDArray[np.int64]
Ids = npt.NDArray[Any]
"""Original ids: int64, or text as ``numpy.dtypes.StringDType``."""


def text_type() -> Any:
    """The type of text ids; numpy 1, which the environment of TensorFlow Federated has, lacks it."""
    return np.dtypes.StringDType()


def checked_ids(ids: npt.ArrayLike, *, what: str, where: str) -> npt.NDArray[Any]:
    """``ids`` as int64 or as text (``StringDType``).

    Raises:
      DataError: they are neither.
    """
    array = np.asarray(ids)
    if array.dtype.kind in "iu" or array.size == 0:
        return np.ascontiguousarray(array, dtype=np.int64)
    if array.dtype.kind in "UT":
        return array.astype(text_type())
    if array.dtype.kind == "O" and all(isinstance(one, str) for one in array.flat):
        return array.astype(text_type())
    raise DataError(f"Expected {what} to be whole numbers or text in {where} (got {array.dtype})")


def id_keys(ids: npt.NDArray[Any] | None, count: int) -> Longs:
    """A number for each id that depends on nothing else, int64 [count]; numbers from 0 without ids.

    Text is hashed to 64 bits (BLAKE2b, RFC 7693), an id at a time: no array operation takes texts of several lengths.
    """
    if ids is None:
        return np.arange(count, dtype=np.int64)
    if ids.dtype.kind != "T":
        return ids
    digests = b"".join(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in ids)
    return np.frombuffer(digests, dtype="<i8").astype(np.int64)


def packed(ids: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same in a form of fixed width that numpy's files hold without pickle: int64, or fixed-width text."""
    if ids.dtype.kind != "T":
        return ids
    return ids.astype(f"U{max(int(np.strings.str_len(ids).max(initial=1)), 1)}")


def unpacked(ids: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The opposite of :func:`packed`."""
    return ids.astype(text_type()) if ids.dtype.kind == "U" else ids
