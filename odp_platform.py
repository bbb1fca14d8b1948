"""The ``odp`` command before ``odp`` is imported: packages of others by ODP's names are one error, not their code.

ODP's distribution is ``odp-platform``. The package index has another one by the name ``odp``, which installs files into
the same folder. This module imports nothing of ODP, since any module of it may be the other's.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path

#: The packages of ODP.
NAMES = ("odp", "device_runtime", "distributor", "server", "trusted_aggregator")
_HOME = Path(__file__).resolve().parent
#: The metadata folder of an installed distribution by the name ``odp``. Ours is ``odp_platform-VERSION.dist-info``.
_FOREIGN = re.compile(r"odp-([^-]+)(-py[0-9.]+)?\.(dist|egg)-info", re.IGNORECASE)


def main() -> None:
    """Entry point of the ``odp`` command."""
    problem = conflict()
    if problem is not None:
        sys.exit(f"odp: {problem}")
    from odp.cli.main import main as command

    command()


def conflict(names: Iterable[str] = NAMES) -> str | None:
    """One line where ``names`` of ODP's packages mean, or may mean, code of others; None where they are ODP's.

    It costs one listing of each folder of ``sys.path``, once in a process.
    """
    foreign = _foreign_distribution(tuple(sys.path))
    if foreign is not None:
        return (
            f"the distribution 'odp' is installed beside ODP, in {foreign}: it is another program, or an ODP of "
            "before the name 'odp-platform', with files of the same names. Run `pip uninstall odp`, then install "
            "'odp-platform' again"
        )
    for name in names:
        place = _place(name)
        if place is not None and place.parent.resolve() != _HOME:
            return (
                f"ODP's package {name!r} is hidden by {place}: rename that, or take its folder off the search path "
                "(PYTHONPATH, or `python -P`)"
            )
    return None


@functools.cache
def _foreign_distribution(search_path: tuple[str, ...]) -> str | None:
    """The metadata folder of a distribution named ``odp`` in one of these folders."""
    for folder in search_path:
        try:
            for entry in Path(folder).iterdir():
                if _FOREIGN.fullmatch(entry.name):
                    return str(entry)
        except OSError:  # a folder that is missing, or a zip file, holds no installed distribution
            continue
    return None


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
    # An import gives absolute places. The process of isolated code has taken them out, and loads nothing from files.
    return Path(spec.origin) if spec.origin is not None and Path(spec.origin).is_absolute() else None
