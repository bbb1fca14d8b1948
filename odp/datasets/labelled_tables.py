"""Reads labelled examples of many users from a table: the one reader of files and frames, and what its columns hold.

What a column holds follows from the column alone, so that devices and simulations read it alike:

=============================================  ======================================================================
cells of a column                              it is
=============================================  ======================================================================
all numbers, or missing                        numbers, not a number where one is missing
all ``true`` and ``false``                     numbers 1 and 0; of a label, text in lower case
half of them or more numbers                   numbers; other words are bad rows, unless the column is declared text
whole numbers of more digits than 15, ``007``  text, since numbers would lose digits
other words                                    text, as it is written; empty where it is missing
=============================================  ======================================================================

Missing are an empty cell, null, and in numbers NA, N/A, NaN, None and ``?``.

Which columns of a table of labelled examples are the user, the label and the features, and by which names.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.datasets.columns import USUAL_TIMES, USUAL_USERS, OnError, guessed, no_column, refuse_doubled, unrecognised
from odp.datasets.ids import Ids, coded, decoded, used
from odp.datasets.raw_table import Kind, RawTable, arrow
from odp.datasets.row_flaws import DECIMAL_COMMA, NUMBER, BadRows, Flaws, bad_rows, numbers, refusal, unusable
from odp.datasets.table_files import read_file, read_frame
from odp.datasets.tables import stem, times_of
from odp.errors import ConfigurationError, DataError

USUAL_LABELS = ("label", "labels", "target", "class", "outcome", "response", "y")
#: The role of ids; no example has a column of this name.
USER = "user"
#: The role of times; no name of a task has this form.
TIME = "#time"
#: As ``LabelledColumns.time``: the column of a usual name.
USUAL_TIME = "*"

_NO_NAME = re.compile(r"[^a-z0-9_.-]+")
_MOST_CHARACTERS = 64


def column_name(text: str) -> str:
    """The name in a task of a column that a table calls ``text``: "Is spam?" is "is_spam". Empty where none is left."""
    plain = unicodedata.normalize("NFKD", text.strip().lower())
    letters = "".join(letter for letter in plain if not unicodedata.combining(letter))
    return _NO_NAME.sub("_", letters).strip("_.-")[:_MOST_CHARACTERS]


@dataclass(frozen=True, kw_only=True)
class LabelledColumns:
    """How a table of labelled examples is read; ``None`` is "guess by the usual names".

    Attributes:
      user: column of ids of users.
      label: column of labels.
      time: column of times; None reads none.
      text: columns that are text, whatever they look like.
      only: the names of the columns that are read beside the user's; None is all.
      on_error: "raise" refuses a table with bad rows, "skip" leaves them out and counts them.
      by_name: of a table that was looked at, the columns by their names in a task, without the user's and the time's.

    Raises:
      ConfigurationError: two fields contradict each other.
    """

    user: str | None = None
    label: str | None = None
    time: str | None = None
    text: Sequence[str] = ()
    only: Sequence[str] | None = None
    on_error: OnError = "raise"
    by_name: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "skip"):
            raise ConfigurationError(f"Expected on_error={self.on_error!r} to be 'raise' or 'skip'")
        if isinstance(self.text, str) or not all(isinstance(name, str) for name in self.text):
            raise ConfigurationError(f"Expected text={self.text!r} to be names of columns, such as text=('comment',)")
        named = [name for name in (self.user, self.label, self.time) if name is not None]
        if len(set(named)) < len(named):
            raise ConfigurationError(f"Expected user, label and time to be different columns (got {named})")

    @property
    def roles(self) -> dict[str, str]:
        """The columns by role: "user", ``TIME``, and the others by their names in a task."""
        named = {USER: self.user, TIME: self.time}
        return {**{role: name for role, name in named.items() if name is not None}, **self.by_name}

    def kind(self, role: str) -> Kind:
        """Ids of users, and times; others are text where they are declared to be, or else what they look like."""
        if role in (USER, TIME):
            return Kind.ID if role == USER else Kind.TIME
        return Kind.TEXT if self.by_name[role] in self.text else Kind.ANY

    def within(self, names: Sequence[str], *, where: str) -> LabelledColumns:
        """The same with every column found among ``names``, the columns of the table ``where``.

        Raises:
          DataError: a column is missing, has no usual name or no name that a task could give it, or there are several.
        """
        user = self._named(self.user, names, where) if self.user is not None else None
        if user is None:
            user = guessed(USER, USUAL_USERS, [name for name in names if name != self.label], where=where)
        if user is None:
            raise unrecognised(USER, names, where=where)
        time = self._timed([name for name in names if name not in (user, self.label)], names, where)
        others: dict[str, str] = {}
        for name in names:
            if name in (user, time):
                continue
            short = column_name(name)
            if self.only is not None and short not in self.only:
                continue
            if short in others or short == USER or not short:
                of = f"as {others[short]!r} is" if short in others else "the name of ids" if short else "no name"
                raise DataError(
                    f"{where}: column {name!r} would be {short!r} in a task, {of}; rename it, in letters a-z, digits "
                    "and _"
                )
            others[short] = name
        label = self._label(list(others.values()), names, where)
        for role in self.only or ():
            if role not in others:
                raise no_column(role, "task", names, where=where)
        text = [self._named(name, names, where) for name in self.text]
        refuse_doubled(names, (user, time, *others.values()), where=where)
        return replace(self, user=user, label=label, time=time, text=tuple(text), by_name=others)

    def _timed(self, free: Sequence[str], names: Sequence[str], where: str) -> str | None:
        if self.time is None:
            return None
        read = () if self.only is None else self.only
        if self.time == USUAL_TIME:
            time = guessed("time", USUAL_TIMES, [name for name in free if column_name(name) not in read], where=where)
            if time is None:
                raise unrecognised("time", names, where=where)
            return time
        time = self._named(self.time, names, where)
        if column_name(time) in read:
            raise DataError(f"{where}: column {time!r} is read by the task and cannot be the time; add a copy of it")
        return time

    def _label(self, others: Sequence[str], names: Sequence[str], where: str) -> str:
        label = None if self.label is None else self._named(self.label, names, where)
        if label is None:
            label = guessed("label", USUAL_LABELS, others, where=where)
        if label is None:
            raise unrecognised("label", names, where=where)
        if label not in others:
            raise DataError(f"{where}: column {label!r} is the user's or the time's, and cannot be the label")
        return label

    def _named(self, name: str, names: Sequence[str], where: str) -> str:
        """The column that is called so in the table or in a task."""
        if name in names:
            return name
        for column in names:
            if column_name(column) == name:
                return column
        roles = {self.user: "user", self.label: "label", self.time: "time"}
        raise no_column(name, roles.get(name, "text"), names, where=where)

    @property
    def label_name(self) -> str:
        """The label's name in a task, of columns that were found."""
        return next(name for name, column in self.by_name.items() if column == self.label)


def labelled_options(options: Mapping[str, object]) -> LabelledColumns:
    """The settings of a table. Raises ConfigurationError for an option that a table of examples does not have."""
    _validate.known_keys(
        options, ("user", "label", "time", "text", "on_error"), where="the options of labelled examples"
    )
    return LabelledColumns(**options)  # type: ignore[arg-type]


_MISSING = ("", "na", "n/a", "nan", "null", "none", "?")
_TRUE, _FALSE = "true", "false"
_LOSES_DIGITS = r"^\s*[+-]?(0\d.*|\d{16,})\s*$"
_WHOLE = r"^-?\d+$"
_EXACT = 1e15
"""Text of more digits than 15 is no number: whole numbers of other types become text from here on, where some lack."""
_MOST_TEXT_BYTES = 2**31


@dataclass(frozen=True, eq=False, repr=False)
class LabelledTable:
    """What was read of one table.

    Attributes:
      name: what reports call it.
      where: the table in messages.
      columns: with the names that were found.
      values: the label and the features by their names in a task, numbers or text [n].
      users: int64 [n], whose each row is: a place in ``user_ids``.
      user_ids: in their order.
      rows: rows of the table, with the bad ones.
      bad: rows that were left out.
      place: what messages call a row of ``values``.
      notes: what the owner of the table has to know of how it was read.
      times: when each row happened, numbers [n]; None where no column of times was asked for.
      time_unit: what they count from 1970 on, where they were dates.
    """

    name: str
    where: str
    columns: LabelledColumns
    values: Mapping[str, npt.NDArray[Any]]
    users: npt.NDArray[np.int64]
    user_ids: Ids
    rows: int
    bad: BadRows
    place: Callable[[int], str]
    notes: tuple[str, ...]
    times: npt.NDArray[Any] | None = None
    time_unit: str | None = None

    def __repr__(self) -> str:
        """Names and sizes only: what a person has stays out of logs and tracebacks."""
        return f"LabelledTable({self.name!r}, {len(self.user_ids)} users, {len(self.users)} rows)"


def read_labelled(source: object, columns: LabelledColumns, *, name: str | None = None) -> LabelledTable:
    """Reads a file (CSV, TSV, Parquet, JSON lines) or a data frame (pandas, Polars, Arrow).

    Raises:
      DataError: it is no table, a column is missing, or rows are bad and ``columns.on_error`` is "raise".
      ConfigurationError: ``pyarrow`` is missing.
    """
    if isinstance(source, (str, Path)):
        path = Path(source).expanduser()
        return _assembled(read_file(path, columns), name or stem(path))
    return _assembled(read_frame(source, columns, name=name or "dataframe"), name or "dataframe")


def _assembled(raw: RawTable[LabelledColumns], name: str) -> LabelledTable:
    columns, where = raw.columns, raw.where
    flaws = Flaws(len(raw.parts[USER]))
    titles = columns.roles
    ids, codes = coded(raw.parts.pop(USER), where=f"{where}: column {titles[USER]!r}", place=raw.place)
    flaws.add(codes < 0, f"no user (column {titles[USER]!r})")
    times, unit = None, None
    if TIME in raw.parts:
        times, unit = times_of(raw.parts.pop(TIME), titles[TIME], where, flaws)
    values = {}
    for role in list(raw.parts):
        column = decoded(raw.parts.pop(role))
        words = columns.kind(role) is Kind.TEXT
        values[role] = _values(column, titles[role], where, flaws, words=words, label=titles[role] == columns.label)
    report = bad_rows(raw, flaws)
    rows = len(codes) + len(raw.broken)
    if report.total and columns.on_error == "raise":
        refused = refusal(raw, report, rows)
        hint = ""
        if any("no number as a value" in why for why, _, _ in report.reasons):
            hint = "; a column of words and numbers is declared with text=('NAME',) (--text NAME)"
        raise DataError(f"{refused}{hint}")
    good_rows = None if flaws.bad is None else np.flatnonzero(~flaws.bad)
    if flaws.bad is not None:
        codes = codes[~flaws.bad]
        values = {role: column[~flaws.bad] for role, column in values.items()}
        times = None if times is None else times[~flaws.bad]
    if not len(codes):
        raise unusable(raw, report.lines(), expected="example")
    ids, codes = used(ids, codes)
    notes = [f"{report.total:,} bad rows were left out: {'; '.join(report.lines())}"] if report.total else []

    def place(row: int) -> str:
        return raw.place(row if good_rows is None else int(good_rows[row]))

    return LabelledTable(
        name, where, columns, values, codes.astype(np.int64), ids, rows, report, place, (*notes, *raw.notes), times,
        unit,
    )  # fmt: skip


def is_missing_word(text: str) -> bool:
    """Whether a cell of a column of numbers that holds ``text`` is missing."""
    return text.strip().lower() in _MISSING


def is_plain_number(text: str) -> bool:
    """Whether a cell is a number in each column, whatever the others hold."""
    return re.match(NUMBER, text) is not None and re.match(_LOSES_DIGITS, text) is None


def _values(column: Any, title: str, where: str, flaws: Flaws, *, words: bool, label: bool) -> npt.NDArray[Any]:
    pa = arrow()
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        raise DataError(f"{where}: column {title!r} is of type {kind}; write one number or text per row")
    if pa.types.is_temporal(kind) or (pa.types.is_boolean(kind) and (label or words)):
        return _texts(column.cast(pa.string()), title, where)
    if not pa.types.is_string(kind):
        if words:
            return _texts(column.cast(pa.string()), title, where)
        whole = pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0)
        if pa.types.is_integer(kind) and not column.null_count:
            exact: npt.NDArray[Any] = column.to_numpy()
            return exact
        if whole and pc.any(pc.greater(pc.abs(column.cast(pa.float64(), safe=False)), _EXACT)).as_py():
            return _texts(column.cast(pa.string()), title, where)
        return numbers(column, title, where, flaws, missing=True)
    if words:
        return _texts(column, title, where)
    lower = pc.utf8_lower(pc.utf8_trim_whitespace(column)).fill_null("")
    missing = pc.is_in(lower, pa.array(_MISSING))
    present = len(column) - pc.sum(missing).as_py() if len(column) else 0
    truth = pc.is_in(lower, pa.array((_TRUE, _FALSE)))
    if present and pc.sum(truth).as_py() == present:
        if label:
            return _texts(pc.if_else(missing, "", lower), title, where)
        return numbers(_digits(lower, missing), title, where, flaws, missing=True)
    if pc.any(pc.match_substring_regex(lower, _LOSES_DIGITS)).as_py():
        return _texts(column, title, where)
    shaped = pc.or_(pc.match_substring_regex(lower, NUMBER), pc.match_substring_regex(lower, DECIMAL_COMMA))
    if present and 2 * pc.sum(shaped).as_py() < present:
        return _texts(column, title, where)
    if present == len(column) and pc.all(pc.match_substring_regex(lower, _WHOLE)).as_py():
        return np.asarray(lower.cast(pa.int64()))
    return numbers(pc.if_else(missing, pa.scalar(None, pa.string()), lower), title, where, flaws, missing=True)


def _digits(lower: Any, missing: Any) -> Any:
    pa = arrow()
    import pyarrow.compute as pc

    return pc.if_else(missing, pa.scalar(None, pa.string()), pc.if_else(pc.equal(lower, _TRUE), "1", "0"))


def _texts(column: Any, title: str, where: str) -> npt.NDArray[Any]:
    """Text of fixed width, as stores and files of arrays hold it; empty where it is missing."""
    import pyarrow.compute as pc

    column = column.fill_null("")
    longest = pc.max(pc.utf8_length(column)).as_py() or 1
    if 4 * longest * len(column) > _MOST_TEXT_BYTES:
        raise DataError(
            f"{where}: column {title!r} has a text of {longest:,} characters, and {len(column):,} rows of that width "
            f"take more than {_MOST_TEXT_BYTES // 2**30} GiB; shorten the longest texts, or take the column out"
        )
    return np.array(column.to_pylist(), dtype=f"U{max(longest, 1)}")
