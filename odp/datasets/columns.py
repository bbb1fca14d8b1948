"""Which columns of a table are users, items, values and times, and on which scale the values are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.datasets.raw_table import Kind
from odp.datasets.repeats import Repeats, checked_repeats
from odp.errors import ConfigurationError, DataError

OnError = Literal["raise", "skip"]

_USUAL = {
    "user": ("user", "user_id", "userid", "customer_id", "customer", "uid", "member_id", "listener_id"),
    "item": (
        "item", "item_id", "itemid", "movie_id", "movieid", "product_id", "productid", "book_id", "bookid", "isbn",
        "song_id", "track_id", "artist_id", "article_id", "business_id", "iid",
    ),
    "value": ("value", "rating", "ratings", "score", "stars", "overall", "preference"),
    "time": ("time", "timestamp", "ts", "date", "datetime", "rated_at", "created_at"),
    "title": ("title", "item_title", "item_name", "name", "product_name", "movie_title"),
}  # fmt: skip

#: As ``Columns.title``: the column of a usual name, if there is one.
USUAL_TITLE = "*"

_SCALES = ((0.0, 1.0), (1.0, 5.0), (0.5, 5.0), (0.0, 5.0), (1.0, 10.0), (0.0, 10.0), (-10.0, 10.0), (0.0, 100.0))
"""Scales that people use, the first that holds all values is the guess. They are constants: a bound made of the data's
own extremes would be a function of what single people did."""

_KINDS = {"user": Kind.ID, "item": Kind.ID, "value": Kind.RATING, "time": Kind.TIME, "title": Kind.TITLE}

_MOST_OPINION = 100.0
"""Whole numbers above this are how often, not how much liked."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """How a table of interactions is read; ``None`` is "guess, and say what was guessed".

    Attributes:
      user, item: names of the columns of ids.
      value: name of the column of ratings or counts; where there is none, a row says "seen".
      time: name of the column of times; where there is none, the data have no order.
      title: name of the column of items' titles; None reads none. They are shown, and say nothing of who an item is.
      implicit: True where a value above 0 says "seen", False where it is an opinion.
      low, high: the declared scale of opinions, both or neither.
      on_error: "raise" refuses a table with bad rows, "skip" leaves them out and counts them.
      repeats: what rows that name a user and an item again come to, see ``odp.datasets.repeats``.
      as_written: True keeps the values as they stand, on no scale: for questions, and for devices, whose tasks say what
        values mean. No scale is guessed.

    Raises:
      ConfigurationError: a field is out of range, or two contradict each other.
    """

    user: str | None = None
    item: str | None = None
    value: str | None = None
    time: str | None = None
    title: str | None = None
    implicit: bool | None = None
    low: float | None = None
    high: float | None = None
    on_error: OnError = "raise"
    repeats: Repeats = "newest"
    as_written: bool = False

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "skip"):
            raise ConfigurationError(f"Expected on_error={self.on_error!r} to be 'raise' or 'skip'")
        checked_repeats(self.repeats)
        if (self.low is None) != (self.high is None):
            raise ConfigurationError("Expected both low and high, or neither: one alone is no scale")
        if self.low is not None and self.high is not None:
            if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
                raise ConfigurationError(f"Expected low={self.low!r} < high={self.high!r}, both finite")
            if self.implicit:
                raise ConfigurationError("Expected no low and high with implicit=True: such values carry no opinion")
        if self.as_written and (self.implicit is not None or self.low is not None):
            raise ConfigurationError("Expected no implicit, low and high with as_written=True: values are on no scale")
        named = [name for name in (self.user, self.item, self.value, self.time, self.title) if name is not None]
        if len(set(named)) < len(named):
            raise ConfigurationError(
                f"Expected user, item, value, time and title to be different columns (got {named})"
            )

    @property
    def roles(self) -> dict[str, str]:
        """The columns by role: "user", "item", and where there are such columns, "value", "time" and "title"."""
        roles = {role: getattr(self, role) for role in _KINDS}
        return {role: name for role, name in roles.items() if name is not None}

    def kind(self, role: str) -> Kind:
        """What the column of a role holds."""
        return _KINDS[role]

    def within(self, names: Sequence[str], *, where: str) -> Columns:
        """The same with every column found among ``names``, the columns of the table ``where``.

        Raises:
          DataError: a named column is missing, there is none of a usual name, or there are several.
        """
        wanted = {"user": self.user, "item": self.item, "value": self.value, "time": self.time}
        by_role: dict[str, str | None] = {}
        taken = {name for name in wanted.values() if name is not None}
        if self.title is not None:
            wanted["title"] = None if self.title == USUAL_TITLE else self.title
        for role, name in wanted.items():
            if name is None:
                free = [column for column in names if column not in taken]
                by_role[role] = guessed(role, _USUAL[role], free, where=where)
                if by_role[role] is None and role in ("user", "item"):
                    raise unrecognised(role, names, where=where)
            elif name not in names:
                raise no_column(name, role, names, where=where)
            else:
                by_role[role] = name
        refuse_doubled(names, by_role.values(), where=where)
        return replace(self, **by_role)  # type: ignore[arg-type]


USUAL_USERS, USUAL_TIMES = _USUAL["user"], _USUAL["time"]


def is_usual(role: str, name: str) -> bool:
    """Whether a column of that role often has this name."""
    return _plain(name) in _USUAL[role]


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def guessed(role: str, usual: Sequence[str], free: Sequence[str], *, where: str) -> str | None:
    """The one column of ``free`` with a usual name; None without any. Raises DataError where there are several."""
    matches = [name for name in free if _plain(name) in usual]
    if role == "title":
        # It is shown alone, so that the first of several usual names is good enough.
        return min(matches, key=lambda name: usual.index(_plain(name)), default=None)
    if len(matches) > 1:
        raise DataError(f"{where}: the {role} could be {' or '.join(map(repr, matches))}; name one with {_way(role)}")
    return matches[0] if matches else None


def unrecognised(role: str, names: Sequence[str], *, where: str) -> DataError:
    """No column of the table has a usual name of a role."""
    labelled = "; a table of labelled examples has a label in its place (--label)" if role == "item" else ""
    return DataError(
        f"{where}: no column of {role}s was recognised; name one with {_way(role)}{labelled}; {_columns(names)}"
    )


def no_column(name: str, role: str, names: Sequence[str], *, where: str) -> DataError:
    """The table lacks a named column."""
    return DataError(f"{where}: no column {name!r} for the {role}{_validate.nearest(name, names)}; {_columns(names)}")


def refuse_doubled(names: Sequence[str], used: Iterable[str | None], *, where: str) -> None:
    """Raises DataError where a column that is read has the name of another one."""
    counts = Counter(names)
    for name in used:
        if name is not None and counts[name] > 1:
            raise DataError(f"{where}: two columns are named {name!r}; rename one of them")


def _way(role: str) -> str:
    return f"{role}=.. (--{role} on the command line)"


def _columns(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:20])
    return f"the columns are {shown}{' and more' if len(names) > 20 else ''}"


@dataclass(frozen=True)
class Scale:
    """What values mean: opinions from ``low`` to ``high``, or "seen" where ``implicit``."""

    implicit: bool
    low: float
    high: float
    guessed: bool

    def __str__(self) -> str:
        if self.implicit:
            return 'implicit: a row says "seen"'
        return "as written" if self == AS_WRITTEN else f"explicit, from {self.low:g} to {self.high:g}"


SEEN = Scale(implicit=True, low=0.0, high=1.0, guessed=False)
#: The largest value that there is.
ANY_VALUE = float(np.finfo(np.float32).max)
AS_WRITTEN = Scale(implicit=False, low=-ANY_VALUE, high=ANY_VALUE, guessed=False)


def scale_of(values: npt.NDArray[Any] | None, columns: Columns, *, where: str) -> Scale:
    """The declared scale, or the usual one that holds all ``values`` (float [rows]); NaN is left out.

    Raises:
      DataError: no usual scale holds the values.
      ConfigurationError: opinions are asked for where no column holds any.
    """
    if values is None:
        if columns.implicit is False or columns.low is not None:
            raise ConfigurationError(f"{where}: explicit ratings need a column of values; name it with {_way('value')}")
        return replace(SEEN, guessed=columns.implicit is None)
    if columns.implicit:
        return SEEN
    if columns.as_written:
        return AS_WRITTEN
    if columns.low is not None and columns.high is not None:
        return Scale(implicit=False, low=columns.low, high=columns.high, guessed=False)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    if columns.implicit is None:
        if finite.size and low == high and high > 0:
            return replace(SEEN, guessed=True)  # one value alone is no opinion
        if low >= 0 and high > _MOST_OPINION and not (finite % 1).any():
            return replace(SEEN, guessed=True)
    for lowest, highest in _SCALES:
        if lowest <= low and high <= highest:
            return Scale(implicit=False, low=lowest, high=highest, guessed=True)
    raise DataError(
        f"{where}: the values of column {columns.value!r} fit no usual scale; declare it with low=.. and high=.. "
        "(--low and --high), or say that they only mean 'seen' with implicit=True (--implicit)"
    )
