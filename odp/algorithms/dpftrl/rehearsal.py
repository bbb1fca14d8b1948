"""The tasks that an enclave runs through before it can import nothing more."""

from __future__ import annotations

from collections.abc import Mapping

from odp.aggregation.table import ENCLAVE, SECAGG
from odp.algorithms.dpftrl.config import DPFTRL
from odp.algorithms.federated.rehearsal import aggregated_by, published_by
from odp.v1 import common_pb2


def aggregated(aggregations: Mapping[str, int], *, large: int) -> tuple[common_pb2.TaskDefinition, ...]:
    """One task per way through the aggregator's enclave; ``aggregations`` has the fewest contributions of each."""
    ways = {name: clients for name, clients in aggregations.items() if name != SECAGG}
    return (
        *aggregated_by(DPFTRL(rounds=2, bands=2), ways, fewer_bits=False),
        *aggregated_by(DPFTRL(rounds=2, mechanism="tree"), ways, fewer_bits=False),
        *aggregated_by(DPFTRL(rounds=2, mechanism="blt"), {ENCLAVE: aggregations[ENCLAVE]}, fewer_bits=False),
    )


def published() -> tuple[common_pb2.TaskDefinition, ...]:
    """Tasks whose models the distributor's enclave serves, made without the accountant and its libraries."""
    definitions = published_by(DPFTRL.field)
    for definition in definitions:
        stream = definition.dpftrl.stream
        stream.most = stream.separation = 1
        stream.tree.SetInParent()
    return definitions
