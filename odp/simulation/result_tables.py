"""Results as tables: for a terminal, a notebook, a spreadsheet and a page; the same rows in each."""

from __future__ import annotations

import csv
import html
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from odp.errors import DataError

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "table{border-collapse:collapse}th,td{padding:.2rem .8rem;border-bottom:1px solid #8884;text-align:right}"
    "th:first-child,td:first-child{text-align:left}svg,img{max-width:100%;height:auto}"
)


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


def write_page(path: str | os.PathLike[str], *, title: str, parts: Sequence[str]) -> Path:
    """Writes a self-contained page of HTML ``parts``, and returns its path. Raises DataError."""
    name = html.escape(title)
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{name}</title>'
    body = "\n".join([f"<h1>{name}</h1>", *parts])
    whole = f"<head>{head}<style>{_STYLE}</style></head>\n<body>\n{body}\n</body>"
    page = f'<!doctype html>\n<html lang="en">{whole}</html>\n'
    return _write(path, page)


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
