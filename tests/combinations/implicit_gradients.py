"""Its tasks; see the package."""

from __future__ import annotations

import math
from collections.abc import Mapping

from odp.algorithms.choices import define
from odp.algorithms.dpsgd.config import DPSGD
from odp.algorithms.implicit.config import ImplicitData
from odp.models.matrix_factorization import MatrixFactorization
from odp.protocol.terms import Cohort, UserLevelDP
from odp.v1 import common_pb2

_ITEMS = 6


def aggregated(aggregations: Mapping[str, int], *, large: int) -> tuple[common_pb2.TaskDefinition, ...]:
    """One task per way through the aggregator's enclave."""
    return (_definition(0.5),)


def published() -> tuple[common_pb2.TaskDefinition, ...]:
    """Tasks whose models the distributor's enclave serves, made without the accountant and its libraries."""
    definition = _definition(math.inf)
    gradients = definition.item_gradients
    definition.privacy.epsilon = gradients.mass_noise = gradients.gradient_noise = gradients.gramian_noise = 1.0
    return (definition,)


def _definition(epsilon: float) -> common_pb2.TaskDefinition:
    return define(
        name="recorded",
        model=MatrixFactorization(items=_ITEMS, rank=2),
        data=ImplicitData(),
        privacy=UserLevelDP(epsilon=epsilon, delta=1e-6, max_items_per_user=3),
        training=DPSGD(rounds=2, clip=1.0),
        cohort=Cohort(minimum=1, goal=1),
    )
