"""The numbers of one task that asks for quantiles, read from its definition and checked: for every party.

A user's vector has one number per bin: the share of its records there. The shares sum to 1, so the vector keeps the L2
norm 1, whatever a user holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from odp import _validate
from odp.algorithms.dense.grid import Entries, Grid
from odp.algorithms.dense.records import Records, check_question
from odp.errors import ConfigurationError
from odp.models.events_query import AGGREGATES, EventsTerms
from odp.numerics.arrays import Float64Array
from odp.v1 import common_pb2

RELEASE = "quantiles"
ROWS = "rows"

MAX_BINS = 2**14
MAX_REPORTED = 64
_CLIP = 1.0


@dataclass(frozen=True)
class Terms:
    """An :class:`odp.v1.Quantiles`, checked; ``edges`` float64 [bins + 1]."""

    table: str
    events: EventsTerms | None
    edges: Float64Array
    at: tuple[float, ...]
    grid: Grid

    @classmethod
    def of(cls, definition: common_pb2.TaskDefinition) -> Terms:
        """Reads and checks a task definition.

        Raises:
          ConfigurationError: the task asks for no quantiles, or a field is missing, out of range, or of training.
        """
        check_question(definition, "quantiles")
        message = definition.quantiles
        _validate.identifier(table=message.table)
        edges = _edges(message.edges)
        at = tuple(message.at)
        ascending = all(low < high for low, high in zip((0.0, *at), (*at, 1.0), strict=True))
        if not 1 <= len(at) <= MAX_REPORTED or not ascending:
            raise ConfigurationError(f"Expected at={at!r} to be 1 to {MAX_REPORTED} ascending numbers between 0 and 1")
        _validate.within(low=_CLIP, high=_CLIP, clip=message.dense.clip)
        grid = Grid.of(message.dense, definition.cohort, size=len(edges) - 1)
        return cls(message.table, EventsTerms.of(message, aggregates=tuple(AGGREGATES)), edges, at, grid)

    @property
    def reads(self) -> dict[str, tuple[str, ...]]:
        """The one table."""
        return {ROWS: ()}

    def vectors(self, records: Mapping[str, Records]) -> Entries:
        """Shares of the records in each bin; values that are not finite are left out, others go to the nearest bin."""
        rows = records[ROWS]
        finite = np.isfinite(rows.value)
        bins = len(self.edges) - 1
        place = np.clip(np.searchsorted(self.edges, rows.value[finite], side="right") - 1, 0, bins - 1)
        cells, count = np.unique(rows.user[finite] * np.int64(bins) + place, return_counts=True)
        user = cells // bins
        total = np.bincount(user, weights=count, minlength=rows.users)
        return Entries(user, cells % bins, count / total[user])


def _edges(data: bytes) -> Float64Array:
    if len(data) % 8 or not 2 <= len(data) // 8 <= MAX_BINS + 1:
        raise ConfigurationError(f"Expected 2 to {MAX_BINS + 1} edges of the grid (got {len(data)} bytes)")
    edges = np.frombuffer(data, dtype="<f8").astype(np.float64)
    if not (np.isfinite(edges).all() and (np.diff(edges) > 0).all()):
        raise ConfigurationError("Expected the edges of the grid to be finite and ascending")
    return edges
