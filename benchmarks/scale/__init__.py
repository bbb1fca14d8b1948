"""Beyond one process: a cluster, ingest, trees of aggregators, connections, databases, and the control room."""

from __future__ import annotations

import importlib

from benchmarks.harness import Figure

#: Modules of this package, each with ``run(quick) -> list[Figure]``, in the order of the table.
_PARTS: tuple[str, ...] = ("simulation", "database", "ingest", "tree", "control_room", "connections")


def run(quick: bool) -> list[Figure]:
    """The figures of all parts."""
    return [figure for part in _PARTS for figure in importlib.import_module(f"benchmarks.scale.{part}").run(quick)]
