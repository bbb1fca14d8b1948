"""The interface of the distributor's enclave for its host, on either side of the socket, and the header of a model.

Host and enclave both check that header before a byte of a table moves: the host to refuse early, the enclave because it
trusts no host.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from odp.algorithms.registry import algorithm_for, training_of
from odp.errors import ConfigurationError
from odp.protocol.wire.tables import entry_bytes, entry_row_bytes
from odp.refusing import refusing
from odp.signed.broadcast.terms import ServedSizes
from odp.signed.tables.table import check_entries, is_table, open_published
from odp.signed.task import model_sha256, open_manifest, task_sha256
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

    def holds(self, model: bytes) -> bool:
        """Whether the model of this id is available for selections."""

    def require_capacity(self, signed_task: common_pb2.SignedTask, signed_manifest: common_pb2.SignedManifest) -> None:
        """Raises, before any table is sent, the errors of an installation for lack of memory."""

    def forget(self, model_sha256: bytes) -> None:
        """Drops a model. Unknown ids are ignored."""

    def select(self, model_sha256: bytes, sealed_keys: bytes) -> bytes:
        """Answers ``SelectResponse.sealed_rows`` for ``SelectRequest.sealed_keys``."""


@dataclass(frozen=True)
class ModelHeader:
    """A manifest with checked signatures and sizes; the content of its tables is unchecked.

    ``table_bytes`` are the lengths of the tables in the manifest's order.
    """

    model_sha256: bytes
    task_sha256: bytes
    task: common_pb2.TaskDefinition
    manifest: common_pb2.ModelManifest
    table_bytes: tuple[int, ...]

    @property
    def total_bytes(self) -> int:
        """Length of all tables together."""
        return sum(self.table_bytes)

    @property
    def slices(self) -> int:
        """Rows per request."""
        task = self.task
        return int(task.table.rows_per_request if is_table(task) else algorithm_for(task).rows_per_request or 0)


@refusing("header of a model")
def open_header(signed_task: common_pb2.SignedTask, signed_manifest: common_pb2.SignedManifest) -> ModelHeader:
    """Checks a publish header: both signatures of the task's developer, the task's hash, and the tables' declarations.

    Host and enclave run the same check: the host to refuse early, the enclave because it trusts no host.

    Raises SignatureError where a signature is not the developer's, and ConfigurationError where a field is out of its
    range, the manifest is of another task or has another number of keyed tables than the task works with,
    where the tables together exceed 1 GiB, or where a reply to Select would
    not fit one message.
    """
    definition = open_published(signed_task)
    manifest = open_manifest(signed_manifest, task=signed_task, developer_key=definition.developer_key)
    if is_table(definition):
        check_entries(definition, manifest)
    else:
        keyed = sum(table.keyed for table in manifest.tables)
        expected = sum(table.keyed for table in algorithm_for(definition).tables)
        if keyed != expected:
            what = "one" if expected else "none"
            raise ConfigurationError(
                f"Expected keyed tables in the manifest: {what} for {training_of(definition)} (got {keyed})"
            )
    header = ModelHeader(
        model_sha256=model_sha256(signed_manifest),
        task_sha256=task_sha256(signed_task),
        task=definition,
        manifest=manifest,
        table_bytes=tuple(entry_bytes(table) for table in manifest.tables),
    )
    _sizes(header).check()
    return header


def _sizes(header: ModelHeader) -> ServedSizes:
    if (keyed := next((table for table in header.manifest.tables if table.keyed), None)) is None:
        return ServedSizes(rows=0, row_bytes=0, keys=0, dense_bytes=header.total_bytes)
    row = entry_row_bytes(keyed)
    dense = header.total_bytes - entry_bytes(keyed)
    return ServedSizes(rows=keyed.rows, row_bytes=row, keys=header.slices, dense_bytes=dense)
