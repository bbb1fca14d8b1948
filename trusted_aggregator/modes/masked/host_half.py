"""The host's half of a masked round: masked vectors, and their sum over the enclave's set.

Of a masked contribution, the vector stays here and its hash goes to the enclave; at the close the vectors that the
enclave names are summed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from typing import Protocol

import numpy as np

from odp.crypto.secure_aggregation.masked import DIGEST_BYTES, set_sha256
from odp.errors import Refusal, StateError
from odp.v1 import aggregator_pb2
from odp.v1.aggregator_enclave_pb2 import AskHostParts, ChargedRound
from trusted_aggregator.boundary.calls import AggregatorCalls
from trusted_aggregator.boundary.interface import HostSum, Refused, SealedContribution
from trusted_aggregator.rounds.host_half import EnclaveHost, Key, Pause, Survivors


class Vectors(Protocol):
    """A store of masked vectors."""

    def masked(self, task_sha256: bytes, round: int, digests: Collection[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """(SHA-256, masked vector) of those of ``digests`` that are stored."""


class MaskedHost(EnclaveHost):
    """Stores vectors, and sums them."""

    def __init__(self, core: AggregatorCalls, vectors: Vectors) -> None:
        super().__init__(core)
        self._vectors = vectors

    def holds(self, key: Key, charged: ChargedRound | None) -> bool:
        """Whether the enclave's charge has a part for the host; before the charge, the round looks like any other."""
        return charged is not None and charged.host_part_bytes > 0

    def contribution(self, request: aggregator_pb2.SubmitRequest) -> SealedContribution | Refused:
        lengths = self._core.lengths(request.task_sha256, request.round)
        if isinstance(lengths, Refusal):
            return self._core.sign_refusal(masked_contribution(request, b""))
        vector = request.masked_vector
        if len(vector) != lengths.host_part:
            return Refused(Refusal.MALFORMED)
        return masked_contribution(request, vector)

    def stream_bytes(self, header: aggregator_pb2.SubmitHeader) -> int | Refusal:
        lengths = self._core.lengths(header.task_sha256, header.round)
        return lengths if isinstance(lengths, Refusal) else lengths.host_part

    def to_refuse(self, header: aggregator_pb2.SubmitHeader) -> SealedContribution:
        return masked_contribution(header, b"")

    def streamed(self, header: aggregator_pb2.SubmitHeader, data: bytes) -> SealedContribution | Refused:
        """See ``EnclaveHost``; without a vector, the round is not masked."""
        if not data:
            return Refused(Refusal.MALFORMED)
        return masked_contribution(header, data)

    def host_sum(self, charged: ChargedRound, survivors: Survivors | None, pause: Pause) -> HostSum | None:
        return masked_sum(self._core, self._vectors, charged.task_sha256, charged.round, length=charged.host_part_bytes)


def masked_contribution(
    message: aggregator_pb2.SubmitRequest | aggregator_pb2.SubmitHeader, vector: bytes
) -> SealedContribution:
    """The contribution of ``message`` with its masked vector."""
    digest = hashlib.sha256(vector).digest()
    return SealedContribution(message.task_sha256, message.round, message.sealed_contribution, digest, vector)


def masked_sum(core: AggregatorCalls, vectors: Vectors, task_sha256: bytes, round: int, *, length: int) -> HostSum:
    """The sum of exactly the vectors that the enclave accepted in a charged round.

    Raises:
        StateError: one of them is not stored, or was changed on the disk.
    """
    digests: list[bytes] = []
    while page := core.host_parts(AskHostParts(task_sha256=task_sha256, round=round, start=len(digests))).digests:
        digests += [page[start : start + DIGEST_BYTES] for start in range(0, len(page), DIGEST_BYTES)]
    missing = set(digests)
    total = np.zeros(length // 4, dtype=np.uint32)
    for digest, vector in vectors.masked(task_sha256, round, missing):
        np.add(total, np.frombuffer(vector, dtype="<u4"), out=total)
        missing.discard(digest)
    if missing:
        raise StateError(
            f"{len(missing)} of {len(digests)} masked vectors of round {round} are missing or were changed on the "
            "disk: restore the state folder"
        )
    return HostSum(total.astype("<u4").tobytes(), set_sha256(task_sha256, round, sorted(digests)))
