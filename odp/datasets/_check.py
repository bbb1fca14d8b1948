"""The checks of ``Ratings``: each failure is one line with counts and positions, and never shows data."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from odp.datasets.ids import checked_ids
from odp.errors import DataError
from odp.identity import LARGEST

TIME_UNITS = ("s", "ms", "us", "ns")

_CHUNK = 2**22


class Fields(Protocol):
    """The arguments of ``Ratings``; its docstring describes each field."""

    @property
    def name(self) -> str: ...
    @property
    def n_items(self) -> int: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def offsets(self) -> npt.NDArray[np.int64]: ...
    @property
    def items(self) -> npt.NDArray[np.int32]: ...
    @property
    def values(self) -> npt.NDArray[np.float32]: ...
    @property
    def order(self) -> npt.NDArray[np.int64] | None: ...
    @property
    def times(self) -> npt.NDArray[Any] | None: ...
    @property
    def time_unit(self) -> str | None: ...
    @property
    def titles(self) -> tuple[str, ...] | None: ...
    @property
    def features(self) -> npt.NDArray[np.float32] | None: ...
    @property
    def feature_names(self) -> tuple[str, ...] | None: ...
    @property
    def inferred(self) -> tuple[str, ...]: ...


def checked(ratings: Fields) -> dict[str, Any]:
    """The array fields of ``ratings`` in their declared types.

    Raises:
      DataError: a field breaks a rule of :class:`~odp.datasets.ratings.Ratings`.
    """
    where = f"data set {ratings.name!r}"
    if isinstance(ratings.n_items, bool) or not isinstance(ratings.n_items, int) or not 0 <= ratings.n_items < 2**31:
        raise DataError(f"Expected n_items={ratings.n_items!r} to be a whole number from 0 to 2**31-1 in {where}")
    if not isinstance(ratings.inferred, tuple) or not set(ratings.inferred) <= {"items", "scale"}:
        raise DataError(f"Expected inferred={ratings.inferred!r} to name 'items', 'scale' or neither in {where}")
    offsets = np.asarray(ratings.offsets)
    if offsets.ndim != 1 or offsets.size == 0 or offsets.dtype.kind not in "iu":
        raise DataError(f"Expected offsets to be int64 [n_users + 1] in {where} (got {offsets.dtype})")
    offsets = np.ascontiguousarray(offsets, dtype=np.int64)
    decreasing = np.flatnonzero(np.diff(offsets) < 0)
    if decreasing.size:
        raise DataError(f"Expected offsets never to decrease in {where}: they do after user {decreasing[0]}")
    values = value_array(ratings.values, low=ratings.low, high=ratings.high, where=where)
    if offsets[0] != 0 or offsets[-1] != len(values):
        raise DataError(
            f"Expected offsets to run from 0 to the number of values, {len(values)}, in {where} "
            f"(they run from {offsets[0]} to {offsets[-1]})"
        )
    items = index_array(ratings.items, len(values), ratings.n_items, what="items", where=where, dtype=np.int32)
    _check_ascending(items, offsets, where)
    fields: dict[str, Any] = {
        "offsets": offsets,
        "items": items,
        "values": values,
    }
    if ratings.order is not None:
        fields["order"] = index_array(ratings.order, len(values), None, what="order", where=where)
    if ratings.times is not None:
        fields["times"] = _times(ratings.times, len(values), where)
    if ratings.time_unit not in (None, *TIME_UNITS):
        raise DataError(f"Expected time_unit={ratings.time_unit!r} to be one of {', '.join(TIME_UNITS)} in {where}")
    fields |= _item_fields(ratings, where)
    for name, expected in (("user_ids", len(offsets) - 1), ("item_ids", ratings.n_items)):
        ids = getattr(ratings, name)
        if ids is not None:
            ids = checked_ids(ids, what=name, where=where)
            _check_length(ids.shape, (expected,), name, where)
            fields[name] = ids
    return fields


def _times(times: npt.ArrayLike, expected: int, where: str) -> npt.NDArray[Any]:
    array = np.asarray(times)
    if array.dtype.kind not in "iuf":
        raise DataError(f"Expected times to be numbers in {where} (got {array.dtype})")
    _check_length(array.shape, (expected,), "times", where)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise DataError(f"Expected times to be finite in {where}")
    if array.dtype.kind == "u" and array.size and array.max() > LARGEST:
        raise DataError(f"Expected times to be below 2**63 in {where}")
    return np.ascontiguousarray(array, dtype=np.float64 if array.dtype.kind == "f" else np.int64)


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
    _check_length(source.shape, (expected,), what, where)
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


def _check_ascending(items: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64], where: str) -> None:
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


def _item_fields(ratings: Fields, where: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if ratings.titles is not None:
        fields["titles"] = tuple(ratings.titles)
        _check_length((len(ratings.titles),), (ratings.n_items,), "titles", where)
    if ratings.features is None:
        if ratings.feature_names is not None:
            raise DataError(f"Expected features beside feature_names in {where}: pass both or neither")
        return fields
    features = np.ascontiguousarray(ratings.features, dtype=np.float32)
    if features.ndim != 2 or len(features) != ratings.n_items:
        raise DataError(f"Expected features to be [{ratings.n_items}, p] in {where} (got {list(features.shape)})")
    if not np.isfinite(features).all():
        row = int(np.flatnonzero(~np.isfinite(features).all(axis=1))[0])
        raise DataError(f"Expected features to be finite in {where}: those of item {row} are not")
    fields["features"] = features
    if ratings.feature_names is not None:
        fields["feature_names"] = tuple(ratings.feature_names)
        _check_length((len(ratings.feature_names),), (features.shape[1],), "feature_names", where)
    return fields


def _check_length(shape: tuple[int, ...], expected: tuple[int, ...], what: str, where: str) -> None:
    if shape != expected:
        raise DataError(f"Expected {what} to have shape {list(expected)} in {where} (got {list(shape)})")
