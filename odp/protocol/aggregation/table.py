"""Every mode of aggregation: the one table for what a developer writes, a task says and a party asks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from odp.errors import ConfigurationError
from odp.protocol.aggregation.mode import Mode
from odp.protocol.aggregation.secagg import Sessions
from odp.v1.common_pb2 import CohortTerms

ENCLAVE, MASKED, SECAGG = "enclave", "masked", "secagg+"

_ALL = (
    Mode(name=ENCLAVE, number=CohortTerms.AGGREGATION_UNSPECIFIED, dense_only=False, samples=True),
    Mode(name=MASKED, number=CohortTerms.AGGREGATION_MASKED, dense_only=True),
    Sessions(
        name=SECAGG, number=CohortTerms.AGGREGATION_SECAGG, dense_only=True, in_session=True, minimum=3,
        options=("threat", "corrupt_fraction", "dropout_fraction", "roster_sha256", "roster_size"),
    ),
)  # fmt: skip

#: The modes by their names; the first one is what a task has unless it says otherwise.
MODES: Mapping[str, Mode] = MappingProxyType({mode.name: mode for mode in _ALL})
DEFAULT = ENCLAVE


def mode_of(cohort: CohortTerms) -> Mode:
    """The mode of a task's cohort. Raises ConfigurationError where this version knows none of its number."""
    for mode in _ALL:
        if mode.number == cohort.aggregation:
            return mode
    raise ConfigurationError(f"Expected cohort.aggregation={cohort.aggregation} to be a mode that this version knows")


def noise_sharers(cohort: CohortTerms) -> int:
    """The fewest honest devices that add the noise of a sum in shares; 0 where the enclave adds it."""
    return int(cohort.secagg.sharers)
