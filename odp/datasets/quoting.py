"""What the quotes of a text table mean, found by looking at all of them before a row is read.

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

import re
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from odp.datasets.text_source import TextSource
from odp.errors import DataError

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
