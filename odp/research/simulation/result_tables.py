"""Results as tables: for a terminal, a notebook, a spreadsheet and a page; the same rows in each."""

from __future__ import annotations

import csv
import html
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from odp.errors import DataError


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns: words to the left, numbers to the right."""
    cells = [[row[place] for row in rows] for place in range(len(head))]
    widths = [max(len(cell) for cell in (name, *column)) for name, column in zip(head, cells, strict=True)]
    words = [not any(_is_number(cell) for cell in column) for column in cells]

    def line(row: Sequence[str]) -> str:
        placed = zip(row, widths, words, strict=True)
        return "  ".join(cell.ljust(width) if word else cell.rjust(width) for cell, width, word in placed).rstrip()

    return "\n".join([line(head), "  ".join("-" * width for width in widths), *map(line, rows)])


def _is_number(cell: str) -> bool:
    try:
        float(cell.lstrip("*"))
    except ValueError:
        return False
    return True


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same as HTML."""
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def write_page(path: str | os.PathLike[str], text: str) -> Path:
    """Writes a whole page of HTML, and returns its path. Raises DataError."""
    return _write(path, text)


def write_csv(path: str | os.PathLike[str], rows: Sequence[Mapping[str, object]]) -> Path:
    """Writes rows with the same keys as a CSV file, and returns its path; None is an empty cell. Raises DataError."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return _write(path, text.getvalue())


def _write(path: str | os.PathLike[str], text: str) -> Path:
    file = Path(path)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise DataError(f"{file}: cannot be written: {error.strerror or error}; give another path") from None
    return file
