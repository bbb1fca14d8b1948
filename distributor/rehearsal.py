"""Rehearsal: one tiny model is installed and selected from, in memory, which loads all lazy imports.

An enclave cannot open files once it serves; see ``trusted_aggregator/enclave/rehearsal.py``.
"""

from __future__ import annotations

from distributor.enclave import DistributorCore
from odp.algorithms.registry import TABLE, algorithm_for, part_of
from odp.algorithms.rehearsal import sampled
from odp.crypto import HpkeKey, SigningKey, seal
from odp.crypto.domains import select_info
from odp.enclave.identity import EnclaveIdentity
from odp.enclave.policy import SELECTIONS, EnclavePolicy
from odp.enclave.rehearsal import RehearsalGuest
from odp.signed.task import model_sha256, open_task, sign_manifest, sign_task, task_sha256
from odp.v1 import common_pb2, distributor_pb2
from odp.wire.tables import manifest_for, padded_keys, table_bytes


def rehearse() -> None:
    """Runs it for each algorithm; keeps nothing of it."""
    guest = RehearsalGuest(EnclavePolicy(role="distributor"))
    _, sealed = EnclaveIdentity.restore_or_create(guest=guest, sealed=None)
    identity, _ = EnclaveIdentity.restore_or_create(guest=guest, sealed=sealed)
    for training in TABLE:
        published = part_of(training, "rehearsal").published()
        for definition in (*published, *sampled(published)):
            if algorithm_for(definition).rows_per_request is None:
                _install(definition)
            else:
                _select(identity, definition)


def _install(unsigned: common_pb2.TaskDefinition) -> None:
    """A model that has no rows to select."""
    developer = SigningKey.generate()
    signed = sign_task(unsigned, developer)
    algorithm = algorithm_for(open_task(signed))
    server = algorithm.server(item_features=algorithm.blank_matrix())
    broadcast = server.broadcast(server.start())
    manifest = sign_manifest(manifest_for(broadcast, task_sha256(signed)), developer)
    core = DistributorCore(HpkeKey.generate())
    core.install_chunks(signed, manifest, [table_bytes(table) for table in broadcast.tables])


def _select(identity: EnclaveIdentity, unsigned: common_pb2.TaskDefinition) -> None:
    developer = SigningKey.generate()
    signed = sign_task(unsigned, developer)
    definition = open_task(signed)
    server = algorithm_for(definition).server()
    broadcast = server.broadcast(server.start())
    manifest = sign_manifest(manifest_for(broadcast, task_sha256(signed)), developer)
    model = model_sha256(manifest)
    keys = padded_keys([0], algorithm_for(definition).rows_per_request or 0)
    request = distributor_pb2.SelectKeys(table=broadcast.keyed.name, keys=keys, reply_key=bytes(32))
    sealed = seal(identity.hpke.public, request.SerializeToString(), select_info(model))
    for select in SELECTIONS:
        core = DistributorCore(identity.hpke, select=select)
        core.install_chunks(signed, manifest, [table_bytes(table) for table in broadcast.tables])
        core.select(model, sealed)
