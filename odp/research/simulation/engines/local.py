"""This machine, with all its processors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from odp.datasets.examples import UsersExamples
from odp.datasets.ratings import Ratings
from odp.numerics.arrays import Int64Array, UInt64Array
from odp.protocol.wire.model import ModelVersion
from odp.research.simulation.engines.population import population_of
from odp.research.simulation.engines.seam import Progress
from odp.tasks.task import Task

_Key = TypeVar("_Key")
_Result = TypeVar("_Result")


class LocalEngine:
    """Implements ``odp.research.simulation.engines.seam.Engine`` in this process."""

    def sums(self, task: Task, users: Ratings | UsersExamples, seeds: UInt64Array) -> LocalSums:
        return LocalSums(task, users, seeds)

    def each(
        self, trial: Callable[..., _Result], trials: Iterable[tuple[_Key, tuple[Any, ...]]]
    ) -> Iterator[tuple[_Key, _Result]]:
        for key, arguments in trials:
            yield key, trial(*arguments)


class LocalSums:
    """Implements ``odp.research.simulation.engines.seam.Sums``."""

    def __init__(self, task: Task, users: Ratings | UsersExamples, seeds: UInt64Array) -> None:
        self._population = population_of(task)
        self._users, self._seeds = users, seeds

    def of(
        self, broadcast: ModelVersion, selected: Int64Array | None, *, round: int, progress: Progress | None
    ) -> Mapping[str, Int64Array]:
        users, seeds = self._users, self._seeds
        if selected is not None:
            users, seeds = users.select_users(selected), seeds[selected]
        return self._population.contribute(broadcast, users, round=round, seeds=seeds, progress=progress)
