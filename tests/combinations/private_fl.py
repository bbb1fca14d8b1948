"""Its tasks; see the package."""

from __future__ import annotations

from collections.abc import Mapping

from combinations.federated import aggregated_by, published_by
from odp.algorithms.federated.config import FederatedTraining
from odp.algorithms.private_fl.config import PrivateFL
from odp.protocol.aggregation import ENCLAVE
from odp.v1 import common_pb2, private_fl_pb2

_REPORT = private_fl_pb2.PrivateReportTerms(
    cap_height=0.0, cap_probability=0.75, largest_norm=1.0, levels=1, magnitude_epsilon=1.0, most_participations=1
)


class _AsGiven(PrivateFL):
    """With the randomizers above: the search for the best ones takes as long as all other recordings."""

    def write(self, definition: common_pb2.TaskDefinition) -> None:
        definition.private_fl.report.CopyFrom(_REPORT)
        FederatedTraining.write(self, definition)


def aggregated(aggregations: Mapping[str, int], *, large: int) -> tuple[common_pb2.TaskDefinition, ...]:
    """One task of the aggregator's enclave: beside its check of the randomizers, the code is that of every training."""
    return aggregated_by(_AsGiven(rounds=1, clip=1.0), {ENCLAVE: aggregations[ENCLAVE]})


def published() -> tuple[common_pb2.TaskDefinition, ...]:
    """Tasks whose models the distributor's enclave serves, made without the accountant and its libraries."""
    definitions = published_by(PrivateFL.field)
    for definition in definitions:
        definition.private_fl.report.CopyFrom(_REPORT)
    return definitions
