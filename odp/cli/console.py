"""What commands share on the terminal: the console, JSON output, errors as one line.

Progress and tables go to stderr, so that the last line of stdout can be one JSON object.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def console() -> Console:
    """A console on stderr; NO_COLOR and a pipe turn colour off (rich looks at both)."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def print_json(value: object) -> None:
    """One JSON object as the last line of stdout."""
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")
    sys.stdout.flush()


def print_text(text: str) -> None:
    """A result as plain text on stdout."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def print_error(message: str) -> None:
    """One line on stderr."""
    sys.stderr.write(f"odp: {' '.join(message.split())}\n")
    sys.stderr.flush()
