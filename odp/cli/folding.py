"""A console whose tables fit its width: words are wrapped, and no header and no number is cut or broken.

A table too wide for that even when each column is as narrow as its words allow comes as several tables, one below the
other: each repeats the first column.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from typing import IO, Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

#: Of stdout and stderr that are no terminal, unless COLUMNS says otherwise.
_WIDTH = 80
#: A cell of digits up to this width stays on one line, its unit and its interval with it.
_LONGEST_NUMBER = 20
#: A word longer than this, such as a digest or a path, may be folded.
_LONGEST_WORD = 24


class FoldingConsole(Console):
    """On stdout, or on stderr."""

    def __init__(self, *, stderr: bool) -> None:
        super().__init__(stderr=stderr, highlight=False)
        if not self.is_terminal:
            # rich would take the width of a terminal that another stream of the process has.
            self.width = _columns()

    @property
    def stream(self) -> IO[str]:
        """Where it writes."""
        return self.file

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich prints; tables are made to fit."""
        shown: list[Any] = []
        for renderable in objects:
            shown += fitting(renderable, self.width) if isinstance(renderable, Table) else [renderable]
        super().print(*shown, **options)


def _columns() -> int:
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isascii() and columns.isdigit() and int(columns) > 0 else _WIDTH


def fitting(table: Table, width: int) -> list[Table]:
    """Tables with the cells of ``table``, none wider than ``width`` where the words of two columns fit into it."""
    columns = table.columns
    if not columns:
        return [table]
    wanted = [max(map(_length, _texts(column)), default=0) for column in columns]
    least = [min(wide, _least(column)) for column, wide in zip(columns, wanted, strict=True)]
    heads = [max(low, _length(_plain(column.header))) for low, column in zip(least, columns, strict=True)]
    parts: list[Any] = []
    groups = _groups(least, width)
    for group in groups:
        content_width = width - _overhead(len(group))
        part = copy.copy(table)
        part.columns = [_copied(columns[index], place) for place, index in enumerate(group)]
        # Headers stay on one line where there is room for that.
        lows = heads if sum(heads[index] for index in group) <= content_width else least
        sizes = _widths([lows[index] for index in group], [wanted[index] for index in group], content_width)
        for column, size in zip(part.columns, sizes, strict=True):
            column.width, column.overflow, column.no_wrap = size, "fold", False
        part.title = table.title if group is groups[0] else None
        part.caption = table.caption if group is groups[-1] else None
        parts.append(part)
    return parts


def _groups(least: Sequence[int], width: int) -> list[list[int]]:
    """Indices of the columns of each table; the first column is in all of them."""
    groups, group = [], [0]
    for index in range(1, len(least)):
        if len(group) > 1 and sum(least[column] for column in [*group, index]) + _overhead(len(group) + 1) > width:
            groups.append(group)
            group = [0]
        group.append(index)
    return [*groups, group]


def _widths(least: Sequence[int], wanted: Sequence[int], total: int) -> list[int]:
    """Widths from ``least`` to ``wanted`` that fill ``total`` together; below ``least`` only where those do not fit."""
    if sum(wanted) <= total:
        return list(wanted)
    sizes = list(least)
    while sum(sizes) > total and max(sizes) > 1:
        sizes[sizes.index(max(sizes))] -= 1
    while sum(sizes) < total:
        behind = [full / size if size else 0.0 for full, size in zip(wanted, sizes, strict=True)]
        sizes[behind.index(max(behind))] += 1
    return sizes


def _overhead(columns: int) -> int:
    """Characters of a row that are borders and padding."""
    return 3 * columns + 1


def _copied(column: Column, place: int) -> Column:
    made = copy.copy(column)
    made._index = place
    return made


def _texts(column: Column) -> list[str]:
    return [_plain(cell) for cell in (column.header, *column._cells, column.footer)]


def _plain(cell: object) -> str:
    if isinstance(cell, str):
        return Text.from_markup(cell).plain
    return cell.plain if isinstance(cell, Text) else str(cell)


def _length(text: str) -> int:
    return max(map(cell_len, text.splitlines()), default=0)


def _least(column: Column) -> int:
    """The width that breaks no word and no number of the column."""
    least = 1
    for text in _texts(column):
        number = text.lstrip("-−±<≤ ")[:1].isdigit() and cell_len(text) <= _LONGEST_NUMBER
        words = [text] if number else text.split()
        least = max(least, *(min(cell_len(word), _LONGEST_WORD) for word in words), 1)
    return least
