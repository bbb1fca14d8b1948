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
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from odp.datasets.id_columns import coded, decoded, used
from odp.datasets.ids import Ids
from odp.datasets.labelled_columns import TIME, USER, LabelledColumns
from odp.datasets.raw_table import Kind, RawTable, arrow
from odp.datasets.row_flaws import DECIMAL_COMMA, NUMBER, BadRows, Flaws, bad_rows, numbers, refusal, unusable
from odp.datasets.table_files import read_file, read_frame
from odp.datasets.tables import stem
from odp.datasets.time_columns import times_of
from odp.errors import DataError

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
