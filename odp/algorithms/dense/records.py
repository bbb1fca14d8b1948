"""Rows of local tables and the vectors that they become, for one user or for many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from odp.algorithms.dense.grid import Entries, Grid
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float64Array, Int64Array
from odp.v1 import common_pb2

ROUND = 0


@dataclass(frozen=True)
class Records:
    """Rows of a local table: user and item int64 [n], value float64 [n], ordered by user; users from 0."""

    user: Int64Array
    item: Int64Array
    value: Float64Array
    users: int


class GridTerms(Protocol):
    """The checked numbers of a task whose one round releases a sum of vectors."""

    @property
    def grid(self) -> Grid:
        """Of the vectors."""


class VectorTerms(GridTerms, Protocol):
    """The same of a question about rows of local tables."""

    @property
    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """By the names of the declared local tables, the ids whose places are the items; () where ids are numbers."""

    def vectors(self, records: Mapping[str, Records]) -> Entries:
        """The entries of every user's vector, in data units; ``records`` are the rows of each local table, by name.

        Every sum runs over one user's records in their order, so that a user's numbers do not depend on who else is
        there.
        """


def check_round(round: int) -> None:
    """Raises ConfigurationError unless the task has this round."""
    if round != ROUND:
        raise ConfigurationError(f"Expected round={round!r} to be {ROUND}: a question has one round")


def check_question(definition: common_pb2.TaskDefinition, name: str, *, reads_model: bool = False) -> None:
    """Checks that a definition asks the question ``name``, and has nothing that is of training alone.

    One that ``reads_model`` has a trained model and local data, which are its own to check.

    Raises:
      ConfigurationError: it asks no such question, or a field is of training or out of range.
    """
    if definition.WhichOneof("training") != name:
        raise ConfigurationError(f"Expected the training of task {definition.name!r} to be {name}")
    of_training = definition.WhichOneof("trained_model"), definition.WhichOneof("local_data")
    if definition.HasField("model") or (of_training != (None, None) and not reads_model):
        raise ConfigurationError(
            f"Expected task {definition.name!r} to have no model and no local data: it asks for {name}"
        )
    if definition.privacy.max_items_per_user:
        raise ConfigurationError(f"Expected max_items_per_user to be 0: {name} bound a user's vector")
    if not definition.privacy.epsilon > 0:
        raise ConfigurationError(f"Expected epsilon={definition.privacy.epsilon!r} to be > 0")
    if definition.cohort.HasField("enclave_poisson"):
        raise ConfigurationError(f"Expected task {definition.name!r} to have no sampling: it asks for {name}")
