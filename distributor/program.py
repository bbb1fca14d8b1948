"""The distributor as a program: state folder, enclave, gRPC server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from distributor.enclave import DistributorCore
from distributor.model_store import ModelStore
from distributor.servicer import NAME, WORKERS, DistributorService, distributor_servicer
from odp.crypto.hpke import DecryptionError
from odp.enclave import attestation_servicer
from odp.enclave.identity import EnclaveIdentity
from odp.enclave.measurement import DISTRIBUTOR_PACKAGES, image_digest
from odp.enclave.platform import EmulatedPlatform
from odp.enclave.policy import EnclavePolicy
from odp.errors import ConfigurationError
from odp.transport.logs import Log
from odp.transport.service import RunningServer, serve, stop_event
from odp.transport.state_folder import StateFolder
from odp.transport.tls import TlsIdentity, development_identity, load_identity
from odp.v1 import attestation_pb2_grpc, distributor_pb2_grpc

ROLE = "distributor"

_SEALED_KEYS = "enclave.sealed"
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Config:
    """How a distributor runs.

    ``platform`` is the folder of the emulated hardware (default: inside ``state``); programs of one machine share it.
    ``certificate``, ``key`` and ``ca`` are PEM files, all three or none: without them a development CA in
    ``ca_folder`` (default: inside ``state``) issues the certificate.
    """

    state: Path
    listen: str = "127.0.0.1:7201"
    platform: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    ca_folder: Path | None = None
    policy: EnclavePolicy = field(default_factory=lambda: EnclavePolicy(role="distributor"))

    def __post_init__(self) -> None:
        given = [self.certificate is not None, self.key is not None, self.ca is not None]
        if any(given) and not all(given):
            raise ConfigurationError("Expected certificate, key and ca together, or none of them; give all three files")
        if self.policy.role != ROLE:
            raise ConfigurationError(f"Expected policy.role={self.policy.role!r} to be {ROLE!r}")


class Running:
    """A distributor that serves at ``address`` (``host:port``); ``ca_pem`` is the CA that its clients pin."""

    def __init__(self, server: RunningServer, state: StateFolder, log: Log, ca_pem: bytes) -> None:
        self.address = server.address
        self.ca_pem = ca_pem
        self._server = server
        self._state = state
        self._log = log
        self._stopped = threading.Event()

    def wait(self) -> None:
        """Blocks until SIGINT, SIGTERM or ``stop``, then stops. Call from the main thread."""
        asked = stop_event()
        while not asked.wait(_POLL_SECONDS) and not self._stopped.is_set():
            pass
        self.stop()

    def stop(self) -> None:
        """Ends calls in flight, stops serving and frees the state folder. Idempotent."""
        if not self._stopped.is_set():
            self._stopped.set()
            self._server.stop()
            self._state.close()
            self._log.event("stopped")


def start(config: Config, *, log: Log | None = None, clock: Callable[[], float] = time.time) -> Running:
    """Opens the state folder, starts the enclave, reloads the models of an earlier run, and serves.

    Raises ConfigurationError (a bad file, address or port in use) and StateError (folder in use, disk full, corrupt).
    """
    log = Log(ROLE) if log is None else log
    state = StateFolder.open(config.state, ROLE)
    try:
        identity = _enclave(config, state, log)
        service = DistributorService(DistributorCore(identity.hpke), ModelStore(state.path("models")), log)
        service.restore()

        def add(server: grpc.Server) -> None:
            distributor_pb2_grpc.add_DistributorServiceServicer_to_server(distributor_servicer(service, log), server)
            attestation_pb2_grpc.add_AttestationServiceServicer_to_server(
                attestation_servicer.attestation_servicer(identity, clock=clock, log=log), server
            )

        tls = _tls(config, state)
        names = [NAME, attestation_servicer.NAME]
        server = serve(address=config.listen, identity=tls, add=add, service_names=names, workers=WORKERS)
    except BaseException:
        state.close()
        raise
    log.event("serving", address=server.address, image=identity.image_digest)
    return Running(server, state, log, tls.ca_pem)


def _enclave(config: Config, state: StateFolder, log: Log) -> EnclaveIdentity:
    platform = EmulatedPlatform.open(config.platform if config.platform is not None else state.path("platform"))
    digest = image_digest(DISTRIBUTOR_PACKAGES)
    stored = state.read(_SEALED_KEYS)
    try:
        identity, sealed = EnclaveIdentity.restore_or_create(
            platform=platform, image_digest=digest, policy=config.policy, sealed=stored
        )
    except DecryptionError:
        # Another version of the code, or another platform: the old keys cannot be opened, and nothing but requests in
        # flight was ever encrypted to them. A device with older evidence is refused and attests again.
        log.warning("enclave_keys_renewed", image=digest)
        identity, sealed = EnclaveIdentity.restore_or_create(
            platform=platform, image_digest=digest, policy=config.policy, sealed=None
        )
    if sealed != stored:
        state.write_atomically(_SEALED_KEYS, sealed)
    return identity


def _tls(config: Config, state: StateFolder) -> TlsIdentity:
    if config.certificate is not None and config.key is not None and config.ca is not None:
        return load_identity(certificate=config.certificate, key=config.key, ca=config.ca)
    return development_identity(state, config.ca_folder)
