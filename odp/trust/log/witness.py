"""A witness: it cosigns a log's checkpoint only if that continues the last one that it cosigned.

For each log it keeps the newest checkpoint that it cosigned, on the disk before the cosignature leaves. So it never
cosigns two trees of one size, nor a tree that drops what it vouched for, whatever the log says and whenever it dies.

Source: C2SP tlog-cosignature v1.0.0; the exchange is that of C2SP tlog-witness, over gRPC.

It is a program with a folder, a key and a gRPC service of its own; its operator is not the log's.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import grpc

from odp._system.files.state_folder import StateFolder
from odp.crypto.log_reasons import LogReason, refused
from odp.crypto.note import Kind, Note, NoteKey, SignatureLine
from odp.errors import ConfigurationError, StateError, TransparencyError
from odp.transport.channel import parse_address
from odp.transport.logs import Log
from odp.transport.program_config import ProgramConfig
from odp.transport.running import Failure, Running
from odp.transport.service import serve, servicer
from odp.trust.enclave.log_policy import LogPolicy
from odp.trust.log.checkpoint import Checkpoint, verify_checkpoint
from odp.trust.log.key_file import note_key
from odp.trust.log.merkle import EMPTY_ROOT, ProofError, verify_consistency
from odp.trust.log.proofs import unpacked
from odp.v1 import log_pb2, log_pb2_grpc


@dataclass(frozen=True)
class Answer:
    """``size`` of the last cosigned checkpoint; ``line`` is None if the log has to prove from there."""

    size: int
    line: SignatureLine | None


class Witness:
    """Cosigns checkpoints of the logs in its configuration. Thread-safe.

    Args:
        state: the witness's folder.
        key: its key.
        log_keys: verifier keys of each log, in text form, by origin.
        clock: seconds since the epoch.
    """

    def __init__(
        self, state: StateFolder, key: NoteKey, log_keys: Sequence[str], *, clock: Callable[[], float]
    ) -> None:
        self._state, self._key, self._clock = state, key, clock
        self._logs: Mapping[str, LogPolicy] = _by_origin(log_keys)
        self._lock = threading.Lock()

    def add_checkpoint(self, note: bytes, *, old_size: int, proof: Sequence[bytes]) -> Answer:
        """Cosigns the checkpoint of ``note``, if ``proof`` shows that it continues that of ``old_size`` leaves.

        Raises:
            TransparencyError: ``malformed``, ``wrong_origin``, ``wrong_log_key``, ``bad_signature``; ``shrunk``,
                ``split_view`` or ``inconsistent`` where the log shows another history than it did.
            StateError: the witness's own files cannot be read or written: nothing was cosigned.
        """
        origin = Checkpoint.from_body(Note.parse(note).body).origin
        if (policy := self._logs.get(origin)) is None:
            raise refused(LogReason.WRONG_ORIGIN, f"this witness does not know a log {origin!r}")
        checkpoint = verify_checkpoint(note, policy).checkpoint
        with self._lock:
            last = self.last(origin)
            if old_size != last.size:
                return Answer(last.size, None)
            if checkpoint.size < last.size:
                raise refused(LogReason.SHRUNK, f"the log has {checkpoint.size} entries, and had {last.size}")
            if checkpoint.size == last.size and checkpoint.root != last.root:
                raise refused(LogReason.SPLIT_VIEW, f"the log shows two different trees of {checkpoint.size} entries")
            try:
                verify_consistency(
                    first=last.size,
                    second=checkpoint.size,
                    first_root=last.root,
                    second_root=checkpoint.root,
                    proof=proof,
                )
            except ProofError as error:
                raise refused(
                    LogReason.INCONSISTENT,
                    f"the tree of {checkpoint.size} entries does not continue that of {last.size}",
                ) from error
            # Also one that is there: an earlier process may have ended before it was on the disk.
            self._state.write_atomically(_file(origin), checkpoint.body)
            if not self._state.path(_marker(origin)).exists():
                self._state.write_atomically(_marker(origin), b"")
            return Answer(checkpoint.size, self._key.cosign(checkpoint.body, now=self._clock()))

    def last(self, origin: str) -> Checkpoint:
        """The last cosigned checkpoint of a log; an empty tree before the first. Raises StateError."""
        self._state.require_not_lost(_file(origin), beside=_marker(origin))
        if (stored := self._state.read(_file(origin))) is None:
            return Checkpoint(origin, 0, EMPTY_ROOT)
        try:
            checkpoint = Checkpoint.from_body(stored)
            if checkpoint.origin != origin:
                raise StateError(f"{self._state.path(_file(origin))} is of another log")
        except (TransparencyError, StateError) as error:
            raise StateError(
                f"{self._state.path(_file(origin))} is damaged: this witness cannot know what it cosigned; "
                "restore the file"
            ) from error
        return checkpoint


def _file(origin: str) -> str:
    return f"{_number(origin)}.checkpoint"


def _marker(origin: str) -> str:
    """A marker, created after the first checkpoint: without it, a lost checkpoint would look like a new log."""
    return f"{_number(origin)}.known"


def _number(origin: str) -> str:
    return hashlib.sha256(origin.encode()).hexdigest()[:32]


def _by_origin(log_keys: Sequence[str]) -> dict[str, LogPolicy]:
    if not log_keys:
        raise ConfigurationError("Expected the verifier key of at least one log; the log's operator has it")
    by_origin: dict[str, list[str]] = {}
    for text in log_keys:
        by_origin.setdefault(text.partition("+")[0], []).append(text)
    return {origin: LogPolicy(log_keys=tuple(keys), endorser_keys=()) for origin, keys in by_origin.items()}


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
