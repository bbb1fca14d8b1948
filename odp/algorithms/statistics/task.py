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

What a developer asks for: histograms and means over a local table, and how they become numbers of a definition.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from odp import _validate
from odp._validate import identifier, one_of, strict_keywords
from odp.algorithms.choices import Question
from odp.algorithms.registry import part_of
from odp.algorithms.statistics.parts import check_labels
from odp.errors import ConfigurationError
from odp.identity import normal
from odp.models.events import Events, table_of
from odp.protocol.aggregation import DEFAULT
from odp.v1 import common_pb2

if TYPE_CHECKING:
    from odp.v1 import statistics_pb2

_TABLE = "ratings"
_MOST_BINS = 2**21
_MOST_EDGES = 2**12
_MOST_RECORDS = 2**16
_COUNTS = ("users", "records", "shares")


@_validate.strict_keywords
@dataclass(frozen=True, kw_only=True)
class Histogram:
    """How the records of all users spread over bins.

    With ``bins`` alone, bin i counts the item whose id is the whole number i, whatever other ids a table has. A
    simulation refuses a table with other ids, by name; a device leaves such rows out.

    With ``low`` and ``high`` too, the bins divide the values evenly; with ``edges`` they divide them at these bounds.
    Records outside of all bins are left out.

    Bins can have ``labels``, by which results name them. Labels of values name the bins in their order. Labels of items
    are their ids: bin i counts the item whose id is label i, such as "SKU7".

    Attributes:
      bins: number of bins; with ``labels`` of items, as many as these.
      low, high: range of values, for bins of equal width.
      edges: bounds of values, ascending, one more than bins; a bin holds its lower edge, the last one its upper too.
      labels: names of the bins, one for each, at most 4,096; distinct in normal form C, of 1 to 64 characters.
      counts: what a user adds to a bin: "users" 1 where it has any record there, "records" the number of its records
        there, "shares" the share of its records there (so every user counts alike, and bins sum to the users).
      clip: L2 bound of a user's counts; longer ones are scaled down to it, which biases the result. None is the bound
        that never binds: sqrt(bins) for users, 1 for shares. Records have no such bound, so they need a clip.
      table: local table of (item, value).
      events: makes the rows of events instead, as the task says: see ``odp.Events``; each event is one by default.
      share: part of the privacy budget, in proportion to the other queries' shares.

    Raises:
      ConfigurationError: a number is out of range, or the bins are given in no way or in two.
    """

    bins: int | None = None
    low: float | None = None
    high: float | None = None
    edges: Sequence[float] | None = None
    labels: Sequence[str] | None = None
    counts: str = "users"
    clip: float | None = None
    table: str = _TABLE
    events: Events | None = None
    share: float = 1.0

    def __post_init__(self) -> None:
        """Checks the ranges."""
        table_of(self.table, self.events, default=_TABLE)
        _validate.one_of(_COUNTS, counts=self.counts)
        _validate.positive(share=self.share)
        ranged = self.low is not None or self.high is not None
        self._check_labels()
        if (self.edges is None) == (self.bins is None) or (ranged and self.edges is not None):
            raise ConfigurationError("Expected a histogram to have bins, or bins with low and high, or edges")
        if self.bins is not None:
            _validate.integer(bins=self.bins, low=1, high=_MOST_EDGES - 1 if ranged else _MOST_BINS)
        if ranged:
            if self.low is None or self.high is None:
                raise ConfigurationError(f"Expected both low={self.low!r} and high={self.high!r}, or neither")
            _validate.finite(low=self.low, high=self.high)
            if not self.low < self.high:
                raise ConfigurationError(f"Expected low={self.low!r} to be below high={self.high!r}")
        if self.edges is not None:
            if not 2 <= len(self.edges) <= _MOST_EDGES:
                raise ConfigurationError(f"Expected edges to be 2 to {_MOST_EDGES} numbers")
            _validate.finite(**{f"edges[{place}]": edge for place, edge in enumerate(self.edges)})
            object.__setattr__(self, "edges", tuple(float(edge) for edge in self.edges))
            if not all(np.diff(self.edges) > 0):
                raise ConfigurationError("Expected edges to be ascending")
        if self.clip is not None:
            _validate.positive(clip=self.clip)
        elif self.counts == "records":
            raise ConfigurationError("Expected clip, the L2 bound of a user's counts: the number of records has none")

    def _check_labels(self) -> None:
        """Labels of items say how many bins there are, and labels of values are as many as these."""
        if self.labels is None:
            return
        named = [normal(label) if isinstance(label, str) else label for label in _sequence(self.labels)]
        object.__setattr__(self, "labels", check_labels(named, where="labels"))
        bins = len(self.edges) - 1 if self.edges is not None else self.bins
        if bins is None:
            object.__setattr__(self, "bins", len(named))
        elif bins != len(named):
            raise ConfigurationError(f"Expected one label for each of the {bins} bins (got {len(named)} labels)")
        if self.events is not None and self.events.buckets:
            raise ConfigurationError("Expected no labels with events in buckets: a hash chooses the bin")

    def to_proto(self, name: str) -> statistics_pb2.StatisticsQuery:
        """The query ``name``, its share not yet divided by all shares."""
        from odp.v1 import statistics_pb2

        edges = self._edges()
        bins = len(edges) - 1 if edges is not None else int(self.bins or 0)
        free = math.sqrt(bins) if self.counts == "users" else 1.0
        columns, countings = statistics_pb2.StatisticsQuery, statistics_pb2.HistogramQuery
        return statistics_pb2.StatisticsQuery(
            name=name,
            table=table_of(self.table, self.events, default=_TABLE),
            events=None if self.events is None else self.events.to_proto(aggregate="each"),
            column=columns.COLUMN_ITEM if edges is None else columns.COLUMN_VALUE,
            share=self.share,
            histogram=statistics_pb2.HistogramQuery(
                bins=bins,
                edges=b"" if edges is None else np.asarray(edges, dtype="<f8").tobytes(),
                counting={
                    "users": countings.COUNTING_USERS,
                    "records": countings.COUNTING_RECORDS,
                    "shares": countings.COUNTING_SHARES,
                }[self.counts],
                clip=free if self.clip is None else self.clip,
                labels=self.labels or (),
            ),
        )

    def _edges(self) -> Sequence[float] | None:
        if self.low is None or self.high is None or self.bins is None:
            return self.edges
        return [float(edge) for edge in np.linspace(self.low, self.high, self.bins + 1)]


def _sequence(labels: Sequence[str]) -> Sequence[str]:
    if isinstance(labels, str) or not isinstance(labels, Sequence) or not labels:
        raise ConfigurationError(f"Expected labels={labels!r} to be the names of the bins, such as ('day', 'night')")
    return labels


@_validate.strict_keywords
@dataclass(frozen=True, kw_only=True)
class Mean:
    """The mean of a local table's values.

    Attributes:
      low, high: declared range; a value outside is clamped to it.
      max_records: a user counts as often as it has records, but no more often than this. With 1, it is the mean of
        users' means.
      table: local table of (item, value).
      events: makes the rows of events instead, as the task says: see ``odp.Events``; each event is one by default.
      share: part of the privacy budget, in proportion to the other queries' shares.

    Raises:
      ConfigurationError: a number is out of range.
    """

    low: float
    high: float
    max_records: int = 1
    table: str = _TABLE
    events: Events | None = None
    share: float = 1.0

    def __post_init__(self) -> None:
        """Checks the ranges."""
        table_of(self.table, self.events, default=_TABLE)
        _validate.within(low=-1e12, high=1e12, mean_low=self.low, mean_high=self.high)
        if not self.low < self.high:
            raise ConfigurationError(f"Expected low={self.low!r} to be below high={self.high!r}")
        _validate.integer(max_records=self.max_records, low=1, high=_MOST_RECORDS)
        _validate.positive(share=self.share)

    def to_proto(self, name: str) -> statistics_pb2.StatisticsQuery:
        """The query ``name``, its share not yet divided by all shares."""
        from odp.v1 import statistics_pb2

        return statistics_pb2.StatisticsQuery(
            name=name,
            table=table_of(self.table, self.events, default=_TABLE),
            events=None if self.events is None else self.events.to_proto(aggregate="each"),
            column=statistics_pb2.StatisticsQuery.COLUMN_VALUE,
            share=self.share,
            mean=statistics_pb2.MeanQuery(low=self.low, high=self.high, max_records=self.max_records),
        )


def resolve(
    queries: Mapping[str, Histogram | Mean], *, epsilon: float, delta: float, cohort: common_pb2.CohortTerms
) -> statistics_pb2.Statistics:
    """Every number of the task, with the noise that makes the joint release (epsilon, delta)-DP.

    Raises:
      ConfigurationError, PrivacyError: as ``odp.algorithms.dense.grid.Grid.within_budget``.
    """
    from odp.algorithms.dense.grid import Grid
    from odp.v1 import statistics_pb2

    messages = [query.to_proto(name) for name, query in queries.items()]
    total = math.fsum(query.share for query in messages)
    for query in messages:
        query.share /= total
    size = sum(query.histogram.bins if query.HasField("histogram") else 2 for query in messages)
    grid = Grid.within_budget(size=size, epsilon=epsilon, delta=delta, cohort=cohort)
    return statistics_pb2.Statistics(queries=messages, dense=grid.to_proto())


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

    section: ClassVar[str] = "queries"
    at_the_top: ClassVar[tuple[str, ...]] = ("trust", "corrupt_fraction")
    query_kinds: ClassVar[Mapping[str, type]] = MappingProxyType({"histogram": Histogram, "mean": Mean})

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
