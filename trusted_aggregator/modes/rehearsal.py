"""The steps of devices and developers that differ by mode, for the rehearsal that an enclave runs before it serves."""

from __future__ import annotations

from odp.aggregation.table import MODES
from odp.crypto import domains
from odp.crypto.secure_aggregation.masked import mask, set_sha256

#: How a task names each mode, and the fewest contributions that a round of it can have.
AGGREGATIONS = {name: mode.minimum for name, mode in MODES.items()}


def split(payload: bytes, *, task_sha256: bytes, round: int) -> tuple[bytes, bytes]:
    """(what is sealed to the enclave, what the host gets) of a device's payload, where the host gets a part."""
    halves = mask(payload, info=domains.masked_vector_info(task_sha256, round))
    return halves.secret, halves.vector


def set_of_one(digest: bytes, *, task_sha256: bytes, round: int) -> bytes:
    """The name of the set of one such part, by its SHA-256."""
    return set_sha256(task_sha256, round, [digest])
