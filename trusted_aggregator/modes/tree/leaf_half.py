"""The host's half at a leaf: it takes contributions to the rounds that its enclave has from the root."""

from __future__ import annotations

from typing import Protocol

from odp.errors import Busy, Refusal
from odp.v1 import aggregator_pb2
from trusted_aggregator.boundary.calls import AggregatorCalls
from trusted_aggregator.boundary.interface import Refused
from trusted_aggregator.modes.enclave.host_half import EnclaveHost
from trusted_aggregator.rounds.host_half import Submission

# The root gives a leaf what it lacks within a second or two.
_AGAIN_SECONDS = 1.0, 5.0


class Parts(Protocol):
    """What the leaf holds."""

    def holds(self, task_sha256: bytes, round: int) -> bool:
        """Whether contributions to a round are taken, or refused, by the enclave now."""
        ...


class LeafHost(EnclaveHost):
    """Takes contributions to the parts that the enclave holds; for others, devices come again."""

    def __init__(self, core: AggregatorCalls, parts: Parts) -> None:
        super().__init__(core)
        self._parts = parts

    def submission(self, request: aggregator_pb2.SubmitRequest) -> Submission | Refused:
        if request.masked_sha256 or request.masked_vector:
            return Refused(Refusal.MALFORMED)
        self._require_held(request.task_sha256, request.round)
        return super().submission(request)

    def stream_bytes(self, header: aggregator_pb2.SubmitHeader) -> int | Refusal:
        self._require_held(header.task_sha256, header.round)
        return Refusal.MALFORMED if header.sealed_contribution else super().stream_bytes(header)

    def streaming(self, header: aggregator_pb2.SubmitHeader) -> LeafHost:
        """Itself: no part of a contribution stays here."""
        return self

    @staticmethod
    def is_whole(request: aggregator_pb2.SubmitRequest) -> bool:
        """Always: the host only queues it."""
        return True

    def _require_held(self, task_sha256: bytes, round: int) -> None:
        # Neither a refusal, which a device would take for the end of it, nor an answer that it could not rely on.
        if not self._parts.holds(task_sha256, round):
            raise Busy(f"round {round} is not open at this leaf yet; try again", *_AGAIN_SECONDS)
