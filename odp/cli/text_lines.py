"""Text files of one entry per line."""

from __future__ import annotations

from pathlib import Path


def lines_of(path: Path) -> list[str]:
    """The lines of a UTF-8 file, without their ends. Raises OSError, UnicodeDecodeError.

    Lines end where editors end them, and not at characters within a key that Unicode also calls ends; an order mark at
    the beginning is no part of the first line.
    """
    lines = path.read_bytes().decode("utf-8-sig").split("\n")
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]
