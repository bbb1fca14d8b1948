"""AttestationService, the same for every enclave host."""

from __future__ import annotations

from collections.abc import Callable

from odp.errors import ConfigurationError
from odp.transport.logs import Log
from odp.transport.service import servicer
from odp.v1 import attestation_pb2, attestation_pb2_grpc

NAME = "odp.v1.AttestationService"
_SHORTEST, _LONGEST = 16, 64


def attestation_servicer(
    evidence: Callable[[bytes], attestation_pb2.GetEvidenceResponse], *, log: Log
) -> attestation_pb2_grpc.AttestationServiceServicer:
    """A servicer that answers each caller's nonce with the enclave's evidence."""

    def answer(request: attestation_pb2.GetEvidenceRequest, _: object) -> attestation_pb2.GetEvidenceResponse:
        if not _SHORTEST <= len(request.nonce) <= _LONGEST:
            raise ConfigurationError(f"Expected a nonce of {_SHORTEST} to {_LONGEST} bytes, got {len(request.nonce)}")
        return evidence(request.nonce)

    return servicer(attestation_pb2_grpc.AttestationServiceServicer, log, {"GetEvidence": answer})
