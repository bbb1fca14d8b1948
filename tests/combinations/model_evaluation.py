"""Its tasks; see the package."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from odp.algorithms.model_evaluation.task import Evaluation, sha256_of
from odp.models.examples import Examples
from odp.models.features import Tensor
from odp.models.glm import Glm
from odp.protocol.terms import Cohort, UserLevelDP
from odp.v1 import common_pb2, model_evaluation_pb2, statistics_pb2

_MODEL = Glm("logistic", 3)
_DATA = Examples({"x": Tensor((3,), -1.0, 1.0)})
_BINS = 4


def aggregated(aggregations: Mapping[str, int], *, large: int) -> tuple[common_pb2.TaskDefinition, ...]:
    """One task per way through the aggregator's enclave; ``aggregations`` has the fewest contributions of each."""
    return tuple(
        Evaluation(
            name="recorded",
            model=_MODEL,
            data=_DATA,
            of=np.zeros(_MODEL.size, dtype=np.float32),
            bins=_BINS,
            privacy=UserLevelDP(epsilon=8.0, delta=1e-6),
            cohort=Cohort(minimum=clients, goal=clients, aggregation=name),
        ).definition()
        for name, clients in aggregations.items()
    )


def published() -> tuple[common_pb2.TaskDefinition, ...]:
    """Tasks whose models the distributor's enclave serves, made without the accountant and its libraries."""
    definition = common_pb2.TaskDefinition(
        name="recorded",
        population="recorded",
        privacy=common_pb2.PrivacyTerms(epsilon=1.0, delta=1e-6),
        cohort=common_pb2.CohortTerms(minimum=1, goal=1, round_seconds=256),
    )
    _MODEL.write(definition)
    _DATA.write(definition)
    definition.examples.label_high = 1.0
    definition.model_evaluation.CopyFrom(
        model_evaluation_pb2.ModelEvaluation(
            models=1,
            parameters_sha256=sha256_of(np.zeros((1, _MODEL.size), dtype=np.float32)),
            top=[1],
            most_examples=1,
            dense=statistics_pb2.DenseTerms(clip=1.0, grid_bits=6, noise_std=1.0, maximum=2),
        )
    )
    return (definition,)
