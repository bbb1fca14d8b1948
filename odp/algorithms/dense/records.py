"""Rows of local tables and the vectors that they become, for one user or for many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from odp.algorithms.dense.grid import Entries, Grid
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float64Array, Int64Array

ROUND = 0


@dataclass(frozen=True)
class Records:
    """Rows of a local table: user and item int64 [n], value float64 [n], ordered by user; users from 0."""

    user: Int64Array
    item: Int64Array
    value: Float64Array
    users: int


class VectorTerms(Protocol):
    """The checked numbers of a task whose one round releases a sum of vectors."""

    @property
    def grid(self) -> Grid:
        """Of the vectors."""
        ...

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the declared local tables."""
        ...

    def vectors(self, records: Mapping[str, Records]) -> Entries:
        """The entries of every user's vector, in data units; ``records`` are the rows of each local table, by name.

        Every sum runs over one user's records in their order, so that a user's numbers do not depend on who else is
        there.
        """
        ...


def check_round(round: int) -> None:
    """Raises ConfigurationError unless the task has this round."""
    if round != ROUND:
        raise ConfigurationError(f"Expected round={round!r} to be {ROUND}: a question has one round")
