"""What a developer can write: how a model is trained and on which data, and which questions there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from odp.algorithms.question import Question
from odp.algorithms.registry import TABLE, part_of
from odp.errors import ConfigurationError
from odp.protocol.terms import Cohort, UserLevelDP
from odp.v1 import common_pb2

if TYPE_CHECKING:
    from odp.datasets.ratings import Ratings
    from odp.models.matrix_factorization import MatrixFactorization


class Declared(Protocol):
    """A part of a task that writes itself into a definition, such as a model."""

    def write(self, definition: common_pb2.TaskDefinition) -> None:
        """Writes itself into a definition."""
        ...


class TrainingData(Declared, Protocol):
    """Which local data a device trains on."""

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


class DeclaredTask(Protocol):
    """What algorithms read of a task as a developer wrote it: an ``odp.Task`` or a question."""

    @property
    def name(self) -> str:
        """For people."""
        ...

    @property
    def privacy(self) -> UserLevelDP:
        """The budget of the whole task."""
        ...

    def definition(self) -> common_pb2.TaskDefinition:
        """The task with every number resolved."""
        ...


class TrainingTask(DeclaredTask, Protocol):
    """What algorithms read of an ``odp.Task``."""

    @property
    def data(self) -> TrainingData:
        """Which local data devices train on."""
        ...

    @property
    def training(self) -> Training:
        """How the model is trained."""
        ...

    @property
    def cohort(self) -> Cohort:
        """Whom a round needs."""
        ...

    @property
    def factorization(self) -> MatrixFactorization:
        """The model, where it scores items. Raises ConfigurationError where it is another."""
        ...


def trainings() -> dict[str, type[Training]]:
    """How a model can be trained, by the name of the training."""
    return {name: getattr(part_of(name, "config"), entry.training) for name, entry in TABLE.items() if entry.training}


def default_training() -> Training:
    """The default of the training that comes first."""
    return next(iter(trainings().values()))()


def questions() -> dict[str, type[Question]]:
    """What can be asked, by the name of the training."""
    return {name: getattr(part_of(name, "task"), entry.question) for name, entry in TABLE.items() if entry.question}


def define(
    *,
    name: str,
    model: Declared,
    data: TrainingData,
    privacy: UserLevelDP,
    training: Training,
    cohort: Cohort,
    population: str = "",
) -> common_pb2.TaskDefinition:
    """A training with every number resolved, noise included, but for the terms of its broadcast.

    ``population`` is the task's name where it is empty. Raises as ``Training.write``.
    """
    definition = common_pb2.TaskDefinition(
        name=name,
        population=population or name,
        cohort=cohort.to_proto(privacy.delta),
        computing_milliseconds=cohort.computing_milliseconds,
    )
    model.write(definition)
    items = definition.model.items if definition.HasField("model") else None
    definition.privacy.CopyFrom(privacy.to_proto(items))
    data.write(definition)
    training.write(definition)
    return definition


def check_catalogue(model: Any, data: Any, *, population: str) -> None:
    """Raises ConfigurationError where a model names the catalogue of another population, or data have other items."""
    catalogue = getattr(model, "catalogue", None)
    if catalogue is None:
        return
    if catalogue.population != population:
        raise ConfigurationError(
            f"Expected population={population!r} to be that of the catalogue, {catalogue.population!r}"
        )
    events = getattr(data, "events", None)
    if events is not None and (events.buckets or events.edges):
        raise ConfigurationError("Expected events without buckets or edges: the catalogue says which items there are")
