"""The standard streams of a command: a closed, full or narrow one is no internal error.

==========================  ============================================================================
stdout                      what happens
==========================  ============================================================================
its reader is gone (head)   the command ends without a word, with the exit code of a broken pipe, 141
closed, or the disk full    one line on stderr, exit code 1
no Unicode                  a character that it lacks is escaped; CSV is refused, since names would change
==========================  ============================================================================
"""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path
from typing import NoReturn

from odp.errors import OdpError

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
