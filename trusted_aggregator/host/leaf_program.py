"""A leaf of a tree of aggregators as a program: the listener of devices, and that of its root's host."""

from __future__ import annotations

import contextlib

import grpc

from odp._system.files.state_folder import StateFolder
from odp.transport.logs import Log
from odp.transport.running import Failure, Running
from odp.transport.service import serve
from odp.transport.tls import Callers, caller_name
from odp.trust.enclave import attestation_servicer, chip_end
from odp.trust.enclave.channel import Client
from odp.trust.enclave.host import Launch, begin
from odp.trust.enclave.measurement import AGGREGATOR_ENTRY
from odp.v1 import aggregator_pb2_grpc, attestation_pb2_grpc, leaf_pb2_grpc
from trusted_aggregator.boundary.calls import AggregatorCalls
from trusted_aggregator.host import leaf_service
from trusted_aggregator.host.changes import Changes
from trusted_aggregator.host.config import Config
from trusted_aggregator.host.leaf_service import LeafParts, leaf_servicer
from trusted_aggregator.host.postgresql_storage import open_storage
from trusted_aggregator.host.remote import restore
from trusted_aggregator.host.servicer import NAME, WORKERS, AggregatorService, aggregator_servicer
from trusted_aggregator.modes.tree.leaf_half import LeafHost

ROLE = "leaf"


def start(config: Config, *, log: Log | None, launch: Launch) -> Running:
    """Opens the state folder, launches the enclave, and serves; its root gives it rounds. Raises as ``program``."""
    log = Log(ROLE) if log is None else log
    failure = Failure(log)
    with contextlib.ExitStack() as undo:
        state = undo.enter_context(StateFolder.open(config.state, ROLE, failed=failure))
        storage = open_storage(state, config.database)
        undo.callback(storage.close)
        begun = begin(
            launch=launch,
            state=state,
            platform=config.platform,
            entry=AGGREGATOR_ENTRY,
            policy=config.policy,
            may_renew=True,  # its keys protect nothing that is stored
            log=log,
            undo=undo,
        )
        restore(begun.connection, {}, storage.contributions)
        client = Client(
            begun.connection, AggregatorCalls.interface.reply, ended=failure,
            crashed=lambda where: log.error("enclave_error", where=where),
        )  # fmt: skip
        undo.callback(client.close)
        core = AggregatorCalls(client)
        parts = LeafParts(core, storage, state, log)
        changes = Changes(core, storage, failed=failure)
        service = AggregatorService(core, storage, changes, LeafHost(core, parts), failed=failure)
        undo.callback(service.close)
        tls = config.identity(state, log, undo)

        def add(server: grpc.Server) -> None:
            aggregator_pb2_grpc.add_AggregatorServiceServicer_to_server(aggregator_servicer(service, log), server)
            attestation_pb2_grpc.add_AttestationServiceServicer_to_server(
                attestation_servicer.attestation_servicer(core.evidence_over, log=log), server
            )

        def add_control(server: grpc.Server) -> None:
            leaf_pb2_grpc.add_LeafServiceServicer_to_server(leaf_servicer(parts, log), server)

        server = serve(
            address=config.listen,
            identity=tls,
            add=add,
            service_names=[NAME, attestation_servicer.NAME],
            workers=WORKERS,
            limits=config.limits,
            reflection=config.reflection,
            immediate={f"/{NAME}/Submit": LeafHost.is_whole},
        )
        undo.callback(server.stop)
        orders = serve(
            address=config.control_listen,
            identity=tls,
            add=add_control,
            service_names=[leaf_service.NAME],
            limits=config.limits,
            callers=Callers(tls.ca_pem, (caller_name("aggregator"),)),
        )
        undo.callback(orders.stop)
        undo.callback(chip_end.watch(core.evidence_over, log).close)
        log.event("serving", address=server.address, control=orders.address, image=begun.image_digest)
        return Running(
            address=server.address,
            control_address=orders.address,
            ca_pem=tls.ca_pem,
            closing=undo.pop_all(),
            log=log,
            failure=failure,
        )
