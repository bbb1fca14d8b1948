"""The trusted aggregator as a program: state folder, storage, enclave, gRPC server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from odp.crypto.hpke import DecryptionError
from odp.enclave import attestation_servicer
from odp.enclave.identity import EnclaveIdentity
from odp.enclave.measurement import AGGREGATOR_PACKAGES, image_digest
from odp.enclave.platform import EmulatedPlatform
from odp.enclave.policy import EnclavePolicy
from odp.errors import ConfigurationError, StateError
from odp.privacy.mechanisms import IntegerNoise
from odp.transport.logs import Log, short
from odp.transport.service import RunningServer, serve, stop_event
from odp.transport.state_folder import StateFolder
from odp.transport.tls import TlsIdentity, development_identity, load_identity
from odp.v1 import aggregator_pb2_grpc, attestation_pb2_grpc
from trusted_aggregator.enclave import AggregatorCore
from trusted_aggregator.rounds import Status
from trusted_aggregator.servicer import NAME, WORKERS, AggregatorService, aggregator_servicer
from trusted_aggregator.storage import Storage

ROLE = "aggregator"

_SEALED_KEYS = "enclave.sealed"
_POLL_SECONDS = 0.2


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
        given = [self.certificate is not None, self.key is not None, self.ca is not None]
        if any(given) and not all(given):
            raise ConfigurationError("Expected certificate, key and ca together, or none of them; give all three files")
        if self.policy.role != ROLE:
            raise ConfigurationError(f"Expected policy.role={self.policy.role!r} to be {ROLE!r}")


class Running:
    """An aggregator that serves at ``address`` (``host:port``); ``ca_pem`` is the CA that its clients pin."""

    def __init__(
        self, server: RunningServer, storage: Storage, state: StateFolder, log: Log, ca_pem: bytes, failure: _Failure
    ) -> None:
        self.address = server.address
        self.ca_pem = ca_pem
        self._server = server
        self._storage = storage
        self._state = state
        self._log = log
        self._failure = failure
        self._stopped = threading.Event()

    def wait(self) -> None:
        """Blocks until SIGINT, SIGTERM, ``stop`` or a failure, then stops. Call from the main thread.

        Raises:
            StateError: something could not be stored (disk full); a new start continues from what was stored.
        """
        asked = stop_event()
        while not (asked.wait(_POLL_SECONDS) or self._stopped.is_set() or self._failure.happened.is_set()):
            pass
        self.stop()
        if self._failure.error is not None:
            raise self._failure.error

    def stop(self) -> None:
        """Ends calls in flight, stops serving and frees the state folder. Idempotent."""
        if not self._stopped.is_set():
            self._stopped.set()
            self._server.stop()
            self._storage.close()
            self._state.close()
            self._log.event("stopped")


class _Failure:
    """The first thing that could not be stored."""

    def __init__(self, log: Log) -> None:
        self.happened = threading.Event()
        self.error: StateError | None = None
        self._log = log
        self._lock = threading.Lock()

    def __call__(self, error: StateError) -> None:
        with self._lock:
            if self.error is None:
                self.error = error
                self._log.error("storage_failed", why=str(error))
        self.happened.set()


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
    failure = _Failure(log)
    state = StateFolder.open(config.state, ROLE)
    storage: Storage | None = None
    try:
        storage = Storage(state, failed=failure)
        records = storage.records()
        identity = _enclave(config, state, log, fresh=not records)
        core = AggregatorCore.restore(identity, records, storage.contributions, noise=noise)
        _resume(core, storage, log)
        service = AggregatorService(core, storage, log, failed=failure)

        def add(server: grpc.Server) -> None:
            aggregator_pb2_grpc.add_AggregatorServiceServicer_to_server(aggregator_servicer(service, log), server)
            attestation_pb2_grpc.add_AttestationServiceServicer_to_server(
                attestation_servicer.attestation_servicer(identity, clock=clock, log=log), server
            )

        tls = _tls(config, state)
        names = [NAME, attestation_servicer.NAME]
        server = serve(address=config.listen, identity=tls, add=add, service_names=names, workers=WORKERS)
    except BaseException:
        if storage is not None:
            storage.close()
        state.close()
        raise
    log.event("serving", address=server.address, image=identity.image_digest)
    return Running(server, storage, state, log, tls.ca_pem, failure)


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


def _enclave(config: Config, state: StateFolder, log: Log, *, fresh: bool) -> EnclaveIdentity:
    platform = EmulatedPlatform.open(config.platform if config.platform is not None else state.path("platform"))
    digest = image_digest(AGGREGATOR_PACKAGES)
    stored = state.read(_SEALED_KEYS)
    try:
        identity, sealed = EnclaveIdentity.restore_or_create(
            platform=platform, image_digest=digest, policy=config.policy, sealed=stored
        )
    except DecryptionError as error:
        if not fresh:
            raise StateError(
                f"state folder {state.root} was sealed by another version of the aggregator or on another platform;"
                " run that version, or start in an empty folder"
            ) from error
        # Nothing but the keys was sealed: no ledger is lost, and a device with older evidence attests again.
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
