"""The interface of the distributor's enclave for its host, on either side of the socket."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from odp.trust.enclave.calls import Interface
from odp.trust.enclave.channel import NotHeld
from odp.v1 import common_pb2
from odp.v1.distributor_enclave_pb2 import DistributorEnclaveReply, DistributorEnclaveRequest

#: The calls of the enclave as messages.
DISTRIBUTOR = Interface(DistributorEnclaveRequest, DistributorEnclaveReply)


class UnknownModel(NotHeld):
    """No model with this id is available: it was never published here, or newer versions replaced it."""

    def __init__(self, model: bytes) -> None:
        super().__init__(f"model {model[:6].hex()} is not held here; check in again for a newer version")


class Distributor(Protocol):
    """The enclave; ``distributor.enclave.DistributorCore`` has the guarantees and errors of each call."""

    def install_chunks(
        self,
        signed_task: common_pb2.SignedTask,
        signed_manifest: common_pb2.SignedManifest,
        chunks: Iterable[bytes],
    ) -> tuple[bytes, ...]:
        """Verifies a model and makes it selectable; returns the ids of the models that it replaced."""
        ...

    def holds(self, model: bytes) -> bool:
        """Whether the model of this id is available for selections."""
        ...

    def require_capacity(self, signed_task: common_pb2.SignedTask, signed_manifest: common_pb2.SignedManifest) -> None:
        """Raises, before any table is sent, the errors of an installation for lack of memory."""
        ...

    def forget(self, model_sha256: bytes) -> None:
        """Drops a model. Unknown ids are ignored."""
        ...

    def select(self, model_sha256: bytes, sealed_keys: bytes) -> bytes:
        """Answers ``SelectResponse.sealed_rows`` for ``SelectRequest.sealed_keys``."""
        ...
