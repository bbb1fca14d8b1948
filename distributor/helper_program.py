"""The helper, and its program: state folder, key, gRPC server.

It is the second of two parties that answer requests for rows; the leader's operator must not run it. It holds the
models that the leader hands on, each verified by its developer's signature and hashes, and opens the half of a query
that is sealed to it. Neither half says anything of the rows that a device asked for; both together say all, so that the
helper must not be run by, nor conspire with, the distributor's host.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
from google.protobuf.message import DecodeError

from distributor.enclave import DistributorCore
from distributor.interface import ModelHeader, UnknownModel
from distributor.model_folders import ModelFolders
from distributor.model_store import KEEP_DAYS, check_keep_days
from distributor.servicer import WORKERS, DistributorService
from distributor.shares import Shares
from odp._system.files.state_folder import StateFolder
from odp.crypto import domains
from odp.crypto.hpke import HpkeKey
from odp.crypto.pir import two_server
from odp.crypto.public_keys import KEY_BYTES
from odp.errors import ConfigurationError, OdpError, StateError
from odp.signed.broadcast.terms import PIR, method_of
from odp.signed.task import HASH_BYTES, check_length
from odp.transport.logs import Log, short
from odp.transport.program_config import ProgramConfig
from odp.transport.running import Failure, Running
from odp.transport.service import NotFound, serve, servicer
from odp.transport.sweeping import DAY, Sweeping
from odp.transport.tls import Callers, caller_name, read_ca
from odp.v1 import retrieval_pb2, retrieval_pb2_grpc

ROLE = "helper"
KEY_FILE = "helper.key"
PUBLIC_FILE = "helper.pub"
NAME = "odp.v1.HelperService"
_MALFORMED = "malformed helper query"


@dataclass(frozen=True, kw_only=True)
class HelperConfig(ProgramConfig):
    """Settings of a helper; ``keep_days`` as in ``distributor.Config``.

    Its one listener is a control listener: it answers distributors alone, whose certificates descend from
    ``callers_ca``, by default the CA of the helper's own.
    """

    listen: str = "127.0.0.1:7204"
    callers_ca: Path | None = None
    keep_days: float = KEEP_DAYS

    def __post_init__(self) -> None:
        super().__post_init__()
        check_keep_days(self.keep_days)


def start_helper(config: HelperConfig, *, log: Log | None = None) -> Running:
    """Opens the state folder, reloads the models of an earlier run, and serves.

    Raises ConfigurationError (a bad file, address or port in use) and StateError (folder in use, disk full, corrupt).
    """
    log = Log(ROLE) if log is None else log
    failure = Failure(log)
    with contextlib.ExitStack() as undo:
        state = undo.enter_context(StateFolder.open(config.state, ROLE, failed=failure))
        key = _key(state)
        store = ModelFolders(state.path("models"), health=state.health)
        # The same checks of models and versions as in the distributor's enclave; nothing is sealed to this key.
        core = DistributorCore(HpkeKey.generate())
        models = DistributorService(
            core, store, log, replication=OwnTasks(key.public), keep_seconds=config.keep_days * DAY
        )
        models.restore()
        undo.callback(Sweeping(models.sweep, log).close)
        service = HelperService(models, Shares(store), key, log)

        def add(server: grpc.Server) -> None:
            retrieval_pb2_grpc.add_HelperServiceServicer_to_server(helper_servicer(service, log), server)

        tls = config.identity(state, log, undo)
        server = serve(
            address=config.listen,
            identity=tls,
            add=add,
            service_names=[NAME],
            workers=WORKERS,
            callers=Callers(
                tls.ca_pem if config.callers_ca is None else read_ca(config.callers_ca), (caller_name("distributor"),)
            ),
            limits=config.limits,
            reflection=config.reflection,
        )
        undo.callback(server.stop)
        log.event("serving", address=server.address, key=key.public.hex())
        return Running(address=server.address, ca_pem=tls.ca_pem, closing=undo.pop_all(), log=log, failure=failure)


def helper_key(state: Path) -> str:
    """The public key (64 hex digits) of the helper of a state folder; created on first use.

    Raises StateError where the folder cannot be used.
    """
    if (public := _public(state)) is None:
        with StateFolder.open(state, ROLE) as opened:
            public = _key(opened).public.hex()
    return public


def _public(state: Path) -> str | None:
    try:
        return (state / PUBLIC_FILE).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None


def _key(state: StateFolder) -> HpkeKey:
    if (stored := state.read(KEY_FILE)) is None:
        key = HpkeKey.generate()
        state.write_atomically(KEY_FILE, key.to_bytes())
    else:
        if len(stored) != KEY_BYTES:
            raise StateError(f"{state.path(KEY_FILE)} does not hold a key of {KEY_BYTES} bytes; restore it from a copy")
        try:
            key = HpkeKey.from_bytes(stored)
        except (ConfigurationError, ValueError) as error:
            raise StateError(f"{state.path(KEY_FILE)} does not hold a key; restore it from a copy") from error
    state.write_atomically(PUBLIC_FILE, key.public.hex().encode() + b"\n")
    return key


class OwnTasks:
    """Restricts a helper to models of tasks that name its key (``servicer.Replication``)."""

    def __init__(self, public_key: bytes) -> None:
        self._public_key = public_key

    def check(self, header: ModelHeader) -> None:
        """Raises ConfigurationError for a task of another method or another helper."""
        if method_of(header.task) != PIR:
            raise ConfigurationError(f"task {header.task.name!r} uses no helper")
        if header.task.broadcast.helper_key != self._public_key:
            raise ConfigurationError(
                f"task {header.task.name!r} names the helper {header.task.broadcast.helper_key[:6].hex()}.., and this "
                f"one is {self._public_key[:6].hex()}..; use the key that `odp distributor helper key` prints"
            )

    def ensure(self, header: ModelHeader) -> None:
        """Does nothing: a helper passes no model on."""


class HelperService:
    """Answers with the helper's shares; thread-safe.

    ``models`` receives and keeps what the leader hands on, ``shares`` reads it, ``key`` opens queries.
    """

    def __init__(self, models: DistributorService, shares: Shares, key: HpkeKey, log: Log) -> None:
        self._models, self._shares, self._key, self._log = models, shares, key, log

    def replicate(
        self, requests: Iterator[retrieval_pb2.ReplicateRequest], context: grpc.ServicerContext
    ) -> retrieval_pb2.ReplicateResponse:
        """As ``DistributorService.publish``; the model is then ready for queries."""
        # Both streams have the same parts under the same names.
        reply = self._models.publish(requests, context)  # type: ignore[arg-type]
        # A large table takes long to prepare: not while a device waits.
        self._shares.of(reply.model_sha256)
        return retrieval_pb2.ReplicateResponse(model_sha256=reply.model_sha256)

    def answer(self, request: retrieval_pb2.AnswerRequest) -> retrieval_pb2.AnswerResponse:
        """The padded share for one sealed query.

        Raises NotFound for a model that is not held, and ConfigurationError with one and the same message for whatever
        else is wrong with a query.
        """
        model = request.model_sha256
        check_length("model_sha256", model, HASH_BYTES)
        self._models.require(model)
        try:
            ready = self._shares.of(model)
        except UnknownModel as error:
            raise NotFound(str(error)) from None
        try:
            query = retrieval_pb2.HelperQuery.FromString(
                self._key.open(request.sealed_query, domains.helper_query_info(model))
            )
        except (OdpError, DecodeError, ValueError):
            raise ConfigurationError(_MALFORMED) from None
        if query.table != ready.table or len(query.pad_seed) != two_server.PAD_SEED_BYTES:
            raise ConfigurationError(_MALFORMED)
        try:
            with self._models.selection():
                answer = self._shares.answer(ready, query.query, pad_seed=query.pad_seed)
        except ConfigurationError:
            raise ConfigurationError(_MALFORMED) from None
        self._log.event("answered", model=short(model), bytes_in=len(request.sealed_query), bytes_out=len(answer))
        return retrieval_pb2.AnswerResponse(model_sha256=model, answer=answer)


def helper_servicer(service: HelperService, log: Log) -> retrieval_pb2_grpc.HelperServiceServicer:
    """``service`` as gRPC methods, its errors as statuses."""

    return servicer(
        retrieval_pb2_grpc.HelperServiceServicer,
        log,
        {"Replicate": service.replicate, "Answer": lambda request, _: service.answer(request)},
    )
