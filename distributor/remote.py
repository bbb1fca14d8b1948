"""The distributor's enclave as its host sees it: the calls of ``Distributor`` over the socket."""

from __future__ import annotations

from collections.abc import Iterable

from distributor.interface import UnknownModel
from odp.enclave.channel import Client, NotHeld
from odp.v1 import attestation_pb2, common_pb2, distributor_pb2, enclave_pb2
from odp.v1.enclave_pb2 import EnclaveRequest


class RemoteDistributor:
    """Implements ``distributor.interface.Distributor``; thread-safe, but for ``install_chunks``: one at a time.

    Raises, besides what the enclave raises, StateError where the enclave is gone.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def install_chunks(
        self,
        signed_task: common_pb2.SignedTask,
        signed_manifest: common_pb2.SignedManifest,
        chunks: Iterable[bytes],
    ) -> tuple[bytes, ...]:
        """See ``Distributor``; a model of 1 GiB passes in pieces, between which selections go on."""
        header = distributor_pb2.PublishHeader(task=signed_task, model=signed_manifest)
        self._client.call(EnclaveRequest(begin_model=header))
        for chunk in chunks:
            self._client.post(EnclaveRequest(chunk=enclave_pb2.TableChunk(data=chunk)))
        installed = self._client.call(EnclaveRequest(install=enclave_pb2.InstallModel()))
        return tuple(installed.models.model_sha256)

    def holds(self, model: bytes) -> bool:
        return model in self.models()

    def models(self) -> tuple[bytes, ...]:
        """The ids of all models held."""
        reply = self._client.call(EnclaveRequest(models=enclave_pb2.AskModels()))
        return tuple(reply.models.model_sha256)

    def require_capacity(self, signed_task: common_pb2.SignedTask, signed_manifest: common_pb2.SignedManifest) -> None:
        header = distributor_pb2.PublishHeader(task=signed_task, model=signed_manifest)
        self._client.call(EnclaveRequest(check_room=header))

    def forget(self, model_sha256: bytes) -> None:
        self._client.call(EnclaveRequest(forget=enclave_pb2.ForgetModel(model_sha256=model_sha256)))

    def select(self, model_sha256: bytes, sealed_keys: bytes) -> bytes:
        request = distributor_pb2.SelectRequest(model_sha256=model_sha256, sealed_keys=sealed_keys)
        try:
            return self._client.call(EnclaveRequest(select=request)).selected.sealed_rows
        except NotHeld:
            raise UnknownModel(model_sha256) from None

    def evidence(self, nonce: bytes) -> attestation_pb2.GetEvidenceResponse:
        """Fresh evidence over a caller's nonce."""
        request = attestation_pb2.GetEvidenceRequest(nonce=nonce)
        return self._client.call(EnclaveRequest(evidence=request)).evidence
