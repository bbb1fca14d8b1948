"""The trusted aggregator as a program: state folder, storage, enclave, gRPC server."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from odp.enclave import attestation_servicer
from odp.enclave.host import start_identity
from odp.enclave.measurement import AGGREGATOR_PACKAGES
from odp.enclave.policy import EnclavePolicy
from odp.errors import ConfigurationError
from odp.privacy.mechanisms import IntegerNoise
from odp.transport.logs import Log, short
from odp.transport.running import Failure, Running
from odp.transport.service import serve
from odp.transport.state_folder import StateFolder
from odp.transport.tls import check_files, identity_for
from odp.v1 import aggregator_pb2_grpc, attestation_pb2_grpc
from trusted_aggregator.enclave import AggregatorCore
from trusted_aggregator.rounds import Status
from trusted_aggregator.servicer import NAME, WORKERS, AggregatorService, aggregator_servicer
from trusted_aggregator.storage import Storage

ROLE = "aggregator"


@dataclass(frozen=True)
class Config:
    """How an aggregator runs.

    ``platform`` is the folder of the emulated hardware (default: inside ``state``); programs of one machine share it.
    ``certificate``, ``key`` and ``ca`` are PEM files, all three or none: without them a development CA in
    ``ca_folder`` (default: inside ``state``) issues the certificate. Nothing here touches the noise (rule P23).
    """

    state: Path
    listen: str = "127.0.0.1:7202"
    platform: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    ca_folder: Path | None = None
    policy: EnclavePolicy = field(default_factory=lambda: EnclavePolicy(role="aggregator"))

    def __post_init__(self) -> None:
        check_files(certificate=self.certificate, key=self.key, ca=self.ca)
        if self.policy.role != ROLE:
            raise ConfigurationError(f"Expected policy.role={self.policy.role!r} to be {ROLE!r}")


def start(
    config: Config,
    *,
    noise: IntegerNoise | None = None,
    log: Log | None = None,
    clock: Callable[[], float] = time.time,
) -> Running:
    """Opens the state folder, rebuilds the enclave from what an earlier run stored, and serves.

    ``noise`` replaces the exact Gaussian noise *in process*, for tests alone: no file, flag or message reaches it.

    Raises ConfigurationError (a bad file, address or port in use) and StateError (folder in use, disk full, corrupt,
    or older than what the platform's counters know).
    """
    log = Log(ROLE) if log is None else log
    failure = Failure(log)
    with contextlib.ExitStack() as undo:
        state = undo.enter_context(StateFolder.open(config.state, ROLE))
        storage = Storage(state, failed=failure)
        undo.callback(storage.close)
        records = storage.records()
        identity = start_identity(
            state=state,
            platform=config.platform,
            packages=AGGREGATOR_PACKAGES,
            policy=config.policy,
            may_renew=not records,
            log=log,
        )
        core = AggregatorCore.restore(identity, records, storage.contributions, noise=noise)
        _resume(core, storage, log)
        service = AggregatorService(core, storage, log, failed=failure)

        def add(server: grpc.Server) -> None:
            aggregator_pb2_grpc.add_AggregatorServiceServicer_to_server(aggregator_servicer(service, log), server)
            attestation_pb2_grpc.add_AttestationServiceServicer_to_server(
                attestation_servicer.attestation_servicer(identity, clock=clock, log=log), server
            )

        tls = identity_for(
            state, certificate=config.certificate, key=config.key, ca=config.ca, ca_folder=config.ca_folder
        )
        names = [NAME, attestation_servicer.NAME]
        server = serve(address=config.listen, identity=tls, add=add, service_names=names, workers=WORKERS)
        undo.callback(server.stop)
        log.event("serving", address=server.address, image=identity.image_digest)
        return Running(address=server.address, ca_pem=tls.ca_pem, closing=undo.pop_all(), log=log, failure=failure)


def _resume(core: AggregatorCore, storage: Storage, log: Log) -> None:
    """Erases what belongs to no live round, and logs the rounds that go on."""
    states = core.round_states()
    live = [state for state in states if state.status in (Status.OPEN, Status.CHARGED)]
    storage.keep_only({(state.task_sha256, state.round) for state in live})
    for state in live:
        storage.set_stored(state.task_sha256, state.round, state.contributions)
        task = short(state.task_sha256)
        log.event("round_resumed", task=task, round=state.round, contributions=state.contributions)
    for state in states:
        if state.status is Status.VOID:
            log.warning("round_void", task=short(state.task_sha256), round=state.round)
