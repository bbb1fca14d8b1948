"""Devices that train a network 784-64-10 over TLS, beside what no platform could leave out.

Each device has 600 examples, and trains five epochs of batches of 10 in every round, by LiteRT behind walls. One host
plays them all; every device has its own store, secret and key. Measured is the processor time of the services and the
host with all their processes, from the moment when the devices have their data to the end of the task.

The yardstick is the processor time of the same training by LiteRT in one process, which loads the program once, and of
a bare gRPC stream of the model and a bare call with an upload per device, client and server together.

Needs ai-edge-litert; without, there are no figures.
"""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil

from benchmarks.bare_grpc import DOWNLOAD, METHOD
from benchmarks.demo import signals, wait_for_devices, wait_for_end
from benchmarks.federated_program import BATCH, CLASSES, FEATURES, stored_network
from benchmarks.harness import Figure, Limit, progress
from odp.algorithms.fedavg.config import DPFedAvg
from odp.datasets.examples import UsersExamples
from odp.errors import ServiceError
from odp.models.example_columns import ExampleColumns
from odp.models.examples import Examples
from odp.models.features import Tensor
from odp.models.litert.program import inputs_of, targets_of
from odp.operations.local.processes import Child, Services
from odp.protocol.terms import Cohort, UserLevelDP
from odp.services.connection import connect
from odp.tasks.task import Task
from odp.trust.enclave.policy import EnclavePolicy
from odp.v1 import aggregator_pb2, distributor_pb2

_POPULATION = "benchmark"
_EACH, _EPOCHS, _RATE = 600, 5, 0.05
_DATA = Examples({"image": Tensor((FEATURES,), 0.0, 1.0)}, label="kind")
_TABLE = 4000  # examples that devices draw theirs from
_EPSILON, _DELTA = 8.0, 1e-6
_SECONDS = 60.0
_AT_ONCE = 40  # devices
_SEALED_BYTES = 300  # of a contribution besides its numbers


@dataclass(frozen=True)
class _Spent:
    """Processor seconds of a run over the platform, by process, and its uploads."""

    seconds: Mapping[str, float]
    uploads: int


def figures(quick: bool) -> list[Figure]:
    """Processor time of a device in a round, and what it is beside training and transport; nothing without LiteRT."""
    if importlib.util.find_spec("ai_edge_litert") is None:
        progress("benchmarks: federated: no ai-edge-litert, so no figures of devices with a network")
        return []
    devices, rounds = (20, 2) if quick else (200, 2)
    task = _task(devices, rounds)
    users = _users(devices)
    training = _training(users, most=20)
    transport = _transport(4 * stored_network().size, calls=devices * rounds)
    spent = _platform(task, users, rounds)
    each = {name: 1000.0 * seconds / spent.uploads for name, seconds in spent.seconds.items()}
    whole, least = sum(each.values()), 1000.0 * (training + transport)
    limit, goal = Limit("bare LiteRT and bare gRPC", least), None if quick else "<= 1.5"
    return [
        Figure("devices, a device of a round", whole, "ms", limit=limit),
        *(Figure(f"devices, {name}", found, "ms", limit=Limit("all programs", whole)) for name, found in each.items()),
        Figure("devices, bare training", 1000.0 * training, "ms", limit=limit),
        Figure("devices, bare transport", 1000.0 * transport, "ms", limit=limit),
        Figure("device rounds, multiple of bare training and transport", whole / least, "", goal),
    ]  # fmt: skip


def _task(devices: int, rounds: int) -> Task:
    return Task(
        name=_POPULATION,
        model=stored_network(),
        data=_DATA,
        privacy=UserLevelDP(epsilon=_EPSILON, delta=_DELTA),
        training=_training_of(rounds),
        cohort=Cohort(minimum=devices, goal=devices, round_seconds=3600),
    )


def _training_of(rounds: int) -> DPFedAvg:
    return DPFedAvg(rounds=rounds, epochs=_EPOCHS, batch=BATCH, rate=_RATE, clip=0.5)


def _users(devices: int) -> UsersExamples:
    generator = np.random.Generator(np.random.PCG64(1))
    return UsersExamples(
        generator.random((_TABLE, FEATURES), dtype=np.float32),
        generator.integers(0, CLASSES, _TABLE).astype(np.float32),
        generator.integers(0, _TABLE, devices * _EACH),
        np.arange(devices + 1) * _EACH,
    )


def _training(users: UsersExamples, *, most: int) -> float:
    """Processor seconds of one device's training by LiteRT in this process, the mean of at most ``most`` devices."""
    from odp.models.litert.runner import Runner

    model, local = stored_network(), _training_of(1).local()
    runner, start = Runner(model.program), model.public_matrix[:, 0].copy()
    devices, spent = min(most, users.n_users), 0.0
    for user in range(devices):
        features, targets = users.of(user)
        begin = time.process_time()
        x, y = inputs_of(model.program, features), targets_of(model.program, targets)
        moved = runner.difference(start, x, y, local.batches(len(targets), seed=user, round=0), rate=_RATE)
        spent += time.process_time() - begin
        if not moved.any():
            raise ServiceError("the devices of the benchmark trained nothing")
    return spent / devices


def _transport(size: int, *, calls: int) -> float:
    """Processor seconds of one download and one upload of ``size`` bytes over bare gRPC, client and server."""
    with tempfile.TemporaryDirectory(prefix="odp-benchmark-") as root:
        down = _bare(Path(root) / "download", ["download", "4", str(size)], _download, calls)
        request = aggregator_pb2.SubmitRequest(sealed_contribution=bytes(size + _SEALED_BYTES))
        up = _bare(Path(root) / "submit", ["sync", "4"], lambda channel: _submit(channel, request), calls)
    return down + up


def _download(channel: grpc.Channel) -> None:
    call = channel.unary_stream(
        DOWNLOAD,
        request_serializer=distributor_pb2.DownloadRequest.SerializeToString,
        response_deserializer=distributor_pb2.DownloadResponse.FromString,
    )
    for _ in call(distributor_pb2.DownloadRequest(), timeout=_SECONDS):
        pass


def _submit(channel: grpc.Channel, request: aggregator_pb2.SubmitRequest) -> None:
    channel.unary_unary(
        METHOD,
        request_serializer=aggregator_pb2.SubmitRequest.SerializeToString,
        response_deserializer=aggregator_pb2.SubmitResponse.FromString,
    )(request, timeout=_SECONDS)


def _bare(folder: Path, arguments: list[str], call: Any, calls: int) -> float:
    """Processor seconds of one call to a bare server, of both sides."""
    folder.mkdir(parents=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.bare_grpc", str(folder), *arguments], stdin=subprocess.PIPE
    )
    try:
        until, pause = time.monotonic() + _SECONDS, threading.Event()
        while not (folder / "address").exists():
            if process.poll() is not None or time.monotonic() > until:
                raise ServiceError("the bare gRPC server did not start")
            pause.wait(0.02)
        credentials = grpc.ssl_channel_credentials((folder / "ca" / "ca.pem").read_bytes())
        with grpc.secure_channel((folder / "address").read_text(), credentials) as channel:
            call(channel)
            before = time.process_time() + _used(psutil.Process(process.pid))
            for _ in range(calls):
                call(channel)
            return (time.process_time() + _used(psutil.Process(process.pid)) - before) / calls
    finally:
        process.communicate()


def _platform(task: Task, users: UsersExamples, rounds: int) -> _Spent:
    """Runs the task over the whole platform, and stops every program, whatever happens."""
    devices = users.n_users
    progress(f"{devices} devices, {rounds} rounds of a network")
    policy = EnclavePolicy(role="aggregator", minimum_cohort=devices)
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(signals())
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="odp-benchmark-")))
        file = root / "examples.npz"
        ExampleColumns.of(users, _DATA).save(file)
        services = stack.enter_context(Services(root, policy=policy))
        connection = stack.enter_context(connect(services.server_address, state=root))
        # Before the devices: a population without a task is told to come back much later.
        handle = connection.submit(task)
        host = _host(root, services.server_address, file, devices)
        stack.callback(host.stop)
        wait_for_devices(services, host, stop)
        pids = {name: child.process.pid for name, child in [*services.children.items(), (host.name, host)]}
        before = {name: _used_below(pid) for name, pid in pids.items()}
        status = wait_for_end(handle, services, host, stop)
        spent = {name: _used_below(pid) - before[name] for name, pid in pids.items()}
    uploads = sum(entry.contributions for entry in status.rounds)
    if uploads != devices * rounds:
        raise ServiceError(f"{uploads} contributions came of {devices * rounds}")
    return _Spent(spent, uploads)


def _host(root: Path, server: str, file: Path, devices: int) -> Child:
    threads = min(devices, _AT_ONCE)
    return Child(
        "device host",
        [
            "device", "run", "--population", _POPULATION, "--server", server, "--services", str(root),
            "--examples", str(file), "--min-cohort", str(devices), "--max-epsilon", repr(_EPSILON),
            "--max-total-epsilon", repr(_EPSILON), "--threads", str(threads),
        ],
        state=root / "devices",
        log=root / "logs" / "devices.log",
    )  # fmt: skip


def _used_below(pid: int) -> float:
    """Processor seconds of a process and all below it, those that ended included."""
    process = psutil.Process(pid)
    return sum(_used(one) for one in [process, *process.children(recursive=True)])


def _used(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system + times.children_user + times.children_system)
    return 0.0  # it ended since it was listed: its parent has its seconds
