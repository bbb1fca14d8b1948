"""What only POSIX systems, or Linux alone, can do.

Elsewhere simulation and the commands of developers work, and the others say so.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from odp.errors import ConfigurationError

__all__ = ["fcntl", "require_linux", "require_posix", "resource"]


def require_linux(what: str) -> None:
    """Raises ConfigurationError where this is not Linux; ``what`` is the command or program."""
    if sys.platform != "linux":
        raise ConfigurationError(
            f"{what} needs Linux, whose kernel walls the enclaves in (this is {sys.platform}). Simulation and the "
            "commands of developers work here; run services in a Linux machine, a container or WSL 2"
        )


def require_posix(what: str) -> None:
    """Raises ConfigurationError on Windows; ``what`` is the command."""
    if sys.platform == "win32":
        raise ConfigurationError(f"{what} needs Linux or macOS; in Windows it runs in WSL 2")


class _Missing:
    """In place of a module that this system lacks: whoever uses it is told."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> object:
        raise ConfigurationError(
            f"this needs {self._name}.{attribute}, which {sys.platform} lacks: state folders and services need Linux"
        )


if TYPE_CHECKING:
    import fcntl
    import resource
else:
    try:
        import fcntl
        import resource
    except ImportError:
        fcntl, resource = _Missing("fcntl"), _Missing("resource")
