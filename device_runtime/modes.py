"""What a device does in each mode of aggregation; the one place of the device where a mode's number becomes code.

Where devices take part in sessions (``odp.protocol.aggregation.Mode.in_session``),
``device_runtime.round.secagg_sessions`` seats them, and nothing is split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from odp.crypto import domains
from odp.crypto.secure_aggregation.masked import mask
from odp.v1.common_pb2 import CohortTerms


class DeviceHalf:
    """The half of a mode in which the enclave gets contributions whole; other modes are subclasses."""

    def host_bytes(self, payload_bytes: int) -> int:
        """Length of the part that the aggregator's host gets of a payload; 0 where it gets none."""
        return 0

    def split(
        self, payload: bytes, *, task_sha256: bytes, round: int, random_bytes: Callable[[int], bytes]
    ) -> tuple[bytes, bytes]:
        """(what is sealed to the enclave, what the host gets) of a payload."""
        return payload, b""


class MaskedVector(DeviceHalf):
    """The host gets a vector as long as the payload, and the enclave the short secret that its mask grows from."""

    def host_bytes(self, payload_bytes: int) -> int:
        return payload_bytes

    def split(
        self, payload: bytes, *, task_sha256: bytes, round: int, random_bytes: Callable[[int], bytes]
    ) -> tuple[bytes, bytes]:
        halves = mask(payload, info=domains.masked_vector_info(task_sha256, round), random_bytes=random_bytes)
        return halves.secret, halves.vector


_HALVES: Mapping[CohortTerms.Aggregation, DeviceHalf] = {
    CohortTerms.AGGREGATION_UNSPECIFIED: DeviceHalf(),
    CohortTerms.AGGREGATION_MASKED: MaskedVector(),
    CohortTerms.AGGREGATION_SECAGG: DeviceHalf(),
}


def half_of(cohort: CohortTerms) -> DeviceHalf:
    """The device's half of the mode of a task's cohort, which was checked (``odp.signed.task``)."""
    return _HALVES[cohort.aggregation]
