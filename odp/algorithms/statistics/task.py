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

All queries are released once, together, and cost one joint event. ``trust`` chooses who may see what devices send:

============  ===========================  =====================================  ===================================
trust         what a device sends          who sees it                            the guarantee ``privacy``
============  ===========================  =====================================  ===================================
"aggregator"  its bounded numbers, sealed  the attested enclave, which adds noise  of the answers
"shuffle"     one randomised report        the attested enclave, which adds none   of the answers; each report also has
                                                                                  a weaker one of its own
"local"       one randomised report        everybody                              of each report, pure: delta is unused
============  ===========================  =====================================  ===================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from odp._validate import identifier, one_of, strict_keywords
from odp.algorithms.question import Question
from odp.algorithms.registry import part_of
from odp.algorithms.statistics.config import Histogram, Mean, resolve
from odp.errors import ConfigurationError
from odp.protocol.aggregation.table import DEFAULT
from odp.v1 import common_pb2

AGGREGATOR, SHUFFLE, LOCAL = "aggregator", "shuffle", "local"


@strict_keywords
@dataclass(frozen=True, kw_only=True)
class Statistics(Question):
    """Histograms and means over the tables of a population of devices, in one round.

    Attributes:
      name: For people: [a-z0-9_.-], at most 64 characters.
      queries: What is asked, by name; 1 to 64.
      privacy: Budget of all queries together; it has no ``max_items_per_user``, since each query bounds a user itself.
      cohort: Whom the round needs. With "local" there is no round: the task is finished after ``goal`` reports.
      population: Devices enrol in a population; its tasks share one privacy ledger. Default: the task's name.
      trust: "aggregator", "shuffle" or "local": see the module.
      corrupt_fraction: With "shuffle": at most this fraction of the reports comes from devices that help whoever
        attacks; default 0.1. Their reports hide nobody, and are not counted on.

    Raises ConfigurationError for a value out of range, PrivacyError for a delta that is no guarantee at this cohort.
    """

    queries: Mapping[str, Histogram | Mean] = field(hash=False)
    trust: str = AGGREGATOR
    corrupt_fraction: float | None = None

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
        one_of((AGGREGATOR, SHUFFLE, LOCAL), trust=self.trust)
        if self.corrupt_fraction is not None and self.trust != SHUFFLE:
            raise ConfigurationError(
                f"Expected corrupt_fraction={self.corrupt_fraction!r} with trust={SHUFFLE!r} alone "
                f"(got trust={self.trust!r})"
            )
        if self.trust != AGGREGATOR and self.cohort.aggregation != DEFAULT:
            raise ConfigurationError(
                f"Expected aggregation={self.cohort.aggregation!r} to be {DEFAULT!r} with trust={self.trust!r}: "
                "what devices send is no vector that masks could hide"
            )
        super().__post_init__()

    def definition(self) -> common_pb2.TaskDefinition:
        """The task with every number resolved, noise included; ``developer_key`` is empty until a server signs it."""
        definition, privacy = self.unresolved(), self.privacy
        if self.trust == AGGREGATOR:
            resolved = resolve(self.queries, epsilon=privacy.epsilon, delta=privacy.delta, cohort=definition.cohort)
            definition.statistics.CopyFrom(resolved)
            return definition
        messages = [query.to_proto(name) for name, query in self.queries.items()]
        # The algorithm of this trust imports what is here, so the table finds it.
        if self.trust == SHUFFLE:
            part_of("shuffled_statistics", "config").write(definition, messages, corrupt_fraction=self.corrupt_fraction)
        else:
            part_of("local_statistics", "config").write(definition, messages)
        return definition
