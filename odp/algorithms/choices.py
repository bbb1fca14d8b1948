"""What a developer can write: how a model is trained, and on which data."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from odp.algorithms.registry import TABLE, part_of
from odp.v1 import common_pb2

if TYPE_CHECKING:
    from odp.datasets.ratings import Ratings


class TrainingData(Protocol):
    """Which local data a device trains on."""

    def write(self, definition: common_pb2.TaskDefinition) -> None:
        """Writes itself into a definition."""
        ...

    def check(self, ratings: Ratings) -> None:
        """Raises DataError where a simulated population's ratings are not such data."""
        ...


@runtime_checkable
class Training(Protocol):
    """How a model is trained; a class, such as ``odp.DPAM``, says what models and data it goes with."""

    models: ClassVar[tuple[type, ...]]
    data: ClassVar[type[TrainingData]]

    def write(self, definition: common_pb2.TaskDefinition) -> None:
        """Writes every number of the training into a definition that has its model, data, privacy and cohort.

        Raises:
          ConfigurationError: a number is out of range.
          PrivacyError: the noise for the budget cannot be found.
        """
        ...


def trainings() -> dict[str, type[Training]]:
    """How a model can be trained, by the name of the training."""
    return {name: getattr(part_of(name, "config"), entry.training) for name, entry in TABLE.items() if entry.training}


def default_training() -> Training:
    """The default of the training that comes first."""
    return next(iter(trainings().values()))()
