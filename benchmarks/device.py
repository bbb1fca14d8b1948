"""What a device costs: time and memory of a participation against real services, and of many devices in one host.

Devices hold 100 ratings each and train a DPAM model at rank 32. A participation is all of it: the check-in, the
enclaves and the log (verified once per enclave and epoch), the encrypted selection, the solve, sealing, the store's
transactions, and the submission. Processor time is that of the whole device process, gRPC's threads included, while
devices wait for their computing time side by side, as those of a host do; wall time includes that wait. The services
run beside them on the same machine.

Memory is that of a host with all its devices, after some of them took part, less that of a host with one device.
"""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from benchmarks import isolated
from benchmarks.harness import Figure, Limit, progress
from device_runtime import Gate, Limits, Services, Store, charter_memory, log_guard, provision, store_path
from device_runtime.network.addresses import PinnedAddresses
from device_runtime.network.enclaves import Enclaves
from device_runtime.network.services import Traffic
from device_runtime.round.admission import Admission, attesters_of
from device_runtime.round.participation import Outcome, Participant
from device_runtime.round.verification import FOLDER, Records
from device_runtime.tasks.answers import AnswerReader
from device_runtime.tasks.assignment import Work
from odp.algorithms.dpam.config import DPAM, RatingsData
from odp.datasets import Ratings
from odp.errors import ServiceError
from odp.models.matrix_factorization import MatrixFactorization
from odp.operations.local.processes import ODP, Child, Services as Programs
from odp.protocol.terms import Cohort, UserLevelDP
from odp.services.connection import TaskHandle, connect
from odp.tasks.task import Task
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.reference_values import ReferenceValues
from odp.v1 import server_pb2

_POPULATION = "benchmark"
_RANK, _RATINGS, _ITEMS = 32, 100, 1000
_ROUNDS = 3
_GIB, _KB = 2.0**30, 1000.0
_WAIT_SECONDS = 300.0
_STARTS = 3
_SIDE_BY_SIDE = 32


@dataclass(frozen=True)
class Plan:
    """``taking_part`` of ``devices`` take part in each round."""

    devices: int
    taking_part: int
    full: bool


@dataclass(frozen=True)
class _Cost:
    """Of participations, in seconds: how long each took, and the processor time per participation."""

    walls: list[float]
    processor: float


def plan(quick: bool) -> Plan:
    """10,000 devices in a host, or 300."""
    return Plan(300, 40, full=False) if quick else Plan(10_000, 300, full=True)


def run(quick: bool) -> list[Figure]:
    """All parts; each one is a function of the plan, so that one more is one more line here."""
    chosen = plan(quick)
    parts: tuple[Callable[[Plan], list[Figure]], ...] = (participation, start, isolated_calls, host)
    return [figure for part in parts for figure in part(chosen)]


def participation(chosen: Plan) -> list[Figure]:
    """First contact, and the participations of a host's devices side by side, in this process."""
    ratings = _ratings(chosen.taking_part)
    with _platform(goal=chosen.taking_part) as (services, root, _):
        folder = root / "devices"
        began = time.perf_counter()
        provision(folder, ratings)
        filling = (time.perf_counter() - began) / chosen.taking_part
        fresh = store_path(folder, 0).stat().st_size
        values = ReferenceValues.load(services.reference_values)
        clients = Services(services.server_address, services.ca, pinned=PinnedAddresses.of(values))
        try:
            participant = Participant(
                services=clients,
                enclaves=Enclaves(clients, lambda: values),
                gate=Gate(limits=_limits(chosen)),
                records=Records(folder / FOLDER, lambda: values),
                log=log_guard(clients, values, folder),
                charters=charter_memory(values, folder),
                admission=Admission(
                    clients, attesters_of(emulated_vendor=Path(values.emulated_vendor), on_roster=False)
                ),
            )
            reader = AnswerReader(_POPULATION)
            for number in range(_ROUNDS):
                _open_round(clients, reader, number)
                if number == 0:
                    first = _take_part(participant, reader, folder, range(1))
                usual = _take_part(participant, reader, folder, range(number == 0, chosen.taking_part))
        finally:
            clients.close()
        used = store_path(folder, 0).stat().st_size
    wall = sorted(usual.walls)
    name = f"participation at rank {_RANK}, {_RATINGS} ratings"
    return [
        Figure(f"{name}: processor time", 1e3 * usual.processor, "ms", "<= 10"),
        Figure(f"{name}: wall time, median", 1e3 * wall[len(wall) // 2], "ms"),
        Figure(f"{name}: wall time, 99th percentile", 1e3 * wall[len(wall) * 99 // 100], "ms"),
        Figure("first contact: processor time of the first participation of a process", 1e3 * first.processor, "ms"),
        Figure("first contact: wall time", 1e3 * first.walls[0], "ms"),
        Figure("making and filling a store", 1e3 * filling, "ms"),
        Figure("store of a device that never took part", fresh / _KB, "KB"),
        Figure(f"store of a device after {_ROUNDS} rounds", used / _KB, "KB"),
    ]


def start(chosen: Plan) -> list[Figure]:
    """Cold start of `odp device run`: from the command to the line that says that its devices are at work."""
    with tempfile.TemporaryDirectory(prefix="odp-benchmark-") as folder, _platform(goal=100) as (services, _, _):
        state = Path(folder) / "devices"
        provision(state, _ratings(1))
        seconds = []
        for _ in range(_STARTS):
            began = time.perf_counter()
            process = subprocess.Popen(
                [*ODP, *_host_command(services, devices=1), "--state", str(state)],
                stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
            )  # fmt: skip
            try:
                _read_until(process, "devices_started")
                seconds.append(time.perf_counter() - began)
            finally:
                process.terminate()
                process.communicate(timeout=30)
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import numpy, grpc, cryptography"], check=True)
        imports = time.perf_counter() - began
    limit = Limit("Python with numpy, gRPC and cryptography", imports)
    return [Figure("cold start of `odp device run`", min(seconds), "s", "<= 1", limit)]


def isolated_calls(chosen: Plan) -> list[Figure]:
    """What a developer's code costs the device, as ``benchmarks isolated`` measures it."""
    found = isolated.figures(not chosen.full)
    return [dataclasses.replace(figure, name=f"isolated code: {figure.name}") for figure in found]


def host(chosen: Plan) -> list[Figure]:
    """Memory of a host with many devices, of which some took part in a whole task."""
    with _platform(goal=chosen.taking_part) as (services, root, handle):
        alone, many = root / "alone", root / "many"
        ratings = _ratings(chosen.devices)
        progress(f"  {chosen.devices:,} stores are made")
        provision(many, ratings)
        provision(alone, ratings.select_users(range(1)))
        del ratings
        lone = _idle(services, alone, devices=1, population="nobody")
        idle = _idle(services, many, devices=chosen.devices, population="nobody")
        child = Child("device host", _host_command(services, devices=chosen.devices), state=many, log=root / "many.log")
        try:
            began = time.perf_counter()
            peak = 0
            process = psutil.Process(child.process.pid)
            while handle.status().state != server_pb2.TaskStatus.STATE_FINISHED:
                if child.process.poll() is not None:
                    raise ServiceError(f"the device host ended by itself: {child.last_line()}")
                if time.perf_counter() - began > 4 * _WAIT_SECONDS:
                    raise ServiceError("the task was not finished in time")
                peak = max(peak, process.memory_info().rss)
                threading.Event().wait(0.2)
        finally:
            child.stop()
    name = f"host of {chosen.devices:,} devices"
    per_device = max(idle - lone, 0) / (chosen.devices - 1)
    return [
        Figure(f"{name}: idle memory per device", per_device / _KB, "KB", "<= 100"),
        Figure(f"{name}: memory, idle", idle / _GIB, "GiB", None, Limit("host of one device", lone / _GIB)),
        Figure(f"{name}: peak memory over a task", peak / _GIB, "GiB", "<= 2" if chosen.full else None),
    ]


def _limits(chosen: Plan) -> Limits:
    return Limits(min_cohort=min(chosen.taking_part, 100))


def _ratings(users: int) -> Ratings:
    """Exactly so many of each user, of random items."""
    generator = np.random.Generator(np.random.PCG64(3))
    items = np.concatenate([generator.choice(_ITEMS, _RATINGS, replace=False) for _ in range(users)])
    values = generator.integers(1, 6, len(items)).astype(float)
    owners = np.repeat(np.arange(users), _RATINGS)
    return Ratings.from_triples("devices", owners, items, values, low=1, high=5, n_users=users, n_items=_ITEMS)


@contextlib.contextmanager
def _platform(*, goal: int):  # type: ignore[no-untyped-def]  # (programs, folder, handle)
    """Three real services and the task, all gone afterwards."""
    task = Task(
        name=_POPULATION,
        population=_POPULATION,
        model=MatrixFactorization(items=_ITEMS, rank=_RANK),
        data=RatingsData(low=1.0, high=5.0),
        privacy=UserLevelDP(epsilon=8.0, delta=1e-6, max_items_per_user=_RATINGS),
        training=DPAM(steps=_ROUNDS - 2),
        cohort=Cohort(minimum=goal, goal=goal, round_seconds=10**6),
    )
    with tempfile.TemporaryDirectory(prefix="odp-benchmark-") as folder:
        root = Path(folder)
        policy = EnclavePolicy(role="aggregator", minimum_cohort=min(goal, 100))
        with Programs(root, policy=policy) as services, connect(services.server_address, state=root) as connection:
            handle: TaskHandle = connection.submit(task)
            yield services, root, handle


def _open_round(clients: Services, reader: AnswerReader, number: int) -> Work:
    until = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < until:
        work = reader.open(clients.check_in(_POPULATION, Traffic()))
        if isinstance(work, Work) and work.round == number:
            return work
        threading.Event().wait(0.1)
    raise ServiceError(f"round {number} did not open")


def _take_part(participant: Participant, reader: AnswerReader, folder: Path, devices: range) -> _Cost:
    """As a device host lets ``devices`` take part."""

    def one(device: int) -> float:
        began = time.perf_counter()
        with Store.open(store_path(folder, device), durable=False) as store:
            participant.gate.check_in(store, _POPULATION)
            work = reader.open(participant.services.check_in(_POPULATION, Traffic()))
            if not isinstance(work, Work):
                raise ServiceError("the round closed")
            outcome = participant.take_part(store, work, Traffic())
        if outcome is not Outcome.SENT:
            raise ServiceError(f"device {device} was {outcome.value}")
        return time.perf_counter() - began

    processor = time.process_time()
    with ThreadPoolExecutor(_SIDE_BY_SIDE) as threads:
        walls = list(threads.map(one, devices))
    return _Cost(walls, (time.process_time() - processor) / len(devices))


def _host_command(services: Programs, *, devices: int, population: str = _POPULATION) -> list[str]:
    return [
        "device", "run", "--population", population, "--server", services.server_address,
        "--services", str(services.root), "--devices", str(devices), "--no-durable", "--min-cohort", "1",
    ]  # fmt: skip


def _idle(services: Programs, state: Path, *, devices: int, population: str) -> int:
    """Resident bytes of a host that found nothing to do."""
    process = subprocess.Popen(
        [*ODP, *_host_command(services, devices=devices, population=population), "--state", str(state)],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        _read_until(process, "devices_started")
        threading.Event().wait(1.0)
        return int(psutil.Process(process.pid).memory_info().rss)
    finally:
        process.terminate()
        process.communicate(timeout=30)


def _read_until(process: subprocess.Popen[str], event: str) -> None:
    if process.stderr is None:
        raise ServiceError("the device host has no log")
    lines = []
    for line in process.stderr:
        lines.append(line)
        if event in line:
            return
    raise ServiceError(f"the device host ended by itself: {lines[-1:]}")
