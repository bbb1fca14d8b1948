"""ODP's packages beside ``odp`` have plain names, so a module of a user's own may hide one: that is said, in one line.

Programs that ODP starts look in no folder of the user's (``python -P``), and the ``odp`` command neither.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path

from odp.errors import ConfigurationError

NAMES = ("device_runtime", "distributor", "server", "trusted_aggregator")
_HOME = Path(__file__).resolve().parent.parent


def leave_current_folder() -> None:
    """Takes the folder that ``python -m`` adds off the search path, so that what lies there hides nothing.

    It stays where it is ODP's own, as in a checkout.
    """
    if sys.path and not sys.flags.safe_path and Path(sys.path[0]).resolve() == Path.cwd() != _HOME:
        del sys.path[0]


def check_own_packages(names: Iterable[str] = NAMES) -> None:
    """Raises ConfigurationError where an import of one of ``names`` would find, or has found, another's module."""
    for name in names:
        found = _place(name)
        if found is not None and found.parent.resolve() != _HOME:
            raise ConfigurationError(
                f"ODP's package {name!r} is hidden by {found}: rename that, or take its folder off the search path "
                "(PYTHONPATH, or `python -P`)"
            )


def _place(name: str) -> Path | None:
    """The file or folder that ``import name`` means; None where only an editable installation knows it."""
    loaded = sys.modules.get(name)
    spec = PathFinder.find_spec(name) if loaded is None else loaded.__spec__
    if spec is None and loaded is not None and getattr(loaded, "__file__", None):
        return Path(str(loaded.__file__))
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return None if spec.origin is None else Path(spec.origin)
