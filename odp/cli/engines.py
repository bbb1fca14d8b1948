"""``--engine`` and ``--address``: where a simulation computes, and what its workers use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from odp.research.simulation.engines.ray_cluster import Worker
    from odp.research.simulation.engines.seam import Engine

LOCAL, RAY = "local", "ray"

EngineName = Annotated[
    str, typer.Option("--engine", help="local: this machine; or ray: a Ray cluster (extra `ray`), with equal results.")
]
Address = Annotated[
    str | None,
    typer.Option(
        help="With --engine ray: host:port of a running cluster \\[default: one on this machine, for this run]."
    ),
]


class Workers:
    """The workers of a run and what they used last."""

    def __init__(self) -> None:
        self._workers: dict[tuple[str, int], Worker] = {}

    def saw(self, worker: Worker) -> None:
        """A worker finished a part."""
        self._workers[worker.node, worker.pid] = worker

    def summary(self) -> str:
        """For the line of progress; empty without a worker."""
        if not self._workers:
            return ""
        most = max(worker.memory for worker in self._workers.values())
        return f"; {len(self._workers)} workers, up to {most:,.0f} MiB each"

    def print(self, out: Console) -> None:
        """A line for each worker."""
        for (node, pid), worker in sorted(self._workers.items()):
            out.print(f"worker {pid} on {node}: {worker.memory:,.0f} MiB", soft_wrap=True)


@contextlib.contextmanager
def computing_on(name: str, address: str | None) -> Iterator[tuple[Engine, Workers]]:
    """The engine of these options. Raises ConfigurationError, StateError."""
    from odp import _validate
    from odp.errors import ConfigurationError

    _validate.one_of((LOCAL, RAY), engine=name)
    workers = Workers()
    if name == LOCAL:
        if address is not None:
            raise ConfigurationError("--address goes with --engine ray")
        from odp.research.simulation.engines.seam import LocalEngine

        yield LocalEngine(), workers
        return
    from odp.research.simulation.engines.ray_cluster import RayEngine

    with RayEngine(address, on_worker=workers.saw) as engine:
        yield engine, workers
