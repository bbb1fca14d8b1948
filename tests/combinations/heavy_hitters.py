"""Its tasks; see the package."""

from __future__ import annotations

from collections.abc import Mapping

from odp.algorithms.heavy_hitters.task import HeavyHitters
from odp.models.events import Events
from odp.models.events_query import AGGREGATES
from odp.protocol.aggregation import MODES
from odp.protocol.terms import Cohort, UserLevelDP
from odp.v1 import common_pb2, events_query_pb2, heavy_hitters_pb2, statistics_pb2


def aggregated(aggregations: Mapping[str, int], *, large: int) -> tuple[common_pb2.TaskDefinition, ...]:
    """One task of two rounds per way through the aggregator's enclave that has rounds."""
    return tuple(
        HeavyHitters(
            name="recorded",
            events=Events(service="recorded", type="typed", item="word"),
            alphabet="ab",
            length=2,
            prefixes=2,
            privacy=UserLevelDP(epsilon=8.0, delta=1e-6),
            cohort=Cohort(minimum=fewest, goal=fewest, aggregation=name),
        ).definition()
        for name, fewest in aggregations.items()
        if not MODES[name].in_session
    )


def published() -> tuple[common_pb2.TaskDefinition, ...]:
    """Tasks whose models the distributor's enclave serves, made without the accountant and its libraries."""
    words = heavy_hitters_pb2.WordTerms(
        table="events.recorded",
        events=events_query_pb2.EventsQuery(
            type="typed", item_columns=["word"], aggregate=AGGREGATES["each"], most_events=1
        ),
        alphabet="ab",
        length=2,
    )
    terms = statistics_pb2.DenseTerms(clip=1.0, grid_bits=7, noise_std=1.0, maximum=2)
    definition = common_pb2.TaskDefinition(
        name="recorded",
        population="recorded",
        privacy=common_pb2.PrivacyTerms(epsilon=1.0, delta=1e-6),
        cohort=common_pb2.CohortTerms(minimum=1, goal=1, round_seconds=256),
        heavy_hitters=heavy_hitters_pb2.HeavyHitters(
            words=words, first=1, prefixes=2, most_words=2, threshold=4.0, dense=terms
        ),
    )
    return (definition,)
