"""Its tasks; see the package."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from odp.algorithms.quantiles.task import Quantiles
from odp.protocol.terms import Cohort, UserLevelDP
from odp.v1 import common_pb2, statistics_pb2

_BINS = 6


def aggregated(aggregations: Mapping[str, int], *, large: int) -> tuple[common_pb2.TaskDefinition, ...]:
    """One task per way through the aggregator's enclave; ``aggregations`` has the fewest contributions of each."""
    return tuple(_definition(name, clients=fewest) for name, fewest in aggregations.items())


def published() -> tuple[common_pb2.TaskDefinition, ...]:
    """Tasks whose models the distributor's enclave serves, made without the accountant and its libraries."""
    message = common_pb2.Quantiles(
        table="ratings",
        edges=np.arange(_BINS + 1, dtype="<f8").tobytes(),
        at=[0.5],
        dense=statistics_pb2.DenseTerms(clip=1.0, grid_bits=6, noise_std=1.0, maximum=2),
    )
    definition = common_pb2.TaskDefinition(
        name="recorded",
        population="recorded",
        privacy=common_pb2.PrivacyTerms(epsilon=1.0, delta=1e-6),
        cohort=common_pb2.CohortTerms(minimum=1, goal=1, round_seconds=256),
        quantiles=message,
    )
    return (definition,)


def _definition(aggregation: str, *, clients: int) -> common_pb2.TaskDefinition:
    return Quantiles(
        name="recorded",
        low=0,
        high=2,
        bins=_BINS,
        privacy=UserLevelDP(epsilon=8.0, delta=1e-6),
        cohort=Cohort(minimum=clients, goal=clients, aggregation=aggregation),
    ).definition()
