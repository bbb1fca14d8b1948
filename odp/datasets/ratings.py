"""User x item interactions in compressed sparse row form, checked once at construction.

A data set is one pair of flat arrays ``items`` and ``values``; user ``u`` owns the slice ``offsets[u]:offsets[u + 1]``.
Every loader and generator of this package returns this form, and every consumer may rely on what
:class:`Ratings` checks: finite values within declared bounds, items in range, ascending and unique within a user.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from odp.datasets import ratings_files
from odp.datasets._check import check_ascending, check_length, index_array, value_array
from odp.datasets.columns import ANY_VALUE, Columns
from odp.datasets.ids import Ids, checked_ids, id_keys
from odp.datasets.repeats import Repeats, ranks_in_time, repeats_note, rows_by_user_and_item, without_repeats
from odp.errors import DataError
from odp.identity import LARGEST, integer_of

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

TIME_UNITS = ("s", "ms", "us", "ns")


@dataclass(frozen=True, eq=False, repr=False)
class Ratings:
    """Ragged user x item interactions; treat the arrays as read-only.

    Attributes:
      name: what reports call the data set.
      offsets: int64 [n_users + 1], from 0 to ``n_ratings``, never decreasing.
      items: int32 [n_ratings], 0..n_items-1, ascending and unique within a user.
      values: float32 [n_ratings], finite, within [low, high].
      n_items: number of items, rated or not.
      low, high: the *declared* bounds of values. They are public: a sensitivity may be derived from them,
        never from the extremes that the data happens to have.
      implicit: True where a pair means "seen" and its value carries no opinion.
      order: int64 [n_ratings] or None: position in time within the user, from 0. A subset keeps the positions
        of the whole, so that the parts of a split stay comparable.
      times: float64 or int64 [n_ratings] or None: when each rating was made, in one clock for all users.
      time_unit: "s", "ms", "us" or "ns" where ``times`` count from 1970 in UTC; None where that is unknown.
      titles: one per item, or None.
      features: float32 [n_items, p] of *public* item features (genre flags), or None.
      feature_names: one per column of ``features``, or None.
      user_ids, item_ids: original ids as ``odp.datasets.ids`` packs them, [n_users] and [n_items], or None.
      duplicates: how many rows named a user and an item again, and became one rating with another.
      notes: what the loader guessed or left out, a line each; counts only. They are not saved.
      inferred: which of the public facts follow from the data: "items" (there are those that somebody rated), "scale".
        A private release needs both declared: ``replace(ratings, n_items=.., low=.., high=.., inferred=())``.

    Raises:
      DataError: an array breaks one of the rules above; the message counts the rows and names the first.
    """

    name: str
    offsets: Longs
    items: Ints
    values: Floats
    n_items: int
    low: float
    high: float
    implicit: bool = False
    order: Longs | None = None
    times: npt.NDArray[Any] | None = None
    time_unit: str | None = None
    titles: tuple[str, ...] | None = None
    features: Floats | None = None
    feature_names: tuple[str, ...] | None = None
    user_ids: Ids | None = None
    item_ids: Ids | None = None
    duplicates: int = 0
    notes: tuple[str, ...] = ()
    inferred: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field, value in _checked(self).items():
            object.__setattr__(self, field, value)

    def __repr__(self) -> str:
        """Sizes and bounds only: what a person rated stays out of logs and tracebacks."""
        sizes = f"{self.n_users} users x {self.n_items} items, {self.n_ratings} ratings"
        scale = f"in [{self.low:g}, {self.high:g}]" if self.on_scale else "as written"
        return f"Ratings({self.name!r}, {sizes} {scale})"

    @property
    def on_scale(self) -> bool:
        """Whether ``low`` and ``high`` are a scale: values of a table that was read as written are on none."""
        return self.high < ANY_VALUE

    @property
    def n_users(self) -> int:
        """Users, with or without ratings."""
        return len(self.offsets) - 1

    @property
    def n_ratings(self) -> int:
        """Stored (user, item) pairs."""
        return len(self.items)

    @property
    def density(self) -> float:
        """Share of all user x item cells that hold a rating; 0 where there are no cells."""
        cells = self.n_users * self.n_items
        return self.n_ratings / cells if cells else 0.0

    def counts(self) -> Longs:
        """Ratings per user, int64 [n_users]."""
        return np.diff(self.offsets)

    def users(self) -> Longs:
        """The user of every entry, int64 [n_ratings], ascending."""
        return np.repeat(np.arange(self.n_users, dtype=np.int64), self.counts())

    @property
    def user_keys(self) -> Longs:
        """The key of each user, int64 [n_users], of the text of the user's id alone (``odp.datasets.ids``), or the
        user's number without ids.
        """
        return self._keys["user_ids"]

    @property
    def item_keys(self) -> Longs:
        """As ``user_keys``, of the items, int64 [n_items]."""
        return self._keys["item_ids"]

    @functools.cached_property
    def _keys(self) -> dict[str, Longs]:
        return {
            "user_ids": id_keys(self.user_ids, self.n_users),
            "item_ids": id_keys(self.item_ids, self.n_items),
        }

    @functools.cached_property
    def item_numbers(self) -> Longs:
        """The whole number that is the id of each item, int64 [n_items], or its place without ids.

        -1 where the id is no number from 0 that 64 bits hold: such an item has no bin.
        """
        if self.item_ids is None or self.item_ids.dtype.kind != "T":
            return np.maximum(self.item_keys, -1)
        numbers = (integer_of(text) for text in self.item_ids)
        return np.fromiter((-1 if n is None or n < 0 else n for n in numbers), np.int64, count=self.n_items)

    def ids_of(self, items: npt.NDArray[np.integer]) -> list[str] | None:
        """The ids of ``items`` (places) as text; None where places are ids."""
        if self.item_ids is None or self._places_are_ids:
            return None
        return [str(key) for key in self.item_ids[items].tolist()]

    @functools.cached_property
    def _places_are_ids(self) -> bool:
        return bool((self.item_numbers == np.arange(self.n_items)).all())

    def item_name(self, item: int) -> str:
        """What people call an item: its title, its original id, or its number.

        Raises:
          DataError: there is no item of that number.
        """
        if not 0 <= item < self.n_items:
            raise DataError(f"Expected item={item!r} to be from 0 to {self.n_items - 1} in data set {self.name!r}")
        if self.titles is not None:
            return self.titles[item]
        return str(item if self.item_ids is None else self.item_ids[item])

    def user(self, index: int) -> tuple[Ints, Floats]:
        """Items and values of one user, as views (no copy).

        Raises:
          DataError: there is no user of that number.
        """
        if not 0 <= index < self.n_users:
            raise DataError(f"Expected user={index!r} to be from 0 to {self.n_users - 1} in data set {self.name!r}")
        here = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        return self.items[here], self.values[here]

    def select_users(self, indices: npt.ArrayLike) -> Ratings:
        """The same items with only the users ``indices`` (whole numbers, any order), renumbered in that order.

        Their ``user_ids`` say who they were.

        Raises:
          DataError: an index is no whole number or names no user.
        """
        chosen = np.asarray(indices)
        if chosen.size == 0:
            chosen = chosen.astype(np.int64)
        if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
            raise DataError(f"Expected indices to be a flat array of whole numbers (got {chosen.dtype} {chosen.shape})")
        chosen = chosen.astype(np.int64)
        if chosen.size and not (chosen.min() >= 0 and chosen.max() < self.n_users):
            raise DataError(f"Expected indices to be from 0 to {self.n_users - 1} in data set {self.name!r}")
        counts = self.counts()[chosen]
        offsets = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        # Row r of the result is the (r - offsets[u])-th row of the chosen user u.
        rows = np.arange(offsets[-1], dtype=np.int64) + np.repeat(self.offsets[:-1][chosen] - offsets[:-1], counts)
        return replace(
            self,
            offsets=offsets,
            items=self.items[rows],
            values=self.values[rows],
            order=None if self.order is None else self.order[rows],
            times=None if self.times is None else self.times[rows],
            user_ids=self.user_keys[chosen] if self.user_ids is None else self.user_ids[chosen],
        )

    def take(self, mask: npt.NDArray[np.bool_]) -> Ratings:
        """The entries where ``mask`` (bool [n_ratings]) is true; all users and items stay.

        Raises:
          DataError: ``mask`` is not boolean or not one per entry.
        """
        mask = np.asarray(mask)
        if mask.dtype != np.bool_ or mask.shape != (self.n_ratings,):
            raise DataError(f"Expected mask to be bool [{self.n_ratings}] (got {mask.dtype} {list(mask.shape)})")
        kept_before = np.concatenate(([0], np.cumsum(mask, dtype=np.int64)))
        return replace(
            self,
            offsets=kept_before[self.offsets],
            items=self.items[mask],
            values=self.values[mask],
            order=None if self.order is None else self.order[mask],
            times=None if self.times is None else self.times[mask],
            duplicates=0,
        )

    @classmethod
    def from_triples(
        cls,
        name: str,
        users: npt.ArrayLike,
        items: npt.ArrayLike,
        values: npt.ArrayLike,
        *,
        low: float,
        high: float,
        n_users: int | None = None,
        n_items: int | None = None,
        times: npt.ArrayLike | None = None,
        ranks: npt.ArrayLike | None = None,
        repeats: Repeats = "newest",
        implicit: bool = False,
        **attributes: Any,
    ) -> Self:
        """Makes the sparse form of rows in any order, with one rating for each user and item.

        Args:
          name: name of the data set.
          users, items: whole numbers from 0, [rows].
          values: real numbers, [rows].
          low, high: declared bounds of values.
          n_users, n_items: sizes; by default one more than the largest number seen, and "items" is ``inferred``.
          times: when each row happened, [rows], numbers; ``order`` is derived from it, ties in row order.
          ranks: what orders the rows of each user in place of times, and says nothing between users, [rows].
          repeats: what rows with the same user and item come to, see ``odp.datasets.repeats``.
          implicit, **attributes: further fields of :class:`Ratings`.

        Raises:
          DataError: lengths differ, a number is out of range, or a value is not finite or out of bounds. Rows in
            the message count from 0 in the order given.
        """
        value = value_array(values, low=low, high=high, where=f"data set {name!r}")
        user = index_array(users, len(value), n_users, what="users", where=f"data set {name!r}")
        item = index_array(items, len(value), n_items, what="items", where=f"data set {name!r}")
        n_users = int(user.max(initial=-1)) + 1 if n_users is None else n_users
        if n_items is None:
            n_items = int(item.max(initial=-1)) + 1
            attributes["inferred"] = tuple(sorted({"items", *attributes.get("inferred", ())}))

        when = _clock(times, len(value), "times")
        clock = when if ranks is None else _clock(ranks, len(value), "ranks")
        rows = rows_by_user_and_item(user, item, n_users, n_items)
        # What only says "seen" says no more when it is said twice.
        way = "newest" if implicit and repeats in ("mean", "sum") else repeats
        rows, value = without_repeats(rows, user, item, value, clock, way)
        repeated = len(user) - len(rows)
        attributes["notes"] = (*attributes.get("notes", ()), *repeats_note(repeated, way))
        counts = np.bincount(user[rows] if len(rows) < len(user) else user, minlength=n_users)
        offsets = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        return cls(
            name=name,
            offsets=offsets,
            items=item[rows].astype(np.int32, copy=False),
            values=value,
            n_items=n_items,
            low=low,
            high=high,
            order=None if clock is None else ranks_in_time(clock, rows, user, offsets),
            times=None if when is None else when[rows],
            duplicates=repeated,
            implicit=implicit,
            **attributes,
        )

    @classmethod
    def from_dataframe(
        cls,
        frame: object,
        *,
        user: str | None = None,
        item: str | None = None,
        value: str | None = None,
        time: str | None = None,
        implicit: bool | None = None,
        low: float | None = None,
        high: float | None = None,
        name: str = "dataframe",
        on_error: Literal["raise", "skip"] = "raise",
        repeats: Repeats = "newest",
        as_written: bool = False,
    ) -> Self:
        """Makes ratings of a pandas, Polars or Arrow table with one row per interaction; needs ``odp-platform[data]``.

        Ids may be whole numbers or text, and are kept. What is not given is guessed, and ``notes`` says how.

        Args:
          frame: the table.
          user, item: names of the columns of ids.
          value: name of the column of ratings or counts; without one, a row says "seen".
          time: name of the column of times: numbers or dates.
          implicit: True where a value above 0 only says "seen".
          low, high: the declared scale of ratings.
          name: what reports call the data set.
          on_error: "raise" refuses bad rows, "skip" leaves them out and counts them.
          repeats: what rows with the same user and item come to: newest, oldest, mean, sum, or refuse.
          as_written: keeps the values as they stand, on no scale: for questions, which have ranges of their own.

        Raises:
          DataError: a column is missing or of the wrong type, or rows are bad.
          ConfigurationError: arguments contradict each other, or ``pyarrow`` is missing.
        """
        from odp.datasets.table_files import is_frame
        from odp.datasets.tables import read_table

        if not is_frame(frame):
            raise DataError(f"Expected frame to be a pandas, Polars or Arrow table (got a {type(frame).__name__})")
        columns = Columns(
            user=user, item=item, value=value, time=time, implicit=implicit, low=low, high=high, on_error=on_error,
            repeats=repeats, as_written=as_written,
        )  # fmt: skip
        return cls.from_triples(**read_table(frame, columns, name=name).triples)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes one npz file of format ``odp-ratings-1``; an existing file is replaced at once or not at all."""
        ratings_files.write_npz(self, Path(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads what :meth:`save` wrote, and checks it again.

        Raises:
          DataError: the file is missing, not of format ``odp-ratings-1``, or damaged.
        """
        return ratings_files.made(cls, ratings_files.read_npz(Path(path)), Path(path))

    def save_folder(self, folder: str | os.PathLike[str]) -> None:
        """Writes an uncompressed folder of format ``odp-ratings-1``, which :meth:`open_folder` maps into memory.

        ``meta.json`` is written last, so that a folder that was cut short is no data set.

        Raises:
          DataError: ``folder`` exists and is not empty, or cannot be written.
        """
        ratings_files.write_folder(self, Path(folder))

    @classmethod
    def open_folder(cls, folder: str | os.PathLike[str]) -> Self:
        """Maps what :meth:`save_folder` wrote: entries stay on disk and are read as they are used.

        They are checked here, once, in one pass of bounded memory. The files must not change while they are mapped.

        Raises:
          DataError: the folder is missing, not of format ``odp-ratings-1``, or damaged.
        """
        return ratings_files.made(cls, ratings_files.read_folder(Path(folder)), Path(folder))


def _checked(ratings: Ratings) -> dict[str, Any]:
    """The array fields of ``ratings`` in their declared types.

    Raises:
      DataError: a field breaks a rule of :class:`Ratings`.
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
    check_ascending(items, offsets, where)
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
        if (ids := getattr(ratings, name)) is not None:
            ids = checked_ids(ids, what=name, where=where)
            check_length(ids.shape, (expected,), name, where)
            fields[name] = ids
    return fields


def _times(times: npt.ArrayLike, expected: int, where: str) -> npt.NDArray[Any]:
    array = np.asarray(times)
    if array.dtype.kind not in "iuf":
        raise DataError(f"Expected times to be numbers in {where} (got {array.dtype})")
    check_length(array.shape, (expected,), "times", where)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise DataError(f"Expected times to be finite in {where}")
    if array.dtype.kind == "u" and array.size and array.max() > LARGEST:
        raise DataError(f"Expected times to be below 2**63 in {where}")
    return np.ascontiguousarray(array, dtype=np.float64 if array.dtype.kind == "f" else np.int64)


def _item_fields(ratings: Ratings, where: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if ratings.titles is not None:
        fields["titles"] = tuple(ratings.titles)
        check_length((len(ratings.titles),), (ratings.n_items,), "titles", where)
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
        check_length((len(ratings.feature_names),), (features.shape[1],), "feature_names", where)
    return fields


def _clock(times: npt.ArrayLike | None, rows: int, what: str) -> npt.NDArray[Any] | None:
    if times is not None and np.shape(times) != (rows,):
        raise DataError(f"Expected {what} to have one entry per row: {rows} (got shape {list(np.shape(times))})")
    return None if times is None else np.asarray(times)


@dataclass(frozen=True, eq=False)
class Split:
    """Three disjoint parts of one data set; each has all its users and items."""

    train: Ratings
    validation: Ratings
    test: Ratings


def merge(a: Ratings, b: Ratings) -> Ratings:
    """All entries of two disjoint parts of one data set, such as train and validation; names and ids are ``a``'s.

    Raises:
      DataError: the parts differ in users, items or bounds, or share a (user, item) pair.
    """
    if (a.n_users, a.n_items, a.low, a.high) != (b.n_users, b.n_items, b.low, b.high):
        raise DataError(f"Expected both parts of {a.name!r} to have the same users, items and bounds")
    if not b.n_ratings:
        return a
    user = np.concatenate((a.users(), b.users()))
    item = np.concatenate((a.items, b.items))
    rows = np.argsort(user * np.int64(a.n_items) + item, kind="stable")
    if shared := int(((np.diff(user[rows]) == 0) & (np.diff(item[rows]) == 0)).sum()):
        raise DataError(f"Expected disjoint parts of {a.name!r}: {shared} (user, item) pairs are in both")

    def both(first: npt.NDArray[Any] | None, second: npt.NDArray[Any] | None) -> npt.NDArray[Any] | None:
        return None if first is None or second is None else np.concatenate((first, second))[rows]

    return replace(
        a,
        offsets=a.offsets + b.offsets,
        items=item[rows],
        values=np.concatenate((a.values, b.values))[rows],
        order=both(a.order, b.order),
        times=both(a.times, b.times),
    )
