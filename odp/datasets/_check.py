"""Checks of arrays of ratings: each failure is one line with counts and positions, and never shows data."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from odp.errors import DataError
from odp.identity import LARGEST

_CHUNK = 2**22


def value_array(values: npt.ArrayLike, *, low: float, high: float, where: str) -> npt.NDArray[np.float32]:
    """``values`` as float32 [rows], all finite and within [low, high].

    Raises:
      DataError: the bounds are no interval, or a value is not finite or out of bounds.
    """
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise DataError(f"Expected low={low!r} <= high={high!r}, both finite, in {where}")
    source = np.asarray(values)
    if source.ndim != 1 or source.dtype.kind not in "fiub":
        raise DataError(
            f"Expected values to be real numbers [rows] in {where} (got {source.dtype} {list(source.shape)})"
        )
    with np.errstate(over="ignore"):  # an overflow becomes inf, which is reported below
        array = np.ascontiguousarray(source, dtype=np.float32)
    # Bounds are rounded as the values are, so that a bound that float32 cannot hold exactly still admits itself.
    lowest, highest = np.float32(low), np.float32(high)
    rows = _rows_where(lambda part: ~((part >= lowest) & (part <= highest)), array)
    if rows.size:
        infinite = int((~np.isfinite(array[rows])).sum())
        kind = f"{infinite} of them NaN or infinite; " if infinite else ""
        raise DataError(
            f"{len(rows)} of {len(array)} values of {where} are outside [{low:g}, {high:g}] "
            f"({kind}first in row {rows[0]}): "
            "declare the true bounds (low, high), or clip or drop those rows"
        )
    return array


def index_array(
    numbers: npt.ArrayLike,
    expected: int,
    size: int | None,
    *,
    what: str,
    where: str,
    dtype: type[np.int64] | type[np.int32] = np.int64,
) -> npt.NDArray[Any]:
    """``numbers`` as int64 (or ``dtype``) [expected], all from 0, and below ``size`` where one is given; int32 stays.

    Raises:
      DataError: the length differs, or an entry is no whole number or out of range.
    """
    source = np.asarray(numbers)
    if source.size == 0 and source.ndim == 1:
        source = source.astype(np.int64)
    if source.dtype.kind not in "iu":
        raise DataError(f"Expected {what} to be whole numbers in {where} (got {source.dtype})")
    check_length(source.shape, (expected,), what, where)
    # What is int32 already stays so: half the memory of large data sets.
    array = np.ascontiguousarray(source, dtype=np.int32 if source.dtype == np.int32 else dtype)
    most = LARGEST if size is None else size - 1
    bad = _rows_where(lambda part: (part < 0) | (part > most), source)
    if bad.size:
        valid = "0 or more" if size is None else f"from 0 to {size - 1}"
        raise DataError(
            f"{bad.size} of {expected} {what} of {where} are out of range (first in row {bad[0]}): expected {valid}"
        )
    return array


def check_ascending(items: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64], where: str) -> None:
    for start in range(0, max(len(items) - 1, 0), _CHUNK):
        falls = np.diff(items[start : start + _CHUNK + 1]) <= 0
        # Between two users the items may fall.
        first, last = np.searchsorted(offsets, (start + 1, start + len(falls) + 1))
        falls[offsets[first:last] - start - 1] = False
        if falls.any():
            user = int(np.searchsorted(offsets, start + np.flatnonzero(falls)[0], side="right")) - 1
            raise DataError(
                f"Expected items to be ascending and unique within a user in {where}: those of user {user} are not"
            )


def _rows_where(
    test: Callable[[npt.NDArray[Any]], npt.NDArray[np.bool_]], array: npt.NDArray[Any]
) -> npt.NDArray[np.int64]:
    """Where ``test`` is true; in chunks, so that an array mapped from disk is never in memory as a whole."""
    places = [start + np.flatnonzero(test(array[start : start + _CHUNK])) for start in range(0, len(array), _CHUNK)]
    return np.concatenate(places) if places else np.empty(0, dtype=np.int64)


def check_length(shape: tuple[int, ...], expected: tuple[int, ...], what: str, where: str) -> None:
    if shape != expected:
        raise DataError(f"Expected {what} to have shape {list(expected)} in {where} (got {list(shape)})")
