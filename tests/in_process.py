"""Enclaves of this process as their hosts call them: through their routes, and without a socket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from odp.enclave.channel import Encoded, Route
from odp.errors import AttestationError, PrivacyError, Refusal, TransparencyError
from odp.v1.enclave_pb2 import EnclaveReply, EnclaveRequest
from trusted_aggregator.boundary.interface import Submit
from trusted_aggregator.enclave.core import AggregatorCore
from trusted_aggregator.enclave.leaf_core import LeafCore
from trusted_aggregator.enclave.process import leaf_routes, routes
from trusted_aggregator.host.remote_tree import RemoteLeaf, RemoteRoot


class _Routed:
    """The calls that a ``Client`` passes on."""

    def __init__(self, served: Mapping[str, Any]) -> None:
        self._served = served

    def call(self, request: EnclaveRequest | Encoded) -> EnclaveReply:
        if isinstance(request, Encoded):
            request = EnclaveRequest.FromString(b"".join(request.pieces))
        route = self._served[request.WhichOneof("call")]
        assert isinstance(route, Route)
        try:
            reply = route.handle(request)
        except PrivacyError as error:
            # Where an enclave refused another one, its host gets the reason in words.
            cause = error.__cause__
            if isinstance(cause, (AttestationError, TransparencyError)):
                raise cause from None
            raise
        assert reply is not None
        return reply


class _Submitting:
    def submit(self: Any, task_sha256: bytes, round: int, sealed: bytes, *, host_sha256: bytes = b"") -> Refusal | None:
        (refused,) = self.submit_batch([Submit(task_sha256, round, sealed, host_sha256)])
        return None if refused is None else refused.refusal


class InProcess(_Submitting, RemoteRoot):
    """An aggregator's enclave; ``state`` is what no host sees."""

    def __init__(self, enclave: AggregatorCore) -> None:
        super().__init__(_Routed(routes(enclave)))  # type: ignore[arg-type]
        self.state = enclave.state


class LeafInProcess(_Submitting, RemoteLeaf):
    """A leaf's enclave; ``enclave`` is what no host sees."""

    def __init__(self, enclave: LeafCore) -> None:
        super().__init__(_Routed(leaf_routes(enclave, enclave.identity)))  # type: ignore[arg-type]
        self.enclave = enclave
