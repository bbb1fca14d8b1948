"""Orders rows of (user, item, time) by counting where there are many: its time is linear in the rows."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt

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
