"""What a developer writes to ask a population a question, without training anything.

Example::

    import odp

    task = odp.Statistics(
        name="listening",
        queries={"hours": odp.Histogram(bins=24), "minutes": odp.Mean(low=0, high=60)},
        privacy=odp.UserLevelDP(epsilon=1, delta=1e-6),
        cohort=odp.Cohort(minimum=100, goal=1000),
    )
    odp.simulate(task, odp.load("listening.npz")).statistics["hours"].counts
    odp.connect("127.0.0.1:7200", state="odp-state").submit(task)

All queries are released once, together, and cost one joint event.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from odp._validate import identifier, strict_keywords
from odp.algorithms.registry import algorithm_for
from odp.algorithms.statistics.config import Histogram, Mean, resolve
from odp.errors import ConfigurationError
from odp.task import FULL, Cohort, UserLevelDP, check_delta_for
from odp.v1 import common_pb2


@strict_keywords
@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Histograms and means over the tables of a population of devices, in one round.

    Attributes:
      name: For people: [a-z0-9_.-], at most 64 characters.
      queries: What is asked, by name; 1 to 64.
      privacy: Budget of all queries together; it has no ``max_items_per_user``, since each query bounds a user itself.
      cohort: Whom the round needs.
      population: Devices enrol in a population; its tasks share one privacy ledger. Default: the task's name.

    Raises ConfigurationError for a value out of range, PrivacyError for a delta that is no guarantee at this cohort.
    """

    name: str
    queries: Mapping[str, Histogram | Mean] = field(hash=False)
    privacy: UserLevelDP
    cohort: Cohort = field(default_factory=Cohort)
    population: str = ""

    def __post_init__(self) -> None:
        identifier(name=self.name)
        if self.population == "":
            object.__setattr__(self, "population", self.name)
        identifier(population=self.population)
        if not isinstance(self.queries, Mapping) or not self.queries:
            raise ConfigurationError("Expected queries to be a dictionary from names to odp.Histogram or odp.Mean")
        for name, query in self.queries.items():
            identifier(name=name)
            if not isinstance(query, (Histogram, Mean)):
                raise ConfigurationError(
                    f"Expected query {name!r} to be an odp.Histogram or odp.Mean, got a {type(query).__name__}"
                )
        object.__setattr__(self, "queries", dict(self.queries))
        for kind, value in ((UserLevelDP, self.privacy), (Cohort, self.cohort)):
            if not isinstance(value, kind):
                raise ConfigurationError(f"Expected an odp.{kind.__name__}, got a {type(value).__name__}")
        if self.privacy.max_items_per_user is not None:
            raise ConfigurationError(
                f"Expected no max_items_per_user={self.privacy.max_items_per_user}: "
                "each query of statistics bounds a user by its own clip or max_records"
            )
        if self.privacy.epsilon == math.inf:
            raise ConfigurationError(
                "Expected epsilon to be finite; odp.simulate(.., noise=False) shows statistics without noise"
            )
        if self.cohort.sampling != FULL:
            raise ConfigurationError(
                f"Expected no sampling={self.cohort.sampling!r} with odp.Statistics: in one round, every contribution "
                "that is left out costs accuracy and buys nothing"
            )
        check_delta_for(self.privacy.delta, self.cohort.to_proto(self.privacy.delta).goal)
        algorithm_for(self.definition()).check()

    def definition(self) -> common_pb2.TaskDefinition:
        """The task with every number resolved, noise included; ``developer_key`` is empty until a server signs it."""
        cohort, privacy = self.cohort.to_proto(self.privacy.delta), self.privacy
        return common_pb2.TaskDefinition(
            name=self.name,
            population=self.population,
            privacy=common_pb2.PrivacyTerms(epsilon=privacy.epsilon, delta=privacy.delta),
            cohort=cohort,
            statistics=resolve(
                self.queries,
                epsilon=privacy.epsilon,
                delta=privacy.delta,
                goal=cohort.goal,
                sharers=cohort.secagg.sharers,
            ),
        )
