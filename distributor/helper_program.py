"""The helper as a program: state folder, key, gRPC server."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import grpc

from distributor.enclave import DistributorCore
from distributor.helper import NAME, HelperService, OwnTasks, helper_servicer
from distributor.model_folders import ModelFolders
from distributor.retention import KEEP_DAYS, check_keep_days
from distributor.servicer import WORKERS, DistributorService
from distributor.shares import Shares
from odp._system.files.state_folder import StateFolder
from odp.crypto.hpke import HpkeKey
from odp.crypto.public_keys import KEY_BYTES
from odp.errors import ConfigurationError, StateError
from odp.transport.logs import Log
from odp.transport.program_config import ProgramConfig
from odp.transport.running import Failure, Running
from odp.transport.service import serve
from odp.transport.sweeping import DAY, Sweeping
from odp.transport.tls import Callers, caller_name, read_ca
from odp.v1 import retrieval_pb2_grpc

ROLE = "helper"
KEY_FILE = "helper.key"
PUBLIC_FILE = "helper.pub"


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
    public = _public(state)
    if public is None:
        with StateFolder.open(state, ROLE) as opened:
            public = _key(opened).public.hex()
    return public


def _public(state: Path) -> str | None:
    try:
        return (state / PUBLIC_FILE).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None


def _key(state: StateFolder) -> HpkeKey:
    stored = state.read(KEY_FILE)
    if stored is None:
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
