"""Its tasks; see the package."""

from __future__ import annotations

from collections.abc import Mapping

from odp.algorithms.dense.grid import Grid
from odp.algorithms.usable_count.terms import SIZE
from odp.models.examples import Examples
from odp.models.features import Tensor
from odp.models.glm import Glm
from odp.protocol.terms import Cohort
from odp.v1 import common_pb2, statistics_pb2

_DELTA = 1e-6


def aggregated(aggregations: Mapping[str, int], *, large: int) -> tuple[common_pb2.TaskDefinition, ...]:
    """One task per way through the aggregator's enclave; ``aggregations`` has the fewest contributions of each."""
    definitions = []
    for name, clients in aggregations.items():
        cohort = Cohort(minimum=clients, goal=clients, aggregation=name).to_proto(_DELTA)
        grid = Grid.within_budget(size=SIZE, epsilon=8.0, delta=_DELTA, cohort=cohort)
        definitions.append(_definition(cohort, grid.to_proto(), epsilon=8.0))
    return tuple(definitions)


def published() -> tuple[common_pb2.TaskDefinition, ...]:
    """Tasks whose models the distributor's enclave serves, made without the accountant and its libraries."""
    dense = statistics_pb2.DenseTerms(clip=1.0, grid_bits=6, noise_std=1.0, maximum=2)
    return (_definition(common_pb2.CohortTerms(minimum=1, goal=1, round_seconds=256), dense, epsilon=1.0),)


def _definition(
    cohort: common_pb2.CohortTerms, dense: statistics_pb2.DenseTerms, *, epsilon: float
) -> common_pb2.TaskDefinition:
    definition = common_pb2.TaskDefinition(
        name="recorded",
        population="recorded",
        privacy=common_pb2.PrivacyTerms(epsilon=epsilon, delta=_DELTA),
        cohort=cohort,
        usable_count=common_pb2.UsableCount(most_examples=1, dense=dense),
    )
    Glm("logistic", 3).write(definition)
    Examples({"x": Tensor((3,), -1.0, 1.0)}).write(definition)
    definition.examples.label_high = 1.0
    return definition
