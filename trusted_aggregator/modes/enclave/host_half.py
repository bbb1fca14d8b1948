"""The host's half if the enclave sums the contributions: each comes in one piece, and the host stores a ciphertext."""

from __future__ import annotations

from odp.errors import Refusal
from odp.v1 import aggregator_pb2
from trusted_aggregator.boundary.calls import AggregatorCalls
from trusted_aggregator.boundary.interface import Refused, Submit
from trusted_aggregator.rounds.host_half import HostHalf, Submission


class EnclaveHost(HostHalf):
    """Accepts contributions, and has no other part in the mode."""

    def __init__(self, core: AggregatorCalls) -> None:
        self._core = core

    def submission(self, request: aggregator_pb2.SubmitRequest) -> Submission | Refused:
        """The submission for a contribution that came in one message."""
        return Submission(Submit(request.task_sha256, request.round, request.sealed_contribution))

    def stream_bytes(self, header: aggregator_pb2.SubmitHeader) -> int | Refusal:
        """Length of the stream after ``header``, or the refusal that it would get."""
        lengths = self._core.lengths(header.task_sha256, header.round)
        return lengths if isinstance(lengths, Refusal) else lengths.bytes

    def to_refuse(self, header: aggregator_pb2.SubmitHeader) -> Submit:
        """What the enclave refuses a stream for."""
        return Submit(header.task_sha256, header.round, header.sealed_key)

    def streamed(self, header: aggregator_pb2.SubmitHeader, data: bytes) -> Submission | Refused:
        """The submission for a contribution that came as a stream of ``data``."""
        return Submission(Submit(header.task_sha256, header.round, data))
