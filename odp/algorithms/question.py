"""What every question to a population has in common; ``odp.Statistics`` is one."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass, field

from odp._validate import identifier, strict_keywords
from odp.algorithms.registry import algorithm_for
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float32Array
from odp.protocol.terms import FULL, Cohort, UserLevelDP, check_delta_for
from odp.v1 import common_pb2


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
