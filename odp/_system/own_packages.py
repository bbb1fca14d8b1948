"""ODP's packages beside ``odp`` have plain names, so a module of a user's own may hide one: that is said, in one line.

Programs that ODP starts look in no folder of the user's (``python -P``), and the ``odp`` command neither.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from odp.errors import ConfigurationError
from odp_platform import NAMES, conflict

_HOME = Path(__file__).resolve().parent.parent.parent


def leave_current_folder() -> None:
    """Takes the folder that ``python -m`` adds off the search path, so that what lies there hides nothing.

    It stays where it is ODP's own, as in a checkout.
    """
    if sys.path and not sys.flags.safe_path and Path(sys.path[0]).resolve() == Path.cwd() != _HOME:
        del sys.path[0]


def check_own_packages(names: Iterable[str] = NAMES) -> None:
    """Raises ConfigurationError where an import of one of ``names`` would find, or has found, another's module.

    It is raised beside an installed distribution ``odp``, too, which is not ODP's (``odp_platform``).
    """
    if (problem := conflict(names)) is not None:
        raise ConfigurationError(problem)
