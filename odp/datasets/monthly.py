"""A data set in the order of its time stamps: train on all months so far, test on the next one.

==========  ==================================================================================================
training    all ratings up to the end of a month, on the devices of the people who have rated by then
test        what these people rate in the next month; people who join in it are not tested, since a device that
            holds no rating has nothing to solve its own parameters from
==========  ==================================================================================================

Months are calendar months in UTC. The catalogue is that of the whole data set in every month.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from odp import _validate
from odp.datasets.movielens import movielens_rows
from odp.datasets.ratings import Ratings, Split
from odp.datasets.registry import movielens_folder
from odp.errors import DataError
from odp.numerics.arrays import Int64Array


@dataclass(frozen=True)
class Month:
    """What a training at the end of a month works on.

    Attributes:
      name: of the month, as "2000-11".
      split: all ratings up to its end for training, none for validation, and those of the next month for the test.
      joined: people whose first rating is of this month.
    """

    name: str
    split: Split
    joined: int


def monthly_ratings(
    name_or_path: str | os.PathLike[str],
    *,
    first_users: int = 1000,
    cache: str | os.PathLike[str] | None = None,
) -> Iterator[Month]:
    """One :class:`Month` after the other, from the first by whose end ``first_users`` people have rated.

    The last one is the month before the last month of the data. Rows without a time stamp are left out, and so are
    people who have no other.

    Args:
      name_or_path: "ml-1m" or another form of MovieLens, as of ``odp.datasets.load``.
      first_users: people in the first training; above 0.
      cache: where ``fetch`` keeps data sets.

    Raises:
      DataError: the data set is no MovieLens, has no time stamps, or has fewer than ``first_users`` people before its
        last month.
    """
    _validate.integer(low=1, high=2**31 - 1, first_users=first_users)
    rows = movielens_rows(movielens_folder(name_or_path, cache=cache))
    timed = np.flatnonzero(rows["times"] > 0)
    if not len(timed):
        raise DataError(f"{name_or_path}: no rating has a time stamp")
    for field in ("users", "items", "values", "times", "ranks"):
        if field in rows:
            rows[field] = rows[field][timed]
    month = rows["times"].astype("datetime64[s]").astype("datetime64[M]").astype(np.int64)
    first = np.full(rows["n_users"], np.iinfo(np.int64).max)
    np.minimum.at(first, rows["users"], month)
    last = int(month.max())
    begun = [number for number in range(int(month.min()), last) if (first <= number).sum() >= first_users]
    if not begun:
        raise DataError(
            f"Expected first_users={first_users} to be at most the {(first < last).sum()} people who rate before the "
            f"last month of {name_or_path}"
        )
    return _months(rows, month, first, begun)


def _months(rows: dict[str, Any], month: Int64Array, first: Int64Array, numbers: list[int]) -> Iterator[Month]:
    user, item = rows["users"], rows["items"]
    pair = user.astype(np.int64) * np.int64(rows["n_items"]) + item
    for number in numbers:
        people = np.flatnonzero(first <= number)
        past, following = month <= number, (month == number + 1) & (first[user] <= number)
        following &= ~np.isin(pair, pair[past])
        train, test = (_ratings(rows, people, part) for part in (past, following))
        none = train.take(np.zeros(train.n_ratings, dtype=np.bool_))
        yield Month(str(np.datetime64(number, "M")), Split(train, none, test), int((first == number).sum()))


def _ratings(rows: dict[str, Any], people: Int64Array, part: np.ndarray[Any, np.dtype[np.bool_]]) -> Ratings:
    """The rows of ``part``, whose users are among ``people``."""
    part_rows: dict[str, Any] = {
        field: rows[field][part] for field in ("items", "values", "times", "ranks") if field in rows
    }
    part_rows |= {"users": np.searchsorted(people, rows["users"][part]), "n_users": len(people)}
    return Ratings.from_triples(**(rows | part_rows | {"user_ids": rows["user_ids"][people]}))
