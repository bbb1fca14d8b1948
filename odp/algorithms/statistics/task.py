"""What a developer writes to ask a population a question, without training anything.

Example::

    import odp

    task = odp.Statistics(
        name="listening",
        queries={"hours": odp.Histogram(bins=24), "minutes": odp.Mean(low=0, high=60)},
        privacy=odp.UserLevelDP(epsilon=1, delta=1e-6),
        cohort=odp.Cohort(minimum=100, goal=1000),
    )
    odp.simulate(task, odp.load("listening.npz")).results["hours"].counts
    odp.connect("127.0.0.1:7200", state="odp-state").submit(task)

All queries are released once, together, and cost one joint event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from odp._validate import identifier, strict_keywords
from odp.algorithms.statistics.config import Histogram, Mean, resolve
from odp.errors import ConfigurationError
from odp.task import Question
from odp.v1 import common_pb2


@strict_keywords
@dataclass(frozen=True, kw_only=True)
class Statistics(Question):
    """Histograms and means over the tables of a population of devices, in one round.

    Attributes:
      name: For people: [a-z0-9_.-], at most 64 characters.
      queries: What is asked, by name; 1 to 64.
      privacy: Budget of all queries together; it has no ``max_items_per_user``, since each query bounds a user itself.
      cohort: Whom the round needs.
      population: Devices enrol in a population; its tasks share one privacy ledger. Default: the task's name.

    Raises ConfigurationError for a value out of range, PrivacyError for a delta that is no guarantee at this cohort.
    """

    queries: Mapping[str, Histogram | Mean] = field(hash=False)

    def __post_init__(self) -> None:
        if not isinstance(self.queries, Mapping) or not self.queries:
            raise ConfigurationError("Expected queries to be a dictionary from names to odp.Histogram or odp.Mean")
        for name, query in self.queries.items():
            identifier(name=name)
            if not isinstance(query, (Histogram, Mean)):
                raise ConfigurationError(
                    f"Expected query {name!r} to be an odp.Histogram or odp.Mean, got a {type(query).__name__}"
                )
        object.__setattr__(self, "queries", dict(self.queries))
        super().__post_init__()

    def definition(self) -> common_pb2.TaskDefinition:
        """The task with every number resolved, noise included; ``developer_key`` is empty until a server signs it."""
        definition, privacy = self.unresolved(), self.privacy
        resolved = resolve(self.queries, epsilon=privacy.epsilon, delta=privacy.delta, cohort=definition.cohort)
        definition.statistics.CopyFrom(resolved)
        return definition
