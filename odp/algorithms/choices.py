"""What a developer can write: how a model is trained and on which data, and which questions there are.

What every question to a population has in common; ``odp.Statistics`` is one.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from odp._validate import identifier, strict_keywords
from odp.algorithms.registry import TABLE, algorithm_for, part_of
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float32Array
from odp.protocol.terms import FULL, Cohort, UserLevelDP, check_delta_for
from odp.v1 import common_pb2

if TYPE_CHECKING:
    from odp.datasets.ratings import Ratings
    from odp.models.matrix_factorization import MatrixFactorization


@strict_keywords
@dataclass(frozen=True, kw_only=True)
class Question(abc.ABC):
    """What a population is asked in one round, without training anything; ``odp.Statistics`` is one.

    Attributes:
      name: For people: [a-z0-9_.-], at most 64 characters.
      privacy: Budget of the whole question; it has no ``max_items_per_user``, since a question bounds a user itself.
      cohort: Whom the round needs.
      population: Devices enrol in a population; its tasks share one privacy ledger. Default: the task's name.

    Raises ConfigurationError for a value out of range, PrivacyError for a delta that is no guarantee at this cohort.
    """

    #: The section of a task file that has the question's own fields.
    section: ClassVar[str]
    #: The sections that it has besides, [privacy] and [cohort] apart.
    more_sections: ClassVar[tuple[str, ...]] = ()
    #: Fields that a task file has at its top.
    at_the_top: ClassVar[tuple[str, ...]] = ()
    #: Fields of numbers: a task file names theirs.
    arrays: ClassVar[tuple[str, ...]] = ()
    #: Where ``section`` has a table for each query: what a query can be, by its kind.
    query_kinds: ClassVar[Mapping[str, type]] = MappingProxyType({})

    name: str
    privacy: UserLevelDP
    cohort: Cohort = field(default_factory=Cohort)
    population: str = ""

    def __post_init__(self) -> None:
        identifier(name=self.name)
        if self.population == "":
            object.__setattr__(self, "population", self.name)
        identifier(population=self.population)
        for kind, value in ((UserLevelDP, self.privacy), (Cohort, self.cohort)):
            if not isinstance(value, kind):
                raise ConfigurationError(f"Expected an odp.{kind.__name__}, got a {type(value).__name__}")
        if self.privacy.max_items_per_user is not None:
            raise ConfigurationError(
                f"Expected no max_items_per_user={self.privacy.max_items_per_user}: a question bounds a user itself"
            )
        if self.privacy.epsilon == math.inf:
            raise ConfigurationError(
                "Expected epsilon to be finite; odp.simulate(.., noise=False) shows answers without noise"
            )
        if self.cohort.sampling != FULL:
            raise ConfigurationError(
                f"Expected no sampling={self.cohort.sampling!r} with odp.{type(self).__name__}: in one round, every "
                "contribution that is left out costs accuracy and buys nothing"
            )
        check_delta_for(self.privacy.delta, self.cohort.to_proto(self.privacy.delta).goal)
        algorithm_for(self.definition()).check()

    @property
    def public_matrix(self) -> Float32Array | None:
        """As of ``Task``."""
        return None

    @abc.abstractmethod
    def definition(self) -> common_pb2.TaskDefinition:
        """The task with every number resolved, noise included; ``developer_key`` is empty until a server signs it."""

    def unresolved(self) -> common_pb2.TaskDefinition:
        """The definition without the question itself."""
        privacy = common_pb2.PrivacyTerms(epsilon=self.privacy.epsilon, delta=self.privacy.delta)
        cohort = self.cohort.to_proto(self.privacy.delta)
        return common_pb2.TaskDefinition(
            name=self.name, population=self.population, privacy=privacy, cohort=cohort,
            computing_milliseconds=self.cohort.computing_milliseconds,
        )  # fmt: skip


def without_rounds(definition: common_pb2.TaskDefinition) -> common_pb2.TaskDefinition:
    """The definition of a question whose reports go to the server alone: it has no cohort, and no delta."""
    definition.ClearField("cohort")
    definition.privacy.delta = 0.0
    return definition


class Declared(Protocol):
    """A part of a task that writes itself into a definition, such as a model."""

    def write(self, definition: common_pb2.TaskDefinition) -> None:
        """Writes itself into a definition."""


class TrainingData(Declared, Protocol):
    """Which local data a device trains on; ``kind`` is its name in a task file."""

    kind: ClassVar[str]

    def check(self, ratings: Ratings) -> None:
        """Raises DataError where a simulated population's ratings are not such data."""


@runtime_checkable
class Training(Protocol):
    """How a model is trained; a class, such as ``odp.DPAM``, says what models and data it goes with."""

    models: ClassVar[tuple[type, ...]]
    data: ClassVar[tuple[type[TrainingData], ...]]

    def write(self, definition: common_pb2.TaskDefinition) -> None:
        """Writes every number of the training into a definition that has its model, data, privacy and cohort.

        Raises:
          ConfigurationError: a number is out of range.
          PrivacyError: the noise for the budget cannot be found.
        """


class DeclaredTask(Protocol):
    """What algorithms read of a task as a developer wrote it: an ``odp.Task`` or a question."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def privacy(self) -> UserLevelDP:
        """The budget of the whole task."""

    def definition(self) -> common_pb2.TaskDefinition:
        """The task with every number resolved."""


class TrainingTask(DeclaredTask, Protocol):
    """What algorithms read of an ``odp.Task``."""

    @property
    def data(self) -> TrainingData:
        """Which local data devices train on."""

    @property
    def training(self) -> Training:
        """How the model is trained."""

    @property
    def cohort(self) -> Cohort:
        """Whom a round needs."""

    @property
    def factorization(self) -> MatrixFactorization:
        """The model, where it scores items. Raises ConfigurationError where it is another."""


def trainings() -> dict[str, type[Training]]:
    """How a model can be trained, by the name of the training."""
    return {name: getattr(part_of(name, "config"), entry.training) for name, entry in TABLE.items() if entry.training}


def default_training() -> Training:
    """The default of the training that comes first."""
    return next(iter(trainings().values()))()


def questions() -> dict[str, type[Question]]:
    """What can be asked, by the name of the training."""
    return {name: getattr(part_of(name, "task"), entry.question) for name, entry in TABLE.items() if entry.question}


def tasks_without_rounds() -> dict[str, type]:
    """Tasks whose devices report to the server alone, by the name of the training."""
    return {name: getattr(part_of(name, "config"), entry.task) for name, entry in TABLE.items() if entry.task}


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
    if (catalogue := getattr(model, "catalogue", None)) is None:
        return
    if catalogue.population != population:
        raise ConfigurationError(
            f"Expected population={population!r} to be that of the catalogue, {catalogue.population!r}"
        )
    events = getattr(data, "events", None)
    if events is not None and (events.buckets or events.edges):
        raise ConfigurationError("Expected events without buckets or edges: the catalogue says which items there are")
