"""The device's half of the mode in which the host gets masked vectors, and the enclave their masks."""

from __future__ import annotations

from collections.abc import Callable

from device_runtime.modes.device_half import DeviceHalf
from odp.crypto import domains
from odp.crypto.secure_aggregation.masked import mask


class MaskedVector(DeviceHalf):
    """The host gets a vector as long as the payload, and the enclave the short secret that its mask grows from."""

    def host_bytes(self, payload_bytes: int) -> int:
        return payload_bytes

    def split(
        self, payload: bytes, *, task_sha256: bytes, round: int, random_bytes: Callable[[int], bytes]
    ) -> tuple[bytes, bytes]:
        halves = mask(payload, info=domains.masked_vector_info(task_sha256, round), random_bytes=random_bytes)
        return halves.secret, halves.vector
