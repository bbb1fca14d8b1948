"""The host's half if the enclave sums the contributions: each comes in one piece, and the host stores a ciphertext."""

from __future__ import annotations

from odp.errors import Refusal
from odp.v1 import aggregator_pb2
from trusted_aggregator.boundary.interface import Aggregator, Refused
from trusted_aggregator.rounds.host_half import HostHalf, Submission


class EnclaveHost(HostHalf):
    """Accepts contributions, and has no other part in the mode."""

    def __init__(self, core: Aggregator) -> None:
        self._core = core

    def submission(self, request: aggregator_pb2.SubmitRequest) -> Submission | Refused:
        """The submission for a contribution that came in one message."""
        return Submission(request)

    def stream_bytes(self, header: aggregator_pb2.SubmitHeader) -> int | Refusal:
        """Length of the stream after ``header``, or the refusal that it would get."""
        return self._core.sealed_bytes(header.task_sha256, header.round)

    def to_refuse(self, header: aggregator_pb2.SubmitHeader) -> aggregator_pb2.SubmitRequest:
        """The request to the enclave for the refusal of a stream."""
        return _request(header, header.sealed_key)

    def streamed(self, header: aggregator_pb2.SubmitHeader, data: bytes) -> Submission | Refused:
        """The submission for a contribution that came as a stream of ``data``."""
        return Submission(_request(header, data))


def _request(header: aggregator_pb2.SubmitHeader, sealed: bytes) -> aggregator_pb2.SubmitRequest:
    return aggregator_pb2.SubmitRequest(task_sha256=header.task_sha256, round=header.round, sealed_contribution=sealed)
