"""The tasks that an enclave runs through before it can import nothing more."""

from __future__ import annotations

from collections.abc import Mapping

from odp.algorithms.fedavg.config import DPFedAvg
from odp.models.examples import Examples, Tensor
from odp.models.glm import Glm
from odp.task import Cohort, Task, UserLevelDP
from odp.v1 import common_pb2, federated_pb2, statistics_pb2

_FEATURES = 3


def aggregated(aggregations: Mapping[str, int], *, large: int) -> tuple[common_pb2.TaskDefinition, ...]:
    """One task per way through the aggregator's enclave; ``aggregations`` has the fewest contributions of each."""
    return tuple(
        Task(
            name="rehearsal",
            model=Glm("linear", _FEATURES),
            data=Examples({"x": Tensor((_FEATURES,), -1.0, 1.0)}, label_low=-1.0, label_high=1.0),
            privacy=UserLevelDP(epsilon=8.0, delta=1e-6),
            training=DPFedAvg(rounds=1),
            cohort=Cohort(minimum=clients, goal=clients, aggregation=name),
        ).definition()
        for name, clients in aggregations.items()
    )


def published() -> tuple[common_pb2.TaskDefinition, ...]:
    """Tasks whose models the distributor's enclave serves, made without the accountant and its libraries."""
    definition = common_pb2.TaskDefinition(
        name="rehearsal",
        population="rehearsal",
        privacy=common_pb2.PrivacyTerms(epsilon=1.0, delta=1e-6),
        cohort=common_pb2.CohortTerms(minimum=1, goal=1, round_seconds=1),
    )
    Glm("linear", _FEATURES).write(definition)
    Examples({"x": Tensor((_FEATURES,), -1.0, 1.0)}, label_low=-1.0, label_high=1.0).write(definition)
    dense = statistics_pb2.DenseTerms(clip=1.0, grid_bits=6, noise_std=1.0, maximum=2)
    definition.fedavg.CopyFrom(
        federated_pb2.FedAvg(
            local=federated_pb2.LocalTrainingTerms(rate=0.1, epochs=1, batch=1, most_examples=1),
            server=federated_pb2.ServerOptimizerTerms(kind=federated_pb2.ServerOptimizerTerms.KIND_SGD, rate=1.0),
            clip=1.0,
            cohort=1.0,
            blocks=[federated_pb2.DenseRounds(rounds=1, dense=dense)],
        )
    )
    return (definition,)
