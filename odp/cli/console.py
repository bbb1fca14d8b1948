"""What commands share on the terminal: results on stdout, progress and notes on stderr, errors as one line.

With ``--json`` or ``--csv`` stdout holds that form alone, and tables go to stderr.

The standard streams of a command: a closed, full or narrow one is no internal error.

==========================  ============================================================================
stdout                      what happens
==========================  ============================================================================
its reader is gone (head)   the command ends without a word, with the exit code of a broken pipe, 141
closed, or the disk full    one line on stderr, exit code 1
no Unicode                  a character that it lacks is escaped; CSV is refused, since names would change
==========================  ============================================================================

How far a command is: a bar on a terminal, and one plain line per step where stderr is a file or a pipe.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from odp.errors import OdpError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

BROKEN_PIPE = 141


class _Output(io.TextIOWrapper):
    """Stdout, whose errors are told apart from those of other files."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            _give_up(error)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            _give_up(error)


class _Closed(io.TextIOBase):
    """Stdout of a process that was started without one."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        raise OdpError(_unwritable(os.strerror(errno.EBADF)))


def prepare_streams() -> None:
    """Makes stdout and stderr of this process what the module says; streams of a test stay as they are."""
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  # for as long as the process lives
    elif type(sys.stderr) is io.TextIOWrapper:
        sys.stderr.reconfigure(errors="backslashreplace")
    if sys.stdout is None:
        sys.stdout = _Closed()
    elif type(sys.stdout) is io.TextIOWrapper:
        sys.stdout = _Output(
            sys.stdout.buffer,
            encoding=sys.stdout.encoding,
            errors="backslashreplace",
            newline=None,
            line_buffering=sys.stdout.line_buffering,
        )


def require_encodable(text: str) -> None:
    """Raises OdpError where stdout lacks a character of ``text``, which others will read as data."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        raise OdpError(
            f"cannot write these names to stdout, whose encoding is {encoding}: set PYTHONIOENCODING=utf-8"
        ) from None


def _give_up(error: OSError) -> NoReturn:
    # What is left in buffers would fail again when the process ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if isinstance(error, BrokenPipeError):
        sys.exit(BROKEN_PIPE)
    raise OdpError(_unwritable(error.strerror or "unknown error")) from None


def _unwritable(why: str) -> str:
    return f"cannot write results to stdout: {why}; give the command another stdout"


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


def print_result(values: object, text: str, *, json: bool) -> None:
    """A result: ``values`` as one JSON object where ``json``, or else ``text``."""
    if json:
        print_json(values)
    else:
        print_text(text)


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


class Steps:
    """The steps of one command.

    Args:
      out: where they are shown.
      bar: the bar and the number of its row; None prints a line per step.
    """

    def __init__(self, out: Console, bar: tuple[Progress, TaskID] | None) -> None:
        self._out = out
        self._bar = bar

    def step(self, text: str) -> None:
        """What happens from now on, or what has just been found."""
        if self._bar is None:
            self._out.print(text, markup=False, soft_wrap=True)
        else:
            self._bar[0].update(self._bar[1], description=text)

    def advance(self, done: int, of: int, note: str = "") -> None:
        """How much is done within a step: ``done`` of ``of`` parts. Nothing where there is no bar."""
        if self._bar is not None:
            self._bar[0].update(self._bar[1], completed=done, total=of, note=note)


@contextlib.contextmanager
def steps(out: Console, text: str) -> Iterator[Steps]:
    """Shows ``text`` as the first step; the bar is gone when the command goes on."""
    if not out.is_terminal:
        shown = Steps(out, None)
        shown.step(text)
        yield shown
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    description = TextColumn("{task.description}", markup=False)
    columns = description, BarColumn(), TextColumn("{task.fields[note]}"), TimeRemainingColumn()
    with Progress(*columns, console=out, transient=True) as bar:
        yield Steps(out, (bar, bar.add_task(text, total=None, note="")))
