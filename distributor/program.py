"""The distributor as a program: state folder, enclave, gRPC server.

Servers publish models and delete tasks through DistributorControlService, with a certificate that names them servers.
What they publish is signed by a developer; a distributor with a list of developers accepts nothing from others.

``RemoteDistributor`` is the enclave as its host sees it: the calls of ``Distributor`` over the socket.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from distributor.interface import DISTRIBUTOR, ModelHeader, UnknownModel
from distributor.leader import NAME as RETRIEVAL, HelperClient, Leader, Replicator, leader_servicer
from distributor.model_folders import ModelFolders
from distributor.model_objects import ModelObjects
from distributor.model_store import KEEP_DAYS, ModelStore, check_keep_days
from distributor.servicer import NAME, WORKERS, DistributorService, Replication, distributor_servicer
from distributor.shares import Shares
from odp._system.files.state_folder import StateFolder
from odp.errors import ConfigurationError
from odp.signed.broadcast.terms import MAX_KEYS_BYTES
from odp.transport.channel import parse_address
from odp.transport.limits import Limits
from odp.transport.logs import Log
from odp.transport.program_config import ProgramConfig
from odp.transport.running import Failure, Running
from odp.transport.service import serve, servicer
from odp.transport.sweeping import DAY, Sweeping
from odp.transport.tls import Callers, caller_name, read_ca
from odp.trust.enclave import attestation_servicer, chip_end
from odp.trust.enclave.calls import Call, Calls
from odp.trust.enclave.channel import Client, NotHeld
from odp.trust.enclave.enclave_start import wait_ready
from odp.trust.enclave.host import Launch, begin, launch_process
from odp.trust.enclave.measurement import DISTRIBUTOR_ENTRY
from odp.trust.enclave.policy import EnclavePolicy
from odp.v1 import attestation_pb2_grpc, common_pb2, distributor_pb2_grpc, retrieval_pb2_grpc
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


ROLE = "distributor"
#: A sealed request has its keys, and a few bytes of framing.
LIMITS = Limits(request_bytes=MAX_KEYS_BYTES + 2**16)

#: The file of a state folder that says where its models are; empty: inside.
_BLOBS = "blobs"
_KEY = re.compile(r"[0-9a-f]{64}")
CONTROL_SERVICE = "odp.v1.DistributorControlService"


@dataclass(frozen=True, kw_only=True)
class Config(ProgramConfig):
    """Settings of a distributor.

    ``platform`` is the folder of the emulated hardware (default: inside ``state``); programs of one machine share it.
    ``helper`` (host:port) is the second of two parties for tasks that ask both; its certificate descends from
    ``helper_ca``, by default the CA of this program. ``blobs`` is the place of an object store for models, as
    ``s3://bucket/prefix``, which no other distributor uses; by default they are files in ``state``. ``keep_days`` is
    how long a model is kept that no open round can need and nobody asks for.

    Devices connect to ``listen``; servers publish at ``control_listen``, with certificates under the CA. ``developers``
    are the public keys (64 hex digits) whose models are taken; without any, those of every such server.
    """

    listen: str = "127.0.0.1:7201"
    control_listen: str = "127.0.0.1:7211"
    developers: tuple[str, ...] = ()
    platform: Path | None = None
    helper: str | None = None
    helper_ca: Path | None = None
    blobs: str | None = None
    keep_days: float = KEEP_DAYS
    limits: Limits = LIMITS
    policy: EnclavePolicy = field(default_factory=lambda: EnclavePolicy(role="distributor"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.helper is not None:
            parse_address(self.helper)
        check_keep_days(self.keep_days)
        for key in self.developers:
            if not _KEY.fullmatch(key):
                raise ConfigurationError(f"Expected developer={key!r} to be a public key of 64 hex digits")
        if self.policy.role != ROLE:
            raise ConfigurationError(f"Expected policy.role={self.policy.role!r} to be {ROLE!r}")


def _opened(config: Config, state: StateFolder) -> ModelStore:
    """The store of models. Raises ConfigurationError where this state folder has another one."""
    # A distributor whose models were elsewhere would look empty, and devices would find nothing.
    if (before := state.read(_BLOBS)) is None and state.path("models").is_dir():
        before = b""
    place = "" if config.blobs is None else config.blobs
    if before is not None and before.decode(errors="replace") != place:
        raise ConfigurationError(
            f"the models of {state.root} are at {before.decode(errors='replace') or 'its own folder'!r}; start it with "
            "the same --blobs, or give another --state folder"
        )
    if config.blobs is None:
        store: ModelStore = ModelFolders(state.path("models"), health=state.health)
    else:
        from odp.storage.s3 import S3Objects

        store = ModelObjects(S3Objects(config.blobs))
    if before is None:
        state.write_atomically(_BLOBS, place.encode())
    return store


def start(config: Config, *, log: Log | None = None, launch: Launch = launch_process) -> Running:
    """Opens the state folder, launches the enclave, reloads the models of an earlier run, and serves.

    ``launch`` starts the enclave. Raises ConfigurationError (a bad file, address or port in use) and StateError (folder
    in use, disk full, corrupt).
    """
    log = Log(ROLE) if log is None else log
    failure = Failure(log)
    with contextlib.ExitStack() as undo:
        state = undo.enter_context(StateFolder.open(config.state, ROLE, failed=failure))
        begun = begin(
            launch=launch,
            state=state,
            platform=config.platform,
            entry=DISTRIBUTOR_ENTRY,
            policy=config.policy,
            may_renew=True,
            log=log,
            undo=undo,
        )
        wait_ready(begun.connection)
        client = Client(
            begun.connection, DISTRIBUTOR.reply, ended=failure,
            crashed=lambda where: log.error("enclave_error", where=where),
        )  # fmt: skip
        undo.callback(client.close)
        core = RemoteDistributor(client)
        tls = config.identity(state, log, undo)
        store = _opened(config, state)
        helper = None
        if config.helper is not None:
            helper_ca = tls.ca_pem if config.helper_ca is None else read_ca(config.helper_ca)
            helper = HelperClient(config.helper, helper_ca, identity=tls)
            undo.callback(helper.close)
        shares = Shares(store)
        replicator = Replicator(store, shares, helper, log)
        replication: Replication = replicator
        if config.developers:
            replication = ServedDevelopers([bytes.fromhex(key) for key in config.developers], replicator)
        service = DistributorService(core, store, log, replication=replication, keep_seconds=config.keep_days * DAY)
        service.restore()
        undo.callback(Sweeping(service.sweep, log).close)
        leader = Leader(service, shares, replicator, helper, log)

        def add(server: grpc.Server) -> None:
            distributor_pb2_grpc.add_DistributorServiceServicer_to_server(distributor_servicer(service, log), server)
            retrieval_pb2_grpc.add_RetrievalServiceServicer_to_server(leader_servicer(leader, log), server)
            attestation_pb2_grpc.add_AttestationServiceServicer_to_server(
                attestation_servicer.attestation_servicer(core.evidence, log=log), server
            )

        def add_control(server: grpc.Server) -> None:
            distributor_pb2_grpc.add_DistributorControlServiceServicer_to_server(control_servicer(service, log), server)

        names = [NAME, RETRIEVAL, attestation_servicer.NAME]
        server = serve(
            address=config.listen,
            identity=tls,
            add=add,
            service_names=names,
            workers=WORKERS,
            limits=config.limits,
            reflection=config.reflection,
        )
        undo.callback(server.stop)
        orders = serve(
            address=config.control_listen,
            identity=tls,
            add=add_control,
            service_names=[CONTROL_SERVICE],
            callers=Callers(tls.ca_pem, (caller_name("server"),)),
        )
        undo.callback(orders.stop)
        undo.callback(chip_end.watch(core.evidence, log).close)
        log.event("serving", address=server.address, control=orders.address, image=begun.image_digest)
        return Running(
            address=server.address,
            control_address=orders.address,
            ca_pem=tls.ca_pem,
            closing=undo.pop_all(),
            log=log,
            failure=failure,
        )


class ServedDevelopers:
    """Restricts a distributor to models of some developers; otherwise as ``then`` (``servicer.Replication``)."""

    def __init__(self, keys: Collection[bytes], then: Replication) -> None:
        self._keys, self._then = keys, then

    def check(self, header: ModelHeader) -> None:
        """Raises ConfigurationError for a model of another developer."""
        if header.task.developer_key not in self._keys:
            raise ConfigurationError(
                f"this distributor does not serve the developer {header.task.developer_key.hex()}; start it with "
                "--developer and this key"
            )
        self._then.check(header)

    def ensure(self, header: ModelHeader) -> None:
        self._then.ensure(header)


def control_servicer(service: DistributorService, log: Log) -> distributor_pb2_grpc.DistributorControlServiceServicer:
    """``service`` as gRPC methods for servers, its errors as statuses."""

    return servicer(
        distributor_pb2_grpc.DistributorControlServiceServicer,
        log,
        {"Publish": service.publish, "ForgetTask": lambda request, _: service.forget_task(request)},
    )
