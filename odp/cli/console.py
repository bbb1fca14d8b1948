"""What commands share on the terminal: results on stdout, progress and notes on stderr, errors as one line.

With ``--json`` or ``--csv`` stdout holds that form alone, and tables go to stderr.
"""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from odp.cli.streams import require_encodable

if TYPE_CHECKING:
    from rich.console import Console

#: What "interrupted" says besides, set by the command that runs.
_resume: list[str] = []
#: Whether this process's command was given ``--csv``.
_as_csv: list[bool] = []


def console() -> Console:
    """A console on stderr, for progress and notes; NO_COLOR and a pipe turn colour off (rich looks at both)."""
    return _console(stderr=True)


def results_console(*, machine: bool = False) -> Console:
    """A console for what a command found: stdout, or stderr with ``machine``, where stdout is for JSON or CSV alone."""
    return _console(stderr=machine)


def _console(*, stderr: bool) -> Console:
    from odp.cli.folding import FoldingConsole

    return FoldingConsole(stderr=stderr)


def print_json(value: object, *, rows: Sequence[Mapping[str, Any]] | None = None) -> None:
    """One JSON object as the last line of stdout, or with ``--csv`` its rows.

    Args:
      value: plain values.
      rows: the rows of the CSV form; by default the one list of objects in ``value``, or else ``value`` as one row.
    """
    if _as_csv:
        text = csv_text(rows_of(value) if rows is None else rows)
        require_encodable(text)
        sys.stdout.write(text)
    else:
        sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")
    sys.stdout.flush()


def choose_csv(chosen: bool) -> None:
    """Makes ``print_json`` print CSV, or JSON again."""
    _as_csv[:] = [True] if chosen else []


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """CSV as of RFC 4180 with a header line, numbers not rounded; nested names are joined by dots, lists are JSON.

    Columns come in the order in which the rows first have them; a row that lacks one leaves it empty.
    """
    flat = [dict(_flat(row)) for row in rows]
    header = list(dict.fromkeys(name for row in flat for name in row))
    written = io.StringIO()
    writer = csv.writer(written)
    if header:
        writer.writerow(header)
    writer.writerows([row.get(name, "") for name in header] for row in flat)
    return written.getvalue()


def _flat(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, (list, tuple)):
            yield f"{prefix}{name}", json.dumps(value)
        elif isinstance(value, bool):
            yield f"{prefix}{name}", "true" if value else "false"
        else:
            missing = value is None or (isinstance(value, float) and math.isnan(value))
            yield f"{prefix}{name}", "" if missing else value


def rows_of(value: object) -> Sequence[Mapping[str, Any]]:
    """The rows of plain values in CSV: the one list of objects in them, or else all of them as one row."""
    if isinstance(value, list):
        return [entry if isinstance(entry, Mapping) else {"value": entry} for entry in value]
    assert isinstance(value, Mapping)
    lists = [part for part in value.values() if isinstance(part, list) and part and isinstance(part[0], Mapping)]
    return lists[0] if len(lists) == 1 else [value]


def print_text(text: str) -> None:
    """A result as plain text on stdout."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def print_error(message: str) -> None:
    """One line on stderr."""
    sys.stderr.write(f"odp: {' '.join(message.split())}\n")
    sys.stderr.flush()


def resume_with(hint: str) -> None:
    """What a person who interrupts this command is told to do."""
    _resume[:] = [hint]


def interrupted() -> str:
    """The line for a command that was interrupted."""
    return "; ".join(["interrupted", *_resume])
