"""Reads CSV, TSV and their relatives, such as the files of MovieLens, by Apache Arrow.

A file is looked at once for what its quotes mean, and read twice at most: at full speed, and line by line in order
where the first reading met a bad row.

What the quotes of a text table mean, found by looking at all of them before a row is read.

==========  ==========================================================================================================
quotes      where
==========  ==========================================================================================================
``LINES``   each line has whole fields: one that begins with a quote ends with one (RFC 4180), others have no meaning
``SPANS``   every quote of the file begins or ends a field or is doubled inside of one, and fields go over line ends
``TEXT``    neither, and tabs separate fields: tables with tabs have no quotes (IANA text/tab-separated-values)
==========  ==========================================================================================================

Anything else is refused by its line, and so is a field over several lines each of which would be a row as well: which
rows there are is then a matter of taste, and a wrong guess gives one person's value to another.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

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


_QUOTE, _LF, _CR = b'"\n\r'
_NUMBER = re.compile(rb"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*")
Bools = npt.NDArray[np.bool_]


class Quotes(Enum):
    """What quotes mean; see the module."""

    NONE = 0
    LINES = 1
    SPANS = 2
    TEXT = 3


@dataclass(frozen=True)
class Quoting:
    """What quotes of a table mean.

    Attributes:
      quotes: see the module.
      joined: line ends that are inside of a field.
      first: the line of the first of them, from 1; 0 without any.
    """

    quotes: Quotes = Quotes.NONE
    joined: int = 0
    first: int = 0


def quoting_of(source: TextSource, delimiter: str, columns: int, numbers: tuple[int, ...]) -> Quoting:
    """Reads the whole text once, or twice where quotes do not pair within each line.

    Args:
      source: the table.
      delimiter: between two fields, one byte.
      columns: fields of a row.
      numbers: which of them are numbers, from 0.

    Raises:
      DataError: the file is not text, or its quotes mean nothing that is certain; the message has the line.
    """
    present, paired = False, True
    for block in source.blocks():
        if b'"' in block:
            present, paired = True, paired and _paired(block, ord(delimiter))
    if paired:
        return Quoting(Quotes.LINES if present else Quotes.NONE)
    survey = _Survey(ord(delimiter), columns, numbers)
    for block in source.blocks():
        survey.add(block)
    return survey.decide(source)


def _paired(block: bytes, delimiter: int) -> bool:
    """Whether each quote of whole lines begins or ends a field, or is doubled inside of one, within its line."""
    codes = np.frombuffer(block, dtype=np.uint8)
    marks = (codes == _QUOTE) | (codes == _LF)
    if b"\r" in block:
        marks |= codes == _CR
    places = np.flatnonzero(marks)
    quotes = codes[places] == _QUOTE
    if (np.cumsum(quotes, dtype=np.uint8)[~quotes] & 1).any():
        return False
    places = places[quotes]
    may_enclose = np.zeros(256, dtype=np.bool_)
    may_enclose[[_LF, _CR, _QUOTE, delimiter]] = True
    # Blocks end with a line end, which is the byte before the first as well.
    return bool(may_enclose[codes[places[::2] - 1]].all() and may_enclose[codes[places[1::2] + 1]].all())


def record_lines(source: TextSource, quoting: Quoting) -> npt.NDArray[np.int64]:
    """The line, from 1, where each record begins: int64 [records], the header among them; blank lines are none."""
    starts_at: list[npt.NDArray[np.int64]] = []
    line, inside = 1, False
    for block in source.blocks():
        codes = np.frombuffer(block, dtype=np.uint8)
        ends = _line_ends(codes)
        starts = np.concatenate(([0], ends[:-1] + 1))
        # A line of nothing but a carriage return is blank, too.
        blank = (ends == starts) | ((ends == starts + 1) & (codes[starts] == _CR))
        begins = ~blank
        if quoting.quotes is Quotes.SPANS:
            after = _inside_at(ends, np.flatnonzero(codes == _QUOTE), inside)
            begins &= ~np.concatenate(([inside], after[:-1]))
            inside = bool(after[-1])
        starts_at.append(line + np.flatnonzero(begins))
        line += len(ends)
    return np.concatenate(starts_at) if starts_at else np.empty(0, dtype=np.int64)


def _line_ends(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Places of line feeds, and of carriage returns alone."""
    returns = np.flatnonzero(codes == _CR)
    following = np.append(codes[1:], 0)[returns] if len(returns) else returns
    alone = returns[following != _LF]
    ends = np.flatnonzero(codes == _LF)
    return np.sort(np.concatenate((ends, alone))) if len(alone) else ends


def _inside_at(ends: npt.NDArray[np.int64], quotes: npt.NDArray[np.int64], inside: bool) -> Bools:
    """Whether each line end is inside of a field, if every quote begins or ends one."""
    parity: Bools = (np.searchsorted(quotes, ends) + int(inside)) % 2 == 1
    return parity


class _Survey:
    """Both readings of the quotes of a file, line by line and over lines, for as long as they are possible."""

    def __init__(self, delimiter: int, columns: int, numbers: tuple[int, ...]) -> None:
        self.delimiter, self.columns, self.numbers = bytes([delimiter]), columns, numbers
        mark = re.escape(self.delimiter)
        field = rb'(?:"(?:[^"]|"")*+"|(?!")[^' + mark + rb"]*+)"
        self.whole = re.compile(field + rb"(?:" + mark + field + rb")*+", re.DOTALL)
        self.by_line, self.first_open = True, 0
        self.over_lines, self.inside = True, False
        self.joined = self.first_joined = 0
        self.line = 1
        # Of the field over lines that is open at the end of a block: its first line, and whether each line is a row.
        self.open_line, self.open_rows = 0, False
        self.ambiguous: tuple[int, int] | None = None

    def add(self, block: bytes) -> None:
        lines = block.count(b"\n")
        if b'"' in block or self.inside:
            codes = np.frombuffer(block, dtype=np.uint8)
            ends = _line_ends(codes)
            lines = len(ends)
            if self.by_line or self.over_lines:
                self._look(block, codes, ends, np.flatnonzero(codes == _QUOTE))
        self.line += lines

    def _look(self, block: bytes, codes: npt.NDArray[np.uint8], ends: Any, quotes: Any) -> None:
        # Blocks are whole lines, so that a quote has a byte after it; the first byte begins a field.
        boundary = np.zeros(256, dtype=np.bool_)
        boundary[[_LF, _CR, self.delimiter[0]]] = True
        before = boundary[codes[quotes - 1]]
        if len(quotes) and quotes[0] == 0:
            before[0] = True
        adjacent = np.diff(quotes) == 1
        begins = before | np.concatenate(([False], adjacent))[: len(quotes)]
        finishes = boundary[codes[quotes + 1]] | np.concatenate((adjacent, [False]))[: len(quotes)]
        place = np.arange(len(quotes))
        if self.by_line:
            lines = np.searchsorted(ends, quotes)
            first = np.searchsorted(lines, lines)
            fine = np.where((place - first) % 2 == 0, begins, finishes)
            odd = np.bincount(lines, minlength=len(ends)) % 2 == 1
            odd[lines[~fine]] = True
            self._match(block, ends, np.flatnonzero(odd))
        if self.over_lines:
            self.over_lines = bool(np.where((place + int(self.inside)) % 2 == 0, begins, finishes).all())
            inside = _inside_at(ends, quotes, self.inside)
            self._join(block, codes, ends, inside)
            self.inside = bool(inside[-1])

    def _match(self, block: bytes, ends: Any, lines: Any) -> None:
        """Looks field by field at the lines whose quotes do not pair."""
        for number in lines.tolist():
            start = int(ends[number - 1]) + 1 if number else 0
            if not self.whole.fullmatch(block[start : int(ends[number])].rstrip(b"\r")):
                self.by_line, self.first_open = False, self.line + number
                return

    def _join(self, block: bytes, codes: npt.NDArray[np.uint8], ends: Any, inside: Bools) -> None:
        """Counts the lines that a quote joins, and finds fields each of whose lines would be a row."""
        continued = np.concatenate(([self.inside], inside[:-1]))
        members = np.flatnonzero(inside | continued)
        if not len(members):
            return
        if not self.joined:
            self.first_joined = self.line + int(np.argmax(inside))
        self.joined += int(inside.sum())
        marks = np.flatnonzero(codes == self.delimiter[0])
        starts = np.concatenate(([0], ends[:-1] + 1))
        counts = np.searchsorted(marks, ends[members]) - np.searchsorted(marks, starts[members])
        for number, exact in zip(members.tolist(), (counts == self.columns - 1).tolist(), strict=True):
            row = exact and self._is_row(block[int(starts[number]) : int(ends[number])])
            if not continued[number]:
                self.open_line, self.open_rows = self.line + number, True
            self.open_rows &= row
            if not inside[number] and self.open_rows and self.ambiguous is None:
                self.ambiguous = (self.open_line, self.line + number)

    def _is_row(self, line: bytes) -> bool:
        """Whether a line with the fields of a row looks like one: prose has commas, but neither tabs nor ratings."""
        if self.delimiter == b"\t":
            return True
        fields = line.split(self.delimiter)
        return bool(self.numbers) and all(_NUMBER.fullmatch(fields[place]) for place in self.numbers)

    def decide(self, source: TextSource) -> Quoting:
        if self.by_line:
            return Quoting(Quotes.LINES)
        if self.over_lines and not self.inside:
            if self.ambiguous is not None:
                first, last = self.ambiguous
                raise DataError(
                    f"{source.path}:{first}: lines {first} to {last} are one row if the quote begins a field, and "
                    f"{last - first + 1} rows if it is text; put a field with a quote in quotes and double the quote"
                )
            return Quoting(Quotes.SPANS, self.joined, self.first_joined)
        if self.delimiter == b"\t":
            return Quoting(Quotes.TEXT)
        raise DataError(
            f"{source.path}:{self.first_open}: a field begins with a quote and does not end with one; put a field with "
            "a quote in quotes and double the quote"
        )
