"""What an engine gives a simulation: the exact sums of a round, and the results of independent trials."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from odp.datasets.examples import UsersExamples
from odp.datasets.ratings import Ratings
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
        ...


class Engine(Protocol):
    """A place to compute. Used inside ``with``."""

    def sums(self, task: Task, users: Ratings | UsersExamples, seeds: UInt64Array) -> Sums:
        """Puts the users of a simulation in place; ``seeds`` are theirs. Raises ConfigurationError, StateError."""
        ...

    def each(
        self, trial: Callable[..., _Result], trials: Iterable[tuple[_Key, tuple[Any, ...]]]
    ) -> Iterator[tuple[_Key, _Result]]:
        """``trial(*arguments)`` of each (key, arguments), as they are done. Raises what a trial raises."""
        ...


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
