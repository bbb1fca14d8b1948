"""The host's half of a masked round: vectors that look random to it, and their sum over the set of the enclave."""

from __future__ import annotations

import hashlib

import numpy as np

from odp.crypto.secure_aggregation.masked import DIGEST_BYTES, MaskedSum, set_sha256
from odp.errors import StateError
from odp.v1 import aggregator_pb2
from trusted_aggregator.boundary.interface import Aggregator
from trusted_aggregator.host.storage import Storage


def masked_request(
    named: aggregator_pb2.SubmitRequest | aggregator_pb2.SubmitHeader, sealed: bytes, vector: bytes
) -> aggregator_pb2.SubmitRequest:
    """What the enclave is given of a masked contribution to the round that ``named`` names."""
    return aggregator_pb2.SubmitRequest(
        task_sha256=named.task_sha256,
        round=named.round,
        sealed_contribution=sealed,
        masked_sha256=hashlib.sha256(vector).digest(),
    )


def masked_sum(core: Aggregator, storage: Storage, task_sha256: bytes, round: int, *, length: int) -> MaskedSum:
    """The sum of exactly the vectors that the enclave accepted in a charged round.

    Raises:
        StateError: one of them is not stored, or was changed on the disk.
    """
    digests: list[bytes] = []
    while page := core.masked_set(task_sha256, round, len(digests)):
        digests += [page[start : start + DIGEST_BYTES] for start in range(0, len(page), DIGEST_BYTES)]
    missing = set(digests)
    total = np.zeros(length // 4, dtype=np.uint32)
    for digest, vector in storage.masked(task_sha256, round, missing):
        np.add(total, np.frombuffer(vector, dtype="<u4"), out=total)
        missing.discard(digest)
    if missing:
        raise StateError(
            f"{len(missing)} of {len(digests)} masked vectors of round {round} are missing or were changed on the "
            "disk: restore the state folder"
        )
    return MaskedSum(total.astype("<u4").tobytes(), set_sha256(task_sha256, round, sorted(digests)))
