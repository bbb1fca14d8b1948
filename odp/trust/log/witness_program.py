"""The witness as a program: its folder, its key, its gRPC service. Its operator is not the log's."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from odp._system.files.state_folder import StateFolder
from odp.crypto.note import Kind
from odp.transport.channel import parse_address
from odp.transport.logs import Log
from odp.transport.program_config import ProgramConfig
from odp.transport.running import Failure, Running
from odp.transport.service import serve, servicer
from odp.trust.log.key_file import note_key
from odp.trust.log.proofs import unpacked
from odp.trust.log.witness import Witness
from odp.v1 import log_pb2, log_pb2_grpc

ROLE = "witness"
NAME = "odp.v1.WitnessService"
KEY_FILE = "witness.key"


@dataclass(frozen=True, kw_only=True)
class Config(ProgramConfig):
    """Settings of a witness; ``log_keys`` are the verifier keys of the logs that it watches."""

    log_keys: tuple[str, ...]
    listen: str = "127.0.0.1:7210"

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_address(self.listen)


class RunningWitness(Running):
    """A witness at ``address``; readers of logs pin ``verifier_key``."""

    verifier_key: str


def start(config: Config, *, log: Log | None = None, clock: Callable[[], float] = time.time) -> RunningWitness:
    """Starts a witness; its earlier cosignatures still bind it.

    Raises ConfigurationError (keys, port, certificates) and StateError (folder in use, full or damaged).
    """
    log = Log(ROLE) if log is None else log
    failure = Failure(log)
    with contextlib.ExitStack() as undo:
        state = undo.enter_context(StateFolder.open(config.state, ROLE, failed=failure))
        key = note_key(state.path(KEY_FILE), name=f"odp.local/witness/{secrets.token_hex(8)}")
        witness = Witness(state, key, config.log_keys, clock=clock)
        tls = config.identity(state, log, undo)

        def add(server: grpc.Server) -> None:
            log_pb2_grpc.add_WitnessServiceServicer_to_server(witness_servicer(witness, log), server)

        service = serve(
            address=config.listen,
            identity=tls,
            add=add,
            service_names=[NAME],
            limits=config.limits,
            reflection=config.reflection,
        )
        undo.callback(service.stop)
        verifier_key = key.public(Kind.COSIGNATURE).text
        log.event("serving", address=service.address, key=verifier_key)
        running = RunningWitness(
            address=service.address, ca_pem=tls.ca_pem, closing=undo.pop_all(), log=log, failure=failure
        )
        running.verifier_key = verifier_key
        return running


def witness_servicer(witness: Witness, log: Log) -> log_pb2_grpc.WitnessServiceServicer:
    """The gRPC face of ``witness``."""

    def add(request: log_pb2.AddCheckpointRequest, _: object) -> log_pb2.AddCheckpointResponse:
        answer = witness.add_checkpoint(request.checkpoint, old_size=request.old_size, proof=unpacked(request.hashes))
        return log_pb2.AddCheckpointResponse(
            size=answer.size, cosignature="" if answer.line is None else answer.line.text
        )

    return servicer(log_pb2_grpc.WitnessServiceServicer, log, {"AddCheckpoint": add})
