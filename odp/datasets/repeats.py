"""What rows that name a user and an item again come to: one interaction, of which one row or all of them decide."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from odp.datasets.sorting import Rows, rows_by_user_and_item
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
