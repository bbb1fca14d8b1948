"""What an engine gives a simulation: the exact sums of a round, and the results of independent trials.

What makes the sums of users, for a task.

This machine, with all its processors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import Population, ProgramPopulation
from odp.datasets.examples import UsersExamples
from odp.datasets.ratings import Ratings
from odp.models.litert.keras_model import KerasModel
from odp.numerics.arrays import Int64Array, UInt64Array
from odp.protocol.wire.model import ModelVersion
from odp.tasks.task import Task

_Key = TypeVar("_Key")
_Result = TypeVar("_Result")

#: Called within a round with the number of users that are done.
Progress = Callable[[int], None]


class Sums(Protocol):
    """The users of one simulation, in place."""

    def of(
        self, broadcast: ModelVersion, selected: Int64Array | None, *, round: int, progress: Progress | None
    ) -> Mapping[str, Int64Array]:
        """Exact sums of a round over all users, or over those of ``selected`` (int64 [k], ascending); may be kept."""


class Engine(Protocol):
    """A place to compute. Used inside ``with``."""

    def sums(self, task: Task, users: Ratings | UsersExamples, seeds: UInt64Array) -> Sums:
        """Puts the users of a simulation in place; ``seeds`` are theirs. Raises ConfigurationError, StateError."""

    def each(
        self, trial: Callable[..., _Result], trials: Iterable[tuple[_Key, tuple[Any, ...]]]
    ) -> Iterator[tuple[_Key, _Result]]:
        """``trial(*arguments)`` of each (key, arguments), as they are done. Raises what a trial raises."""


_current: ContextVar[Engine | None] = ContextVar("engine", default=None)


@contextlib.contextmanager
def using(engine: Engine) -> Iterator[None]:
    """Simulations inside run on ``engine``, where they are not given another."""
    token = _current.set(engine)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Engine | None:
    """The engine of ``using``; None outside."""
    return _current.get()


def population_of(task: Task) -> Population[Any]:
    """What a simulation of ``task`` makes the sums of users with; a network is trained by the engine that it names.

    Raises:
      ConfigurationError: the task is invalid.
    """
    population = algorithm_for(task.definition()).population()
    engine = task.model.own_engine() if isinstance(task.model, KerasModel) else None
    if engine is None or not isinstance(population, ProgramPopulation):
        return population
    return population.run_by(engine)


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
