"""Its tasks; see the package."""

from __future__ import annotations

from collections.abc import Mapping

from combinations.federated import aggregated_by, published_by
from odp.algorithms.dpsgd.config import DPSGD
from odp.protocol.aggregation import ENCLAVE
from odp.v1 import common_pb2


def aggregated(aggregations: Mapping[str, int], *, large: int) -> tuple[common_pb2.TaskDefinition, ...]:
    """One task: an enclave runs DP-SGD as it runs DP-FedAvg, whose package has the ways."""
    return aggregated_by(DPSGD(rounds=1), {ENCLAVE: aggregations[ENCLAVE]})


def published() -> tuple[common_pb2.TaskDefinition, ...]:
    """Tasks whose models the distributor's enclave serves, made without the accountant and its libraries."""
    return published_by(DPSGD.field)
