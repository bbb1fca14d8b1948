"""The issuer of tokens as a program: its folder, its key, its two listeners. An independent operator may run it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from odp._system.files.state_folder import StateFolder, made_once
from odp.crypto.roster import read_roster
from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError, StateError
from odp.transport.channel import parse_address
from odp.transport.logs import Log
from odp.transport.program_config import ProgramConfig
from odp.transport.running import Failure, Running
from odp.transport.service import serve, servicer
from odp.transport.tls import Callers, caller_name, read_ca
from odp.trust.enrolment.attesters.emulated import EmulatedVerifier
from odp.trust.enrolment.attesters.roster import RosterVerifier
from odp.trust.enrolment.attesters.seam import Verifier
from odp.trust.enrolment.issuer import Issuer, TokenLimits
from odp.trust.enrolment.storage import Storage
from odp.v1 import enrolment_pb2, enrolment_pb2_grpc

ROLE = "issuer"
NAME = "odp.v1.EnrolmentService"
CONTROL_NAME = "odp.v1.EnrolmentControlService"
KEY_FILE = "issuer.key"
PUBLIC_FILE = "issuer.pub"
CONTROL_FILE = "control-address"
_DATABASE_FILE = "issuer.sqlite"
_WORKERS = 16
_LARGEST_ROOT = 16 * 1024


@dataclass(frozen=True, kw_only=True)
class Config(ProgramConfig):
    """Settings of an issuer.

    Attributes:
        developers: Ed25519 keys, 64 hex digits each, whose tasks get tokens.
        emulated_vendors: PEM files of emulated vendors whose devices count; none by default.
        roster: file of devices that count; see ``odp.crypto.roster``.
        listen: host:port for devices.
        control_listen: host:port for servers, which show a certificate of the name ``odp:server``.
        token_limits: see ``TokenLimits``.
        server_ca: PEM file from which the certificates of servers descend; default: the CA of this program's own.
    """

    developers: tuple[str, ...]
    emulated_vendors: tuple[Path, ...] = ()
    roster: Path | None = None
    listen: str = "127.0.0.1:7220"
    control_listen: str = "127.0.0.1:7221"
    token_limits: TokenLimits = field(default_factory=TokenLimits)
    server_ca: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for address in (self.listen, self.control_listen):
            parse_address(address)


class RunningIssuer(Running):
    """An issuer that is running; populations name ``key`` (64 hex digits), servers call ``control_address``."""

    key: str
    control_address: str


def start(config: Config, *, log: Log | None = None, clock: Callable[[], float] = time.time) -> RunningIssuer:
    """Starts an issuer; keys of rounds and issued tokens persist.

    Raises ConfigurationError (keys, files, ports, certificates) and StateError (folder in use, full or damaged).
    """
    log = Log(ROLE) if log is None else log
    verifiers = _verifiers(config)
    developers = [_developer(text) for text in config.developers]
    failure = Failure(log)
    with contextlib.ExitStack() as undo:
        state = undo.enter_context(StateFolder.open(config.state, ROLE, failed=failure))
        state.require_not_lost(KEY_FILE, beside=_DATABASE_FILE)
        state.require_kept(_DATABASE_FILE)
        key = _key(state)
        storage = Storage(state.path(_DATABASE_FILE), health=state.health)
        undo.callback(storage.close)
        state.note_kept(_DATABASE_FILE)
        issuer = Issuer(
            storage, key, verifiers=verifiers, developers=developers, limits=config.token_limits, clock=clock
        )
        tls = config.identity(state, log, undo)

        def add(server: grpc.Server) -> None:
            enrolment_pb2_grpc.add_EnrolmentServiceServicer_to_server(enrolment_servicer(issuer, log), server)

        def add_control(server: grpc.Server) -> None:
            enrolment_pb2_grpc.add_EnrolmentControlServiceServicer_to_server(control_servicer(issuer, log), server)

        service = serve(
            address=config.listen,
            identity=tls,
            add=add,
            service_names=[NAME],
            workers=_WORKERS,
            limits=config.limits,
            reflection=config.reflection,
        )
        undo.callback(service.stop)
        control = serve(
            address=config.control_listen,
            identity=tls,
            add=add_control,
            service_names=[CONTROL_NAME],
            limits=config.limits,
            reflection=config.reflection,
            callers=Callers(
                tls.ca_pem if config.server_ca is None else read_ca(config.server_ca), (caller_name("server"),)
            ),
        )
        undo.callback(control.stop)
        # Whoever started this program with port 0 reads it there.
        state.write_atomically(CONTROL_FILE, control.address.encode() + b"\n")
        keys, tokens = storage.sizes()
        log.event(
            "serving",
            address=service.address,
            control=control.address,
            issuer_key=key.public.hex(),
            attesters=",".join(issuer.attesters),
            keys=keys,
            tokens=tokens,
        )
        running = RunningIssuer(
            address=service.address, ca_pem=tls.ca_pem, closing=undo.pop_all(), log=log, failure=failure
        )
        running.key = key.public.hex()
        running.control_address = control.address
        return running


def issuer_key(state: Path) -> str:
    """The public key (64 hex digits) of the issuer of a state folder; created on first use.

    Raises StateError where the folder cannot be used.
    """
    try:
        return (state / PUBLIC_FILE).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        with StateFolder.open(state, ROLE) as opened:
            return _key(opened).public.hex()


def enrolment_servicer(issuer: Issuer, log: Log) -> enrolment_pb2_grpc.EnrolmentServiceServicer:
    """The gRPC face of ``issuer`` for devices."""

    def challenge(*_: object) -> enrolment_pb2.GetChallengeResponse:
        return enrolment_pb2.GetChallengeResponse(challenge=issuer.challenge(), attesters=issuer.attesters)

    def token(request: enrolment_pb2.IssueTokenRequest, _: object) -> enrolment_pb2.IssueTokenResponse:
        return enrolment_pb2.IssueTokenResponse(blind_signature=issuer.issue(request))

    return servicer(enrolment_pb2_grpc.EnrolmentServiceServicer, log, {"GetChallenge": challenge, "IssueToken": token})


def control_servicer(issuer: Issuer, log: Log) -> enrolment_pb2_grpc.EnrolmentControlServiceServicer:
    """The gRPC face of ``issuer`` for servers."""

    def token_key(request: enrolment_pb2.GetTokenKeyRequest, _: object) -> enrolment_pb2.GetTokenKeyResponse:
        signed = issuer.token_key(request.task, request.order, request.signature)
        return enrolment_pb2.GetTokenKeyResponse(token_key=signed)

    return servicer(enrolment_pb2_grpc.EnrolmentControlServiceServicer, log, {"GetTokenKey": token_key})


def _verifiers(config: Config) -> list[Verifier]:
    verifiers: list[Verifier] = []
    if config.emulated_vendors:
        verifiers.append(EmulatedVerifier(*(_root(path) for path in config.emulated_vendors)))
    if config.roster is not None:
        verifiers.append(RosterVerifier(read_roster(config.roster)))
    return verifiers


def _root(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST_ROOT)
    except OSError as error:
        raise ConfigurationError(f"cannot read the vendor's root {path}: {error.strerror}; check the path") from error


def _developer(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ConfigurationError(f"Expected the developer key {text!r} to be 64 hex digits") from None


def _key(state: StateFolder) -> SigningKey:
    data = made_once(state.path(KEY_FILE), lambda: SigningKey.generate().to_bytes())
    try:
        key = SigningKey.from_bytes(data)
    except ConfigurationError as error:
        raise StateError(f"{state.path(KEY_FILE)} is not a signing key; restore it from a backup") from error
    state.write_atomically(PUBLIC_FILE, key.public.hex().encode() + b"\n")
    return key
