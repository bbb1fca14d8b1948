"""Which half of a mode a device plays: the one place of the device where a mode's number becomes code.

Where devices take part in sessions (``odp.protocol.aggregation.mode.Mode.in_session``),
``device_runtime.round.secagg_sessions`` seats them, and nothing is split.
"""

from __future__ import annotations

from collections.abc import Mapping

from device_runtime.modes.device_half import DeviceHalf
from device_runtime.modes.masked import MaskedVector
from odp.v1.common_pb2 import CohortTerms

_HALVES: Mapping[CohortTerms.Aggregation, DeviceHalf] = {
    CohortTerms.AGGREGATION_UNSPECIFIED: DeviceHalf(),
    CohortTerms.AGGREGATION_MASKED: MaskedVector(),
    CohortTerms.AGGREGATION_SECAGG: DeviceHalf(),
}


def half_of(cohort: CohortTerms) -> DeviceHalf:
    """The device's half of the mode of a task's cohort, which was checked (``odp.signed.task``)."""
    return _HALVES[cohort.aggregation]
