"""What a device does in one mode of aggregation, where it sends its contribution by itself."""

from __future__ import annotations

from collections.abc import Callable


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
