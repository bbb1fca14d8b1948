"""What a developer writes to ask for quantiles.

Example::

    task = odp.Quantiles(
        name="session-length", low=0, high=120, bins=240, at=(0.5, 0.9, 0.99),
        privacy=odp.UserLevelDP(epsilon=1, delta=1e-6), cohort=odp.Cohort(minimum=100, goal=1000),
    )
    odp.simulate(task, odp.load("sessions.npz")).results[0.5]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from odp import _validate
from odp.algorithms.choices import Question
from odp.errors import ConfigurationError
from odp.models.events import Events, table_of
from odp.v1 import common_pb2

_TABLE = "ratings"
_MOST_BINS = 2**14


@_validate.strict_keywords
@dataclass(frozen=True, kw_only=True)
class Quantiles(Question):
    """Quantiles of the values in a local table, by noisy counts over a grid of values.

    Every user counts alike, whatever the number of its records. A value outside of the grid counts in the nearest bin.

    Attributes:
      low, high: range of the grid.
      bins: number of bins, of equal width: a result is no finer than a bin.
      at: the quantiles that are reported, each strictly between 0 and 1, ascending; more of them cost no privacy.
      table: local table of (item, value).
      events: makes the rows of events instead, as the task says: see ``odp.Events``; each event is one by default.

    Raises ConfigurationError for a value out of range, PrivacyError for a delta that is no guarantee at this cohort.
    """

    section: ClassVar[str] = "quantiles"

    low: float
    high: float
    bins: int = 256
    at: Sequence[float] = (0.25, 0.5, 0.75)
    table: str = _TABLE
    events: Events | None = None

    def __post_init__(self) -> None:
        table_of(self.table, self.events, default=_TABLE)
        _validate.finite(low=self.low, high=self.high)
        if not self.low < self.high:
            raise ConfigurationError(f"Expected low={self.low!r} to be below high={self.high!r}")
        _validate.integer(bins=self.bins, low=1, high=_MOST_BINS)
        if not isinstance(self.at, Iterable):
            raise ConfigurationError(f"Expected at={self.at!r} to be a list of numbers between 0 and 1")
        reported = tuple(self.at)
        for q in reported:
            _validate.finite(at=q)
        object.__setattr__(self, "at", tuple(map(float, reported)))
        super().__post_init__()

    def definition(self) -> common_pb2.TaskDefinition:
        """The task with every number resolved, noise included; ``developer_key`` is empty until a server signs it."""
        from odp.algorithms.dense.grid import Grid

        definition, privacy = self.unresolved(), self.privacy
        grid = Grid.within_budget(
            size=self.bins, epsilon=privacy.epsilon, delta=privacy.delta, cohort=definition.cohort
        )
        message = definition.quantiles
        message.table = table_of(self.table, self.events, default=_TABLE)
        if self.events is not None:
            message.events.CopyFrom(self.events.to_proto(aggregate="each"))
        message.edges = np.linspace(self.low, self.high, self.bins + 1).astype("<f8").tobytes()
        message.at.extend(self.at)
        message.dense.CopyFrom(grid.to_proto())
        return definition
