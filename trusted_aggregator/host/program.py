"""The trusted aggregator as a program: state folder, storage, enclave, gRPC server."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import grpc

from odp._system.files.state_folder import StateFolder
from odp.errors import StateError
from odp.signed.charter import open_charter
from odp.transport.channel import connect
from odp.transport.limits import Limits
from odp.transport.logs import Log, short
from odp.transport.running import Failure, Running
from odp.transport.service import serve
from odp.transport.sweeping import DAY, Sweeping
from odp.transport.tls import Callers, TlsIdentity, caller_name
from odp.trust.enclave import attestation_servicer, chip_end
from odp.trust.enclave.channel import Client
from odp.trust.enclave.host import Launch, begin, launch_process
from odp.trust.enclave.measurement import AGGREGATOR_ENTRY
from odp.v1 import aggregator_enclave_pb2, aggregator_pb2, aggregator_pb2_grpc, attestation_pb2_grpc
from trusted_aggregator.boundary import wire
from trusted_aggregator.boundary.calls import AggregatorCalls
from trusted_aggregator.boundary.interface import Status
from trusted_aggregator.host import control as control_plane, leaf_program
from trusted_aggregator.host.changes import Changes
from trusted_aggregator.host.config import ROLE, Config, IdleTasks
from trusted_aggregator.host.control import ControlService, control_servicer
from trusted_aggregator.host.hand_over_service import ROOT_NAME, HandOverService, last_successor
from trusted_aggregator.host.leaves import LeafClient, TreeLeaves
from trusted_aggregator.host.postgresql_storage import open_storage
from trusted_aggregator.host.remote import restore
from trusted_aggregator.host.rounds import HostedRounds
from trusted_aggregator.host.servicer import NAME, WORKERS, AggregatorService, aggregator_servicer
from trusted_aggregator.host.storage import Storage
from trusted_aggregator.modes.hosting import HostModes
from trusted_aggregator.state.records import POPULATION_PREFIX, noise_key, participation_key, stream_key

if TYPE_CHECKING:
    from odp.privacy.mechanisms import IntegerNoise

# A hand-over comes with the hash of every entry of the log: a million of them.
_CONTROL_LIMITS = Limits(request_bytes=2**25, queued_bytes=2**26)


def start(
    config: Config, *, noise: IntegerNoise | None = None, log: Log | None = None, launch: Launch = launch_process
) -> Running:
    """Opens the state folder, launches the enclave, restores its state, and serves.

    ``noise`` replaces the exact Gaussian noise, for tests alone: the enclave is then a thread of this process, so that
    no file, flag or message can do the same (rule P23). ``launch`` starts the enclave otherwise.

    Raises ConfigurationError (a bad file, address or port in use) and StateError (folder in use, disk full, corrupt,
    or older than what the platform's counters know).
    """
    if config.policy.role == "leaf":
        return leaf_program.start(config, log=log, launch=launch)
    log = Log(ROLE) if log is None else log
    rosters = config.modes.read_rosters()
    failure = Failure(log)
    with contextlib.ExitStack() as undo:
        state = undo.enter_context(StateFolder.open(config.state, ROLE, failed=failure))
        storage = open_storage(state, config.database)
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
            successor=last_successor(state),
        )
        storage.apply(restore(begun.connection, records, storage.contributions))
        populations = [key.removeprefix(POPULATION_PREFIX) for key in records if key.startswith(POPULATION_PREFIX)]
        client = Client(
            begun.connection, AggregatorCalls.interface.reply, ended=failure,
            crashed=lambda where: log.error("enclave_error", where=where),
        )  # fmt: skip
        undo.callback(client.close)
        tls = config.identity(state, log, undo)
        core = AggregatorCalls(client)
        _resume(core, storage, populations, log)
        leaves = _leaves(config, core, storage, state, tls, log, failure, undo)
        modes = HostModes(core, storage, state, log, config.modes, rosters, leaves)
        modes.resume(core.round_states())
        changes = Changes(core, storage, failed=failure)
        service = AggregatorService(core, storage, changes, modes, failed=failure)
        undo.callback(service.close)
        rounds = HostedRounds(core, storage, changes, modes, log)
        hand_over = HandOverService(core, storage, state, changes, log, modes, rounds=rounds)
        idle = IdleTasks(storage, idle_seconds=config.idle_days * DAY)
        control = ControlService(core, storage, changes, log, rounds=rounds, idle=idle, hand_over=hand_over)
        control.resume()
        undo.callback(Sweeping(control.sweep, log).close)

        def add(server: grpc.Server) -> None:
            aggregator_pb2_grpc.add_AggregatorServiceServicer_to_server(aggregator_servicer(service, log), server)
            modes.add_to(server)
            attestation_pb2_grpc.add_AttestationServiceServicer_to_server(
                attestation_servicer.attestation_servicer(core.evidence_over, log=log), server
            )

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
        undo.callback(chip_end.watch(core.evidence_over, log).close)
        if leaves is not None:
            leaves.start()
        log.event("serving", address=server.address, control=orders.address, image=begun.image_digest)
        return Running(
            address=server.address,
            control_address=orders.address,
            ca_pem=tls.ca_pem,
            closing=undo.pop_all(),
            log=log,
            failure=failure,
        )


def _leaves(
    config: Config, core: AggregatorCalls, storage: Storage, state: StateFolder, tls: TlsIdentity, log: Log,
    failure: Failure, undo: contextlib.ExitStack,
) -> TreeLeaves | None:  # fmt: skip
    if not config.leaves:
        return None
    if (name := state.read(ROOT_NAME)) is None:
        name = os.urandom(32)
        state.write_atomically(ROOT_NAME, name)
    clients = [
        LeafClient(undo.enter_context(connect(address, tls.ca_pem, identity=tls)), address) for address in config.leaves
    ]
    leaves = TreeLeaves(
        core, storage, clients, root=name, log=log, failed=failure, grace_seconds=config.leaf_grace_seconds
    )
    undo.callback(leaves.stop)
    return leaves


def _in_this_process(noise: IntegerNoise) -> Launch:
    from odp.trust.enclave.in_thread import InThread
    from trusted_aggregator.enclave.process import run

    return InThread(functools.partial(run, noise=noise))


def _resume(core: AggregatorCalls, storage: Storage, populations: Sequence[str], log: Log) -> None:
    """Erases the files of rounds that are over, and logs the rounds that continue."""
    for name in populations:
        signed = core.charter(aggregator_enclave_pb2.AskCharter(population=name))
        if signed.charter:  # a death may have come between the enclave's record of it and ours
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
            given_up = core.give_up(aggregator_pb2.GetRoundRequest(task_sha256=state.task_sha256, round=state.round))
            storage.apply(wire.writes_of(given_up.records))
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
