"""The server as a program: its state folder, its two secrets, and what runs in it."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from odp._system.files.state_folder import StateFolder, state_errors
from odp.crypto.note import Kind, NoteKey
from odp.crypto.public_keys import require_ed25519
from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError, StateError
from odp.transport import observing
from odp.transport.channel import addresses_in, connect, parse_address
from odp.transport.logs import Log
from odp.transport.program_config import ProgramConfig
from odp.transport.running import Failure, Running
from odp.transport.service import serve
from odp.transport.sweeping import Sweeping
from odp.transport.tls import read_ca
from odp.trust.enclave.pinned_values import PinnedValues
from odp.trust.enclave.verifier import verify_fresh
from odp.trust.log.endorsements import Changed, EndorsementFile
from odp.trust.log.key_file import note_key
from odp.trust.log.log_files import LogFiles
from odp.trust.log.released_values import VALUES, ReleasedValues
from odp.v1 import catalogue_pb2_grpc, local_pb2_grpc, log_pb2_grpc, server_pb2_grpc, table_pb2_grpc
from server.board import Addresses, Board
from server.catalogues import NAME as CATALOGUE_NAME, catalogue_servicer
from server.clients import AggregatorClient, DistributorClient, IssuerClient, WitnessClient
from server.distributors import Copy, Distributors
from server.driver import Driver
from server.fetched_values import FetchedValues
from server.leading import Leads
from server.local.desk import Desk
from server.local.servicer import NAME as LOCAL_NAME, immediate, local_servicer
from server.local.steps import LocalSteps
from server.log_servicer import NAME as LOG_NAME, log_servicer
from server.operator_token import OperatorToken
from server.populations import Populations
from server.replica import Follower, Replica, place_of
from server.servicer import NAME, ServerService, TaskAdmission, TaskStatuses, server_servicer
from server.shared_log import SharedLog
from server.steps import Parties
from server.storage import Storage, TaskState
from server.storage.postgresql import open_postgresql
from server.storage.sqlite import open_sqlite
from server.tables import (
    FOLDER as TABLE_FOLDER,
    NAME as TABLE_NAME,
    TableBook,
    TableFiles,
    TablePublisher,
    table_servicer,
)
from server.token_keys import TokenKeys
from server.transparency import KnownWitness, LogKeeper, read_witness
from server.upkeep import tell_newest_releases

ROLE = "server"
KEY_FILE = "developer.key"
TOKEN_FILE = "operator.token"
DATABASE_FILE = "server.sqlite"
LOG_FOLDER = "log"
LOG_KEY_FILE = "log.key"
_TOKEN_BYTES = 32
_WORKERS = 16


@dataclass(frozen=True, kw_only=True)
class Config(ProgramConfig):
    """Settings of the server.

    Attributes:
      listen: host:port of its own service.
      distributor, aggregator: host:port of the two services, as the server and the devices reach them; of copies of
        the distributor, each, with commas between.
      distributor_control, aggregator_control: host:port of their control listeners, as the server reaches them; of
        copies, in the same order.
      issuer: host:port of the issuer of tokens, as devices reach it; with ``issuer_control``, its control listener.
      issuer_key: 64 hex digits; populations that this server founds name it, and admit devices with its tokens alone.
      issuer_ca: PEM file from which the issuer's certificate descends; default: as for the others.
      ca: PEM file from which their certificates descend; default: the CA of this server's own certificate.
      certificate, key: PEM files of its own certificate, together with ``ca``; default: one of the development CA.
      reference_values: JSON file; where it is given, the enclave's evidence is checked before a release is applied.
      log_key: Private key of the transparency log, as a file; default: ``log.key`` in ``state``, made on first start.
      endorsements: JSON file of the enclaves' endorsements, policies and withdrawals, for the log.
      witnesses: ``host:port=verifier key`` of each witness that is to cosign the log.
      database: URL of a PostgreSQL database, which other servers may share; default: a file in ``state``.
      leaves: host:port of the leaves of the aggregator, as devices reach them, in the order of their numbers.
    """

    listen: str = "127.0.0.1:7200"
    distributor: str = "127.0.0.1:7201"
    aggregator: str = "127.0.0.1:7202"
    distributor_control: str = "127.0.0.1:7211"
    aggregator_control: str = "127.0.0.1:7212"
    issuer: str | None = None
    issuer_control: str | None = None
    issuer_key: str = ""
    issuer_ca: Path | None = None
    reference_values: Path | None = None
    log_key: Path | None = None
    endorsements: Path | None = None
    witnesses: tuple[str, ...] = ()
    # Not in the text of this object: it may have a password.
    database: str | None = field(default=None, repr=False)
    leaves: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for address in (self.listen, self.aggregator, self.aggregator_control, *self.leaves):
            parse_address(address)
        copies, controls = addresses_in(self.distributor), addresses_in(self.distributor_control)
        if not copies or len(copies) != len(controls):
            raise ConfigurationError(
                f"Expected as many addresses in distributor_control ({len(controls)}) as in distributor ({len(copies)})"
            )
        if (self.issuer is None) != (self.issuer_control is None):
            raise ConfigurationError("Expected issuer and issuer_control together; one of them is missing")
        for optional in (self.issuer, self.issuer_control):
            if optional is not None:
                parse_address(optional)
        if self.issuer_key:
            if self.issuer is None:
                raise ConfigurationError("Expected issuer beside issuer_key: where devices get their tokens")
            require_ed25519(_key_of(self.issuer_key), name="issuer_key")
        if (self.certificate is None) != (self.key is None):
            raise ConfigurationError("Expected certificate and key together; one of them is missing")
        if self.certificate is not None and self.ca is None:
            raise ConfigurationError("Expected ca beside certificate and key: the file from which they descend")
        for witness in self.witnesses:
            read_witness(witness)


class RunningServer(Running):
    """A server at ``address``; the operator's token is in ``token_path``, ``developer_key`` signs its tasks.

    ``log_folder`` holds its transparency log, ``log_key`` is the verifier key that readers of the log pin.
    """

    developer_key: bytes
    token_path: Path
    log_folder: Path
    log_key: str


def start(config: Config, *, log: Log | None = None, clock: Callable[[], float] = time.time) -> RunningServer:
    """Starts the server; active tasks continue.

    Raises ConfigurationError (port, certificates, reference values) and StateError (folder in use, full or damaged).
    """
    log = Log(ROLE) if log is None else log
    pinned = None if config.reference_values is None else PinnedValues(config.reference_values, log=log)
    failure = Failure(log)
    with contextlib.ExitStack() as undo:
        state = undo.enter_context(StateFolder.open(config.state, ROLE, failed=failure))
        identity = config.identity(state, log, undo)
        shared = config.database is not None
        if not shared:
            state.require_not_lost(KEY_FILE, beside=DATABASE_FILE)
            state.require_kept(DATABASE_FILE)
        key = _developer_key(state)
        operator = OperatorToken(_operator_token(state), TOKEN_FILE)
        if config.database is not None:
            storage = open_postgresql(config.database, clock=clock)
        else:
            storage = open_sqlite(state.path(DATABASE_FILE), health=state.health, clock=clock)
            state.note_kept(DATABASE_FILE)
        undo.callback(storage.close)
        if shared:
            _require_shared(storage, KEY_FILE, key.public.hex())
        ca = identity.ca_pem if config.ca is None else read_ca(config.ca)
        public = undo.enter_context(connect(config.aggregator, ca))
        control = undo.enter_context(connect(config.aggregator_control, ca, identity=identity))
        distributors = Distributors(
            [
                Copy(address, DistributorClient(undo.enter_context(connect(place, ca, identity=identity)), place))
                for address, place in zip(
                    addresses_in(config.distributor), addresses_in(config.distributor_control), strict=True
                )
            ],
            log,
        )
        aggregator = AggregatorClient(
            public, control, address=config.aggregator, control_address=config.aggregator_control
        )
        folder = state.path(LOG_FOLDER)
        log_key = _own_log_key(state.path(LOG_KEY_FILE) if config.log_key is None else config.log_key, folder)
        if shared:
            _require_shared(storage, LOG_KEY_FILE, log_key.public(Kind.NOTE).text)
            files: LogFiles = SharedLog.join(folder, log_key, storage.log_rows, clock=clock, health=state.health)
        else:
            files = LogFiles.open(folder, log_key, now=clock(), health=state.health)
        undo.enter_context(files)
        values = ReleasedValues(files.folder / VALUES, state.health)
        keeper = LogKeeper(
            files,
            endorsements=_endorsements(config.endorsements),
            reread=(lambda: None) if config.endorsements is None else Changed(config.endorsements),
            events=log,
            clock=clock,
            witnesses=[_witness(text, ca, undo) for text in config.witnesses],
        )
        undo.callback(Sweeping(lambda: keeper.take_endorsements(_endorsements(config.endorsements)), log).close)
        observing.watch("checkpoint_seconds", lambda: keeper.age)
        tell_newest_releases(storage)
        observing.watch("active_tasks", lambda: float(len(storage.tasks(TaskState.ACTIVE))))
        keeper.require_tasks(task.signed for task in storage.tasks() if storage.published_version(task.sha256))
        populations = Populations(
            storage, aggregator=aggregator, key=key, log=log, keeper=keeper, issuer_key=_key_of(config.issuer_key)
        )
        issuer = None
        if config.issuer_control is not None:
            issuer_ca = ca if config.issuer_ca is None else read_ca(config.issuer_ca)
            channel = undo.enter_context(connect(config.issuer_control, issuer_ca, identity=identity))
            issuer = IssuerClient(channel, config.issuer_control)
        tokens = TokenKeys(storage, populations=populations, key=key, log=log, issuer=issuer, clock=clock)
        desk = Desk(storage.reports, log=log)
        undo.callback(desk.stop)
        board = Board(
            storage,
            addresses=Addresses(distributors.holding, config.aggregator, config.issuer or "", config.leaves),
            charter=populations.newest,
            proof=keeper.proof,
            token_key=tokens.stored_key,
            desk=desk,
        )
        place = place_of(config.state) if shared else DATABASE_FILE
        leads = Leads(storage, place=place, shared=shared, log=log)
        fetched = FetchedValues(values, aggregator, log)
        local = LocalSteps(
            storage, desk, keeper=keeper, populations=populations, tokens=tokens, changed=board.refresh, log=log,
        )  # fmt: skip
        parties = Parties(
            distributor=distributors,
            aggregator=aggregator,
            signing_key=None
            if pinned is None
            else lambda: (
                verify_fresh(aggregator.evidence, role="aggregator", reference_values=pinned(), clock=clock).signing_key
            ),
            keeper=keeper,
            populations=populations,
            tokens=tokens,
            values=fetched,
            local=local,
            leads=leads,
            lagging=distributors.lagging,
        )
        driver = Driver(storage=storage, board=board, parties=parties, key=key, log=log, clock=clock)
        tasks = ServerService(
            storage=storage,
            board=board,
            populations=populations,
            key=key,
            statuses=TaskStatuses(
                storage=storage,
                waits_for=lambda task: desk.waits_for(task) or driver.waits_for(task),
                distributor_of=distributors.one_holding,
                aggregator_address=config.aggregator,
                desk=desk,
            ),
            admission=TaskAdmission(
                storage=storage,
                populations=populations,
                check_task=aggregator.check_task,
                require_catalogue=keeper.catalogues.require,
                log=log,
            ),
            wake=driver.wake,
            log=log,
        )
        answering = server_servicer(tasks, operator=operator, log=log)
        answering_reports = local_servicer(storage=storage, desk=desk, operator=operator, log=log)
        tables = storage.log_rows if shared else TableFiles(state.path(TABLE_FOLDER), health=state.health)
        answering_catalogues = catalogue_servicer(
            keeper.catalogues, publish=keeper.log_catalogue, require_owned=populations.require_owned, key=key,
            operator=operator, log=log,
        )  # fmt: skip
        book = TableBook(tables, key)
        publisher = TablePublisher(book, distributors, address_of=distributors.one_holding, log=log)
        answering_tables = table_servicer(publisher, operator=operator, log=log)
        undo.callback(leads.give_back)
        undo.callback(driver.stop)

        def add(server: grpc.Server) -> None:
            server_pb2_grpc.add_ServerServiceServicer_to_server(answering, server)
            log_pb2_grpc.add_LogServiceServicer_to_server(log_servicer(files, values, log), server)
            table_pb2_grpc.add_TableServiceServicer_to_server(answering_tables, server)
            catalogue_pb2_grpc.add_CatalogueServiceServicer_to_server(answering_catalogues, server)
            local_pb2_grpc.add_LocalServiceServicer_to_server(answering_reports, server)

        service = serve(
            address=config.listen,
            identity=identity,
            add=add,
            service_names=[NAME, LOG_NAME, TABLE_NAME, LOCAL_NAME, CATALOGUE_NAME],
            workers=_WORKERS,
            immediate=immediate(desk),
            limits=config.limits,
            reflection=config.reflection,
        )
        undo.callback(service.stop)
        if isinstance(files, SharedLog):
            follower = Follower(
                files=files, populations=populations, board=board, values=fetched, local=local, leads=leads, log=log
            )
            replica = Replica(renew=leads.renew, look=follower.look, serving=service.set_serving, log=log)
            undo.callback(replica.stop)
            replica.start()
        driver.start()
        log.event("serving", address=service.address, distributor=config.distributor, aggregator=config.aggregator)
        running = RunningServer(
            address=service.address, ca_pem=identity.ca_pem, closing=undo.pop_all(), log=log, failure=failure
        )
        running.developer_key = key.public
        running.token_path = state.path(TOKEN_FILE)
        running.log_folder = files.folder
        running.log_key = log_key.public(Kind.NOTE).text
        return running


def developer_key(state: Path) -> str:
    """The public key (64 hex digits) that signs the tasks of the server in the folder ``state``; created on first use.

    Raises StateError where the folder cannot be used.
    """
    path = state / KEY_FILE
    # Written whole or not at all, so that it can be read beside a server that runs; made with the folder in hand.
    with state_errors(state):
        stored = path.read_bytes() if path.exists() else None
    if stored is not None:
        return _signing_key(stored, path).public.hex()
    with StateFolder.open(state, ROLE) as opened:
        return _developer_key(opened).public.hex()


def log_verifier_key(state: Path) -> str:
    """The verifier key of the transparency log of the server in the folder ``state``; created on first use.

    Raises StateError where the folder cannot be used, or has a log whose key is elsewhere.
    """
    if (state / LOG_KEY_FILE).exists():
        return _log_key(state / LOG_KEY_FILE).public(Kind.NOTE).text
    if (state / LOG_FOLDER).exists():
        raise StateError(f"{state} has a log and no {LOG_KEY_FILE}: its reference values name its key, as of `odp up`")
    with StateFolder.open(state, ROLE) as opened:
        return _log_key(opened.path(LOG_KEY_FILE)).public(Kind.NOTE).text


def _developer_key(state: StateFolder) -> SigningKey:
    if (stored := state.read(KEY_FILE)) is None:
        key = SigningKey.generate()
        state.write_atomically(KEY_FILE, key.to_bytes())
        return key
    return _signing_key(stored, state.path(KEY_FILE))


def _signing_key(stored: bytes, path: Path) -> SigningKey:
    try:
        return SigningKey.from_bytes(stored)
    except ConfigurationError as error:
        raise StateError(f"{path} is not a signing key; restore it from a backup") from error


def _key_of(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ConfigurationError(
            f"Expected issuer_key={text[:80]!r} to be 64 hex digits, as `odp issuer key` prints"
        ) from None


def _require_shared(storage: Storage, name: str, value: str) -> None:
    """Raises StateError where the servers of a database have another key."""
    if storage.log_rows.shared_key(name, value) != value:
        raise StateError(
            f"{name} of this state folder is not that of the servers that share the database; copy {KEY_FILE}, "
            f"{LOG_KEY_FILE} and {TOKEN_FILE} of one of them, or give another database"
        )


def _own_log_key(path: Path, folder: Path) -> NoteKey:
    """The key of the log in ``folder``; created with the log alone. Raises StateError where it is lost."""
    if folder.exists() and not path.exists():
        raise StateError(
            f"{path} is gone, and it signs the log in {folder}: restore the file from a backup, or name its place with "
            "--log-key; whoever saw this log accepts it under no other key"
        )
    return _log_key(path)


def _log_key(path: Path) -> NoteKey:
    return note_key(path, name=f"odp.local/log/{secrets.token_hex(8)}")


def _endorsements(path: Path | None) -> EndorsementFile:
    return EndorsementFile() if path is None else EndorsementFile.load(path)


def _witness(text: str, ca: bytes, undo: contextlib.ExitStack) -> KnownWitness:
    address, key = read_witness(text)
    return KnownWitness(key, WitnessClient(undo.enter_context(connect(address, ca)), address))


def _operator_token(state: StateFolder) -> str:
    if (stored := state.read(TOKEN_FILE)) is None:
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        state.write_atomically(TOKEN_FILE, f"{token}\n".encode())
        return token
    token = stored.decode("ascii", errors="replace").strip()
    if len(token) < _TOKEN_BYTES:
        raise StateError(f"{state.path(TOKEN_FILE)} holds no token; remove the file, and the next start makes one")
    return token
