"""Its tasks; see the package."""

from __future__ import annotations

import math
from collections.abc import Mapping

from odp.algorithms.choices import define
from odp.algorithms.dpam.config import DPAM, RatingsData
from odp.models.matrix_factorization import MatrixFactorization
from odp.protocol.terms import Cohort, UserLevelDP
from odp.v1 import common_pb2

_ITEMS = 6


def aggregated(aggregations: Mapping[str, int], *, large: int) -> tuple[common_pb2.TaskDefinition, ...]:
    """One task per way through the aggregator's enclave."""
    return _definition(0.5, DPAM(steps=1)), _definition(0.5, DPAM(step="gradient", steps=2), rank=4)


def published() -> tuple[common_pb2.TaskDefinition, ...]:
    """Tasks whose models the distributor's enclave serves, made without the accountant and its libraries.

    Their privacy is finite, and is not computed here: the aggregator accounts for the noise.
    """
    definitions = _definition(math.inf, DPAM()), _definition(math.inf, DPAM(step="gradient"), rank=4)
    for definition in definitions:
        dpam = definition.dpam
        definition.privacy.epsilon = dpam.count_noise_std = dpam.bias_mass_noise = 1.0
        dpam.gram_noise = dpam.target_noise = 1.0
    definitions[0].dpam.bias_sum_noise = 1.0
    return definitions


def _definition(epsilon: float, training: DPAM, *, rank: int = 2) -> common_pb2.TaskDefinition:
    return define(
        name="recorded",
        model=MatrixFactorization(items=_ITEMS, rank=rank),
        data=RatingsData(low=1, high=5),
        privacy=UserLevelDP(epsilon=epsilon, delta=1e-6, max_items_per_user=3),
        training=training,
        cohort=Cohort(minimum=1, goal=1),
    )
