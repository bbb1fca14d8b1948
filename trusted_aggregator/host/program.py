"""The trusted aggregator as a program: state folder, storage, enclave, gRPC server."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from odp import _validate
from odp.enclave import attestation_servicer
from odp.enclave.channel import Client
from odp.enclave.host import Launch, begin, launch_process
from odp.enclave.measurement import AGGREGATOR_ENTRY
from odp.enclave.policy import EnclavePolicy
from odp.errors import ConfigurationError, StateError
from odp.signed.charter import open_charter
from odp.transport.limits import Limits
from odp.transport.logs import Log, short
from odp.transport.program_config import ProgramConfig
from odp.transport.running import Failure, Running
from odp.transport.service import serve
from odp.transport.state_folder import StateFolder
from odp.transport.sweeping import DAY, Sweeping
from odp.transport.tls import Callers, caller_name
from odp.v1 import aggregator_pb2_grpc, attestation_pb2_grpc
from trusted_aggregator.boundary.interface import Aggregator, Status
from trusted_aggregator.host import control as control_plane
from trusted_aggregator.host.changes import Changes
from trusted_aggregator.host.control import ControlService, control_servicer
from trusted_aggregator.host.hand_over_service import HandOverService
from trusted_aggregator.host.idle_tasks import IDLE_DAYS, IdleTasks
from trusted_aggregator.host.remote import RemoteAggregator, restore
from trusted_aggregator.host.rounds import HostedRounds
from trusted_aggregator.host.servicer import NAME, WORKERS, AggregatorService, aggregator_servicer
from trusted_aggregator.host.sqlite_storage import SqliteStorage
from trusted_aggregator.host.storage import Storage
from trusted_aggregator.modes.hosting import HostModes, ModeOptions
from trusted_aggregator.state.records import POPULATION_PREFIX, noise_key, participation_key, stream_key

if TYPE_CHECKING:
    from odp.privacy.mechanisms import IntegerNoise

ROLE = "aggregator"
# A hand-over comes with the hash of every entry of the log: a million of them.
_CONTROL_LIMITS = Limits(request_bytes=2**25, queued_bytes=2**26)


@dataclass(frozen=True, kw_only=True)
class Config(ProgramConfig):
    """Settings of an aggregator.

    ``platform`` is the folder of the emulated hardware (default: inside ``state``); programs of one machine share it.
    ``modes`` are options of single modes of aggregation. Nothing here touches the noise (rule P23).

    Devices connect to ``listen``; servers order rounds at ``control_listen``, with certificates under the CA.
    ``idle_days`` is how long a task is kept that no server asks about.
    """

    listen: str = "127.0.0.1:7202"
    control_listen: str = "127.0.0.1:7212"
    idle_days: float = IDLE_DAYS
    platform: Path | None = None
    policy: EnclavePolicy = field(default_factory=lambda: EnclavePolicy(role="aggregator"))
    modes: ModeOptions = field(default_factory=ModeOptions)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.policy.role != ROLE:
            raise ConfigurationError(f"Expected policy.role={self.policy.role!r} to be {ROLE!r}")
        _validate.within(low=1.0, high=3650.0, idle_days=self.idle_days)


def start(
    config: Config, *, noise: IntegerNoise | None = None, log: Log | None = None, launch: Launch = launch_process
) -> Running:
    """Opens the state folder, launches the enclave, restores its state, and serves.

    ``noise`` replaces the exact Gaussian noise, for tests alone: the enclave is then a thread of this process, so that
    no file, flag or message can do the same (rule P23). ``launch`` starts the enclave otherwise.

    Raises ConfigurationError (a bad file, address or port in use) and StateError (folder in use, disk full, corrupt,
    or older than what the platform's counters know).
    """
    log = Log(ROLE) if log is None else log
    rosters = config.modes.read_rosters()
    failure = Failure(log)
    with contextlib.ExitStack() as undo:
        state = undo.enter_context(StateFolder.open(config.state, ROLE, failed=failure))
        storage = SqliteStorage(state)
        undo.callback(storage.close)
        records = storage.records()
        begun = begin(
            launch=launch if noise is None else _in_this_process(noise),
            state=state,
            platform=config.platform,
            entry=AGGREGATOR_ENTRY,
            policy=config.policy,
            may_renew=not records,
            log=log,
            undo=undo,
        )
        storage.apply(restore(begun.connection, records, storage.contributions))
        populations = [key.removeprefix(POPULATION_PREFIX) for key in records if key.startswith(POPULATION_PREFIX)]
        client = Client(begun.connection, ended=failure, crashed=lambda where: log.error("enclave_error", where=where))
        undo.callback(client.close)
        core = RemoteAggregator(client)
        _resume(core, storage, populations, log)
        modes = HostModes(core, storage, state, log, config.modes, rosters)
        modes.resume(core.round_states())
        changes = Changes(core, storage, failed=failure)
        service = AggregatorService(core, storage, changes, modes, failed=failure)
        undo.callback(service.close)
        hand_over = HandOverService(core, storage, state, changes, log, modes)
        rounds = HostedRounds(core, storage, changes, modes, log)
        idle = IdleTasks(storage, idle_seconds=config.idle_days * DAY)
        control = ControlService(core, storage, changes, log, rounds=rounds, idle=idle, hand_over=hand_over)
        control.resume()
        undo.callback(Sweeping(control.sweep, log).close)

        def add(server: grpc.Server) -> None:
            aggregator_pb2_grpc.add_AggregatorServiceServicer_to_server(aggregator_servicer(service, log), server)
            modes.add_to(server)
            attestation_pb2_grpc.add_AttestationServiceServicer_to_server(
                attestation_servicer.attestation_servicer(core.evidence, log=log), server
            )

        tls = config.identity(state, log, undo)

        def add_control(server: grpc.Server) -> None:
            aggregator_pb2_grpc.add_AggregatorControlServiceServicer_to_server(
                control_servicer(control, hand_over, log), server
            )

        names = [NAME, *modes.service_names, attestation_servicer.NAME]
        # Clients that wait for each other must not keep the rest waiting.
        workers = WORKERS + modes.waiting
        server = serve(
            address=config.listen,
            identity=tls,
            add=add,
            service_names=names,
            workers=workers,
            limits=config.limits,
            reflection=config.reflection,
            # A contribution goes into a list; whose reply comes later. What stays here is hashed first.
            immediate={f"/{NAME}/Submit": modes.is_whole},
        )
        undo.callback(server.stop)
        orders = serve(
            address=config.control_listen,
            identity=tls,
            add=add_control,
            service_names=[control_plane.NAME],
            limits=_CONTROL_LIMITS,
            callers=Callers(tls.ca_pem, (caller_name("server"),)),
        )
        undo.callback(orders.stop)
        log.event("serving", address=server.address, control=orders.address, image=begun.image_digest)
        return Running(
            address=server.address,
            control_address=orders.address,
            ca_pem=tls.ca_pem,
            closing=undo.pop_all(),
            log=log,
            failure=failure,
        )


def _in_this_process(noise: IntegerNoise) -> Launch:
    from odp.enclave.in_thread import InThread
    from trusted_aggregator.enclave.process import run

    return InThread(functools.partial(run, noise=noise))


def _resume(core: Aggregator, storage: Storage, populations: Sequence[str], log: Log) -> None:
    """Erases the files of rounds that are over, and logs the rounds that continue."""
    for name in populations:
        signed = core.charter(name)
        if signed is not None:  # a death may have come between the enclave's record of it and ours
            storage.keep_charter(name, open_charter(signed).sequence, signed.SerializeToString())
    for state in core.round_states():
        key = state.task_sha256, state.round
        needed = [noise_key(*key), *([stream_key(*key)] if storage.holds(participation_key(*key)) else [])]
        lost = state.status in (Status.OPEN, Status.CHARGED) and not all(map(storage.holds, needed))
        if lost and state.status is Status.OPEN:
            raise StateError(
                f"the sealed noise or the past sums of round {state.round} are missing; restore the newest state folder"
            )
        if lost:
            storage.apply(core.give_up(state.task_sha256, state.round))
            log.warning("round_void", task=short(state.task_sha256), round=state.round)
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
