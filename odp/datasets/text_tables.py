"""Reads CSV, TSV and their relatives, such as the files of MovieLens, by Apache Arrow.

A file is looked at once for what its quotes mean, and read twice at most: at full speed, and line by line in order
where the first reading met a bad row.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from odp.datasets.quoting import Quotes, Quoting, quoting_of, record_lines
from odp.datasets.raw_table import Broken, C, Kind, RawTable, TableColumns, arrow
from odp.datasets.text_source import TextSource
from odp.errors import DataError

_DELIMITERS = (",", "\t", ";", "|")
_BLOCK = 2**24


@dataclass(frozen=True)
class TextForm:
    """A form of text whose columns are known.

    Attributes:
      names: of the columns.
      separator: between two fields.
      header: whether the first line has the names.
      shown: what messages call a line of it.
    """

    names: tuple[str, ...]
    separator: bytes
    header: bool
    shown: str


@dataclass(frozen=True)
class _Plan:
    """How a text is read."""

    source: TextSource
    delimiter: str
    quoting: Quoting
    names: list[str]
    header: bool
    shown: str

    def lines(self) -> npt.NDArray[np.int64]:
        """Of the records, without the header."""
        return record_lines(self.source, self.quoting)[int(self.header) :]


def read_text(path: Path, columns: C, form: TextForm | None = None) -> RawTable[C]:
    """The columns of a text table, whose form is recognised unless ``form`` says it.

    Raises:
      DataError: the file is no text, no table, or lacks a column, or its quotes mean nothing that is certain.
    """
    pa = arrow()
    source = TextSource.at(path, None if form is None else form.separator)
    names, delimiter = _recognised(source, columns) if form is None else _checked_form(source, form)
    columns = columns.within(names, where=str(path))
    roles = columns.roles
    kinds = (Kind.RATING, Kind.NUMBER)
    numbers = tuple(names.index(name) for role, name in roles.items() if columns.kind(role) in kinds)
    plan = _Plan(
        source,
        delimiter,
        quoting_of(source, delimiter, len(names), numbers),
        names,
        form is None or form.header,
        "the header" if form is None else form.shown,
    )
    broken: list[tuple[int, int, int]] = []
    try:
        table = _table(plan, columns, strict=True)
    except pa.ArrowInvalid:
        # In order, so that rows are numbered, and values as text.
        if not len(plan.lines()):
            raise DataError(f"{path}: holds no rows; expected rows after the header line") from None
        table = _table(plan, columns, strict=False, broken=broken)
    parts = {role: table.column(name) for role, name in roles.items()}
    if plan.quoting.quotes is Quotes.TEXT:
        _refuse_quoted({role: part for role, part in parts.items() if columns.kind(role) is Kind.ID}, path)
    return RawTable(str(path), columns, parts, "line", *_places(plan, broken), notes=_notes(plan.quoting))


def column_names(source: TextSource, delimiter: str) -> list[str]:
    """Of the first line. Raises DataError where it is not text."""
    return next(csv.reader([source.head()], delimiter=delimiter))


def _recognised(source: TextSource, columns: TableColumns) -> tuple[list[str], str]:
    """(names of the columns, delimiter), from the first line: the most frequent delimiter that makes the columns."""
    line = source.head()
    failed: DataError | None = None
    for delimiter in sorted(filter(line.count, _DELIMITERS), key=line.count, reverse=True):
        names = column_names(source, delimiter)
        if all(_is_number(name) for name in names):
            raise DataError(
                f"{source.path}:1: the first line holds numbers; add a header line such as user,item,rating"
            )
        try:
            columns.within(names, where=str(source.path))
        except DataError as error:
            failed = failed or error
        else:
            return names, delimiter
    raise failed or DataError(
        f"{source.path}:1: one column only; expected at least a user and an item, separated by , tab ; or |"
    )


def _checked_form(source: TextSource, form: TextForm) -> tuple[list[str], str]:
    if form.header and column_names(source, form.separator.decode()) != list(form.names):
        raise DataError(f"{source.path}:1: expected the header line {form.shown!r}")
    return list(form.names), source.delimiter or form.separator.decode()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _table(
    plan: _Plan, columns: TableColumns, *, strict: bool, broken: list[tuple[int, int, int]] | None = None
) -> Any:
    pa = arrow()
    import pyarrow.csv as pa_csv

    def on_invalid(row: Any) -> str:
        assert broken is not None
        broken.append((row.number, row.expected_columns, row.actual_columns))
        return "skip"

    roles = columns.roles
    ids = pa.dictionary(pa.int32(), pa.string())
    ratings = pa.float32() if strict else pa.string()
    as_kind = {Kind.ID: ids, Kind.TITLE: ids, Kind.RATING: ratings, Kind.TIME: pa.string()}
    kinds = {name: columns.kind(role) for role, name in roles.items()}
    types = {name: as_kind.get(kind, pa.string()) for name, kind in kinds.items() if not (strict and kind is Kind.TIME)}
    read = pa_csv.ReadOptions(use_threads=strict, block_size=_BLOCK, column_names=None if plan.header else plan.names)
    quotes = plan.quoting.quotes
    parse = pa_csv.ParseOptions(
        delimiter=plan.delimiter,
        quote_char='"' if quotes in (Quotes.LINES, Quotes.SPANS) else False,
        newlines_in_values=quotes is Quotes.SPANS,
        invalid_row_handler=None if strict else on_invalid,
    )
    convert = pa_csv.ConvertOptions(include_columns=list(roles.values()), column_types=types)
    # A block at a time: reading all at once holds the text of most blocks beside their columns.
    with pa_csv.open_csv(
        plan.source.for_arrow(), read_options=read, parse_options=parse, convert_options=convert
    ) as reader:
        return pa.Table.from_batches(list(reader), schema=reader.schema)


def _places(
    plan: _Plan, broken: list[tuple[int, int, int]]
) -> tuple[Callable[[], npt.NDArray[np.int64]], tuple[Broken, ...]]:
    """(the lines of the rows that were read, the rows that were not)."""
    if not broken:
        return plan.lines, ()
    lines = plan.lines()
    # Arrow numbers rows from 1, the header among them.
    absent = [number - 1 - int(plan.header) for number, _, _ in broken]
    return lambda: np.delete(lines, absent), tuple(
        Broken(int(lines[place]), f"{actual} fields where {plan.shown} has {expected}")
        for place, (_, expected, actual) in zip(absent, broken, strict=True)
    )


def _refuse_quoted(parts: dict[str, Any], path: Path) -> None:
    """Raises DataError where quotes are text, and an id has them on both sides as if they were not."""
    import pyarrow.compute as pc

    for role, part in parts.items():
        for chunk in part.chunks:
            if pc.any(pc.match_substring_regex(chunk.dictionary, '^".*"$')).as_py():
                raise DataError(
                    f"{path}: quotes are around some {role}s, and others in the file do not pair; put a field with a "
                    "quote in quotes and double the quote, or write no quotes"
                )


def _notes(quoting: Quoting) -> tuple[str, ...]:
    if quoting.quotes is Quotes.TEXT:
        return ("quotes are read as text: they do not pair, and tabs separate the fields",)
    if quoting.joined:
        return (
            f"{quoting.joined:,} lines go on in the next one, inside of quotes (the first is line {quoting.first})",
        )
    return ()
