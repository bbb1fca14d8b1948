"""Which enclave half a task's mode of aggregation has: the one place where the mode's number becomes code."""

from __future__ import annotations

from collections.abc import Mapping

from odp.v1.common_pb2 import CohortTerms, TaskDefinition
from trusted_aggregator.modes.enclave.enclave_half import EnclaveRound
from trusted_aggregator.modes.masked.enclave_half import MaskedRound
from trusted_aggregator.modes.secagg.enclave_half import SecAggRound
from trusted_aggregator.rounds.enclave_half import Round

_ROUNDS: Mapping[CohortTerms.Aggregation, type[Round]] = {
    CohortTerms.AGGREGATION_UNSPECIFIED: EnclaveRound,
    CohortTerms.AGGREGATION_MASKED: MaskedRound,
    CohortTerms.AGGREGATION_SECAGG: SecAggRound,
}


def round_class(definition: TaskDefinition) -> type[Round]:
    """The class of a task's rounds; the definition was checked (``odp.signed.task``)."""
    return _ROUNDS[definition.cohort.aggregation]
