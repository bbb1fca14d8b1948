"""Its tasks; see the package."""

from __future__ import annotations

from collections.abc import Mapping

from combinations.federated import aggregated_by, published_by
from odp.algorithms.fedavg.config import DPFedAvg
from odp.v1 import common_pb2


def aggregated(aggregations: Mapping[str, int], *, large: int) -> tuple[common_pb2.TaskDefinition, ...]:
    """One task per way through the aggregator's enclave; ``aggregations`` has the fewest contributions of each."""
    return aggregated_by(DPFedAvg(rounds=1), aggregations, every_way=True)


def published() -> tuple[common_pb2.TaskDefinition, ...]:
    """Tasks whose models the distributor's enclave serves, made without the accountant and its libraries."""
    return published_by(DPFedAvg.field, every_way=True)
