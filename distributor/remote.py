"""The distributor's enclave as its host sees it: the calls of ``Distributor`` over the socket."""

from __future__ import annotations

from collections.abc import Iterable

from distributor.interface import DISTRIBUTOR, UnknownModel
from odp.trust.enclave.calls import Call, Calls
from odp.trust.enclave.channel import Client, NotHeld
from odp.v1 import common_pb2
from odp.v1.attestation_pb2 import GetEvidenceRequest, GetEvidenceResponse
from odp.v1.distributor_enclave_pb2 import (
    AskModels,
    DistributorEnclaveRequest,
    ForgetModel,
    InstallModel,
    ModelIds,
    TableChunk,
)
from odp.v1.distributor_pb2 import PublishHeader, SelectRequest, SelectResponse
from odp.v1.enclave_pb2 import Done


class DistributorCalls(Calls):
    """The calls in the order in which a model goes through them; its tables come between the second and the third."""

    interface = DISTRIBUTOR

    evidence = Call(GetEvidenceRequest, GetEvidenceResponse)
    check_room = Call(PublishHeader, Done)
    begin_model = Call(PublishHeader, Done)
    install = Call(InstallModel, ModelIds)
    models = Call(AskModels, ModelIds)
    select = Call(SelectRequest, SelectResponse)
    forget = Call(ForgetModel, Done)


class RemoteDistributor:
    """Implements ``distributor.interface.Distributor``; thread-safe, but for ``install_chunks``: one at a time.

    Raises, besides what the enclave raises, StateError where the enclave is gone.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._calls = DistributorCalls(client)

    def install_chunks(
        self,
        signed_task: common_pb2.SignedTask,
        signed_manifest: common_pb2.SignedManifest,
        chunks: Iterable[bytes],
    ) -> tuple[bytes, ...]:
        """See ``Distributor``; a model of 1 GiB passes in pieces, between which selections go on."""
        self._calls.begin_model(PublishHeader(task=signed_task, model=signed_manifest))
        for chunk in chunks:
            self._client.post(DistributorEnclaveRequest(chunk=TableChunk(data=chunk)))
        return tuple(self._calls.install(InstallModel()).model_sha256)

    def holds(self, model: bytes) -> bool:
        return model in self.models()

    def models(self) -> tuple[bytes, ...]:
        """The ids of all models held."""
        return tuple(self._calls.models(AskModels()).model_sha256)

    def require_capacity(self, signed_task: common_pb2.SignedTask, signed_manifest: common_pb2.SignedManifest) -> None:
        self._calls.check_room(PublishHeader(task=signed_task, model=signed_manifest))

    def forget(self, model_sha256: bytes) -> None:
        self._calls.forget(ForgetModel(model_sha256=model_sha256))

    def select(self, model_sha256: bytes, sealed_keys: bytes) -> bytes:
        try:
            return self._calls.select(SelectRequest(model_sha256=model_sha256, sealed_keys=sealed_keys)).sealed_rows
        except NotHeld:
            raise UnknownModel(model_sha256) from None

    def evidence(self, nonce: bytes) -> GetEvidenceResponse:
        """Fresh evidence over a caller's nonce."""
        return self._calls.evidence(GetEvidenceRequest(nonce=nonce))
