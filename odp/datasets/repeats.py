"""What rows that name a user and an item again come to: one interaction, of which one row or all of them decide.

Orders rows of (user, item, time) by counting where there are many: its time is linear in the rows.
"""

from __future__ import annotations

from typing import Any, Literal, cast, get_args

import numpy as np
import numpy.typing as npt

from odp.errors import ConfigurationError, DataError

Repeats = Literal["newest", "oldest", "mean", "sum", "refuse"]
"""By time where rows have one, rows of one time in their order; by the order of rows otherwise."""


def checked_repeats(repeats: str) -> None:
    """Raises ConfigurationError unless ``repeats`` is one of :data:`Repeats`."""
    if repeats not in get_args(Repeats):
        raise ConfigurationError(f"Expected repeats={repeats!r} to be one of {', '.join(get_args(Repeats))}")


_COUNTS = {
    "newest": "the newest row of each pair counts, by time or else by row (--repeats)",
    "oldest": "the oldest row of each pair counts, by time or else by row",
    "mean": "each pair has the mean of its rows",
    "sum": "each pair has the sum of its rows",
    "": "each pair counts once",
}


def repeats_note(count: int, repeats: str = "") -> tuple[str, ...]:
    """What the owner of a table has to know of ``count`` rows that were no rating of their own; "": a saved table."""
    return (f"{count:,} rows name a user and an item again: {_COUNTS[repeats]}",) if count else ()


def without_repeats(
    rows: Rows,
    user: npt.NDArray[Any],
    item: npt.NDArray[Any],
    value: npt.NDArray[np.float32],
    when: npt.NDArray[Any] | None,
    repeats: str,
) -> tuple[Rows, npt.NDArray[np.float32]]:
    """(one row for each user and item, its value).

    Args:
      rows: of all rows, by user, item and row, as of ``rows_by_user_and_item``; overwritten.
      user, item, value: of all rows.
      when: when each row happened, or None.
      repeats: one of :data:`Repeats`. A mean or a sum has the time of its newest row.

    Raises:
      DataError: ``repeats`` is "refuse", and there are some.
    """
    begins = _begins(rows, user, item)
    if begins.all():
        return rows, value[rows]
    if repeats == "refuse":
        raise DataError(f"{int((~begins).sum())} rows name a user and an item again")
    ends = np.append(begins[1:], True)
    if when is not None:
        repeated = np.flatnonzero(~(begins & ends))
        group = np.cumsum(begins[repeated])
        rows[repeated] = rows[repeated][np.lexsort((when[rows[repeated]], group))]
    if repeats in ("newest", "oldest"):
        rows = rows[ends if repeats == "newest" else begins]
        return rows, value[rows]
    starts = np.flatnonzero(begins)
    sums = np.add.reduceat(value[rows].astype(np.float64), starts)
    sizes = np.diff(starts, append=len(rows))
    return rows[ends], (sums if repeats == "sum" else sums / sizes).astype(np.float32)


def repeated_rows(user: npt.NDArray[Any], item: npt.NDArray[Any], n_users: int, n_items: int) -> Rows:
    """The rows whose user and item an earlier row names, ascending."""
    rows = rows_by_user_and_item(user, item, n_users, n_items)
    return np.sort(rows[~_begins(rows, user, item)])


def _begins(rows: Rows, user: npt.NDArray[Any], item: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether each of the sorted rows is the first of its user and item."""
    begins = np.ones(len(rows), dtype=np.bool_)
    begins[1:] = user[rows[1:]] != user[rows[:-1]]
    begins[1:] |= item[rows[1:]] != item[rows[:-1]]
    return begins


Longs = npt.NDArray[np.int64]
Rows = npt.NDArray[Any]
"""Numbers of rows, int32 where they fit and int64 otherwise."""

_MANY = 2**18
_MOST_COUNTED = 2**31 - 1


def rows_by_user_and_item(user: npt.NDArray[Any], item: npt.NDArray[Any], n_users: int, n_items: int) -> Rows:
    """Rows in the order of user, then item, then row, [rows]."""
    if not _MANY <= len(user) <= _MOST_COUNTED:
        return cast(Rows, np.argsort(user * np.int64(n_items) + item, kind="stable"))
    by_item = _counted(item, n_items)
    return cast(Rows, by_item[_counted(user[by_item], n_users)])


def ranks_in_time(times: npt.NDArray[Any], rows: Rows, user: npt.NDArray[Any], offsets: Longs) -> Longs:
    """Position in time, from 0, within the user of each kept row: int64 [kept]; ties in the order of rows.

    Args:
      times: of all rows, [all].
      rows: the kept rows, by user, [kept].
      user: of all rows, [all].
      offsets: where each user's rows begin among ``rows``, int64 [n_users + 1].
    """
    if not _MANY <= len(rows) <= _MOST_COUNTED:
        in_time = rows[np.lexsort((rows, times[rows], user[rows]))]
    else:
        in_time = np.argsort(times, kind="stable").astype(np.int32)
        if len(rows) < len(times):
            selected = np.zeros(len(times), dtype=np.bool_)
            selected[rows] = True
            in_time = in_time[selected[in_time]]
        in_time = in_time[_counted(user[in_time], len(offsets) - 1)]
    kind = np.int32 if len(times) <= _MOST_COUNTED else np.int64
    rank = np.empty(len(times), dtype=kind)
    rank[in_time] = np.arange(len(rows), dtype=kind) - np.repeat(offsets[:-1].astype(kind), np.diff(offsets))
    return rank[rows].astype(np.int64)


def _counted(keys: npt.NDArray[Any], size: int) -> npt.NDArray[np.int32]:
    """A stable order of ``keys`` (from 0 below ``size``), by SciPy's counting sort: rows of a sparse matrix."""
    from scipy.sparse import coo_array

    count = len(keys)
    places = np.arange(count, dtype=np.int32)
    matrix = coo_array(
        (np.ones(count, dtype=np.int8), (keys.astype(np.int32, copy=False), places)), shape=(size, count)
    )
    return cast("npt.NDArray[np.int32]", matrix.tocsr().indices)
