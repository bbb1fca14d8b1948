"""A simulated fleet from its scenario to its results: services, task, hosts of devices, and what they report.

What this process and all below it use, by Linux's ``/proc``: memory now, and processor time so far.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from odp._system.files.private_files import make_folders
from odp._system.files.state_folder import write_atomically
from odp.errors import ConfigurationError, ServiceError, ServiceUnavailable, StateError
from odp.operations.local.processes import OPEN, Child, Services
from odp.protocol.wire.model import ModelVersion
from odp.protocol.wire.tables import table_bytes
from odp.research.simulation.fleet.device_data import load_data
from odp.research.simulation.fleet.fleet_task import FleetTask, fleet_task
from odp.research.simulation.fleet.plan import PROGRESS_FILE, TASK_FILE, Shard
from odp.research.simulation.fleet.scenario import load_scenario
from odp.services.connection import TaskHandle, connect
from odp.trust.enclave.policy import EnclavePolicy
from odp.v1 import server_pb2

_PROC = Path("/proc")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Usage:
    """Samples this process and its descendants.

    Attributes:
      memory_bytes: the largest sum of resident bytes of a sample; pages that processes share count for each.
    """

    memory_bytes: int = 0
    _processor: dict[int, float] = field(default_factory=dict, repr=False)

    @property
    def processor_seconds(self) -> float:
        """User and system seconds of all processes that a sample saw, ended ones included."""
        return sum(self._processor.values())

    def sample(self) -> None:
        """Looks once."""
        resident = 0
        for pid in _family(os.getpid()):
            try:
                fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it ended
                continue
            self._processor[pid] = max(self._processor.get(pid, 0.0), (int(fields[11]) + int(fields[12])) / _TICKS)
            resident += int(fields[21]) * _PAGE
        self.memory_bytes = max(self.memory_bytes, resident)


def _family(pid: int) -> Iterator[int]:
    """``pid`` and its descendants."""
    yield pid
    try:
        tasks = list((_PROC / str(pid) / "task").iterdir())
        children = [int(text) for task in tasks for text in (task / "children").read_text().split()]
    except OSError:
        return
    for child in children:
        yield from _family(child)


#: Of one fleet: each is a process of its own.
MOST_HOSTS = 64
_FEWEST_DEVICES = 5
_POLL_SECONDS = 0.25
_SAMPLE_SECONDS = 2.0
_QUIET_SECONDS = 60.0
SCENARIO_FILE, _FLEET_FILE, _USAGE_FILE = "scenario.toml", "fleet.json", "usage.json"
_FORMAT = "odp-fleet-1"
_USED = {"seconds": 0.0, "processor_seconds": 0.0, "memory_bytes": 0.0}
WORKER = (sys.executable, "-P", "-m", "odp.research.simulation.fleet.worker")


@dataclass(frozen=True, kw_only=True)
class FleetRun:
    """What a fleet did.

    ``rounds`` are sums over the hosts. In them everything but seconds, and ``model_sha256`` with test noise, is the
    same for the same scenario, devices and seed, and for any number of hosts. A fleet that was killed and resumed
    counts the same, and sends more bytes: who was in the middle of an attempt begins it again.

    Attributes:
      epsilon: spent by the task; of a task of local trust, by each device.
      model_sha256: of a model that was trained; None for a question.
      seconds, processor_seconds, memory_bytes: of all programs together and all runs of the fleet; the peak.
      resumed: whether an earlier run had begun it.
    """

    devices: int
    goal: int
    malicious: int
    rounds: list[dict[str, Any]]
    epsilon: float
    model_sha256: str | None
    model: ModelVersion | None
    noise: str
    seconds: float
    processor_seconds: float
    memory_bytes: int
    hosts: int
    resumed: bool

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        names = [field.name for field in dataclasses.fields(self) if field.name != "model"]
        return {name: getattr(self, name) for name in names}


def run_fleet(
    scenario_file: Path,
    *,
    devices: int | None,
    seed: int,
    root: Path,
    test_noise: bool,
    hosts: int | None = None,
    timeout: float = 3600.0,
    report: Callable[[str], None] = lambda line: None,
    progress: Callable[[int, int, int], None] = lambda round, done, of: None,
) -> FleetRun:
    """Runs a fleet under the folder ``root``, or goes on with the one that an earlier run began there.

    Args:
      scenario_file: see ``odp.research.simulation.fleet.scenario``.
      devices: how many; default all users of the scenario's data.
      seed: decides everything that is random about the devices, and the test noise.
      root: stores, logs and states of the services.
      test_noise: noise from the seed, in enclaves that say so; it protects nobody.
      hosts: processes that run the devices; default one per processor, at most 8, or as many as an earlier run had.
      timeout: seconds after which the run is given up.
      report: called with one line per step.
      progress: (round, devices through, devices) now and then.

    Raises:
      ConfigurationError: the scenario does not fit the number of devices, or ``root`` holds something else.
      ServiceError: a program ended by itself, or the task was not finished in time.
    """
    started = time.monotonic()
    scenario = load_scenario(scenario_file)
    folder = scenario_file.resolve().parent
    data = load_data(scenario, folder=folder)
    for note in data.notes:
        report(f"note: {note}")
    devices = data.n_users if devices is None else devices
    if not 1 <= devices <= data.n_users:
        raise ConfigurationError(f"Expected devices={devices} to be from 1 to {data.n_users}, the users of the data")
    fleet = fleet_task(scenario, data, folder=folder, devices=devices, seed=seed)
    del data  # the hosts read it again, and this process is small beside them
    hosts, resumed = _begin(
        root, hosts, scenario_file.read_bytes(), {"devices": devices, "seed": seed, "test_noise": test_noise}
    )
    if fleet.left_out:
        report(f"lies that nobody could tell from the truth in this task are left out: {', '.join(fleet.left_out)}")
    meter = _Meter(root)
    with contextlib.ExitStack() as stack:
        services = stack.enter_context(Services(root, policy=_policy(fleet, test_noise, seed), admission=OPEN))
        report(f"services at {services.server_address}, over TLS")
        handle = stack.enter_context(connect(services.server_address, state=root)).submit(fleet.task)
        shards = shards_of(services, fleet, handle, root=root, folder=folder, hosts=hosts, timeout=timeout)
        workers = [_worker(services, number, shard) for number, shard in enumerate(shards)]
        for worker in workers:
            stack.callback(worker.stop)
        through = sum(sum(_progress(worker)["through"]) for worker in workers)
        report(
            f"{devices:,} devices on {hosts} hosts; {fleet.plan.goal:,} contributions close a round"
            + (f"; {through:,} parts were done before" if resumed else "")
        )
        status = _watch(handle, services, workers, fleet, progress, meter, until=started + timeout, report=report)
        _end(workers)
        meter.sample(force=True)
        model = handle.model() if status.model.manifest and not fleet.local else None
        return FleetRun(
            devices=devices,
            goal=fleet.plan.goal,
            malicious=len(fleet.plan.malicious),
            rounds=_summed([_progress(worker) for worker in workers], status, fleet),
            epsilon=fleet.task.definition().privacy.epsilon if fleet.local else status.epsilon_spent,
            model_sha256=None if model is None else model_digest(model),
            model=model,
            noise=f"TEST NOISE of seed {seed}, protects nobody" if test_noise else "exact",
            hosts=hosts,
            resumed=resumed,
            **meter.used(),
        )


def model_digest(model: ModelVersion) -> str:
    """SHA-256 of all tables of a model, in hex."""
    digest = hashlib.sha256(str(model.version).encode())
    for table in model.tables:
        digest.update(f"{table.name} {table.rows.shape}".encode() + table_bytes(table))
    return digest.hexdigest()


def _begin(root: Path, hosts: int | None, scenario: bytes, options: dict[str, Any]) -> tuple[int, bool]:
    """(hosts, whether an earlier run began this fleet); what it is stands in a file from now on.

    Raises ConfigurationError where the folder holds another fleet, or anything else.
    """
    devices = options["devices"]
    most = max(min(devices // _FEWEST_DEVICES, MOST_HOSTS), 1)
    if hosts is not None and not 1 <= hosts <= most:
        raise ConfigurationError(
            f"Expected hosts={hosts} to be from 1 to {most}: each needs {_FEWEST_DEVICES} of {devices} devices, and "
            f"there are at most {MOST_HOSTS}"
        )
    wanted = {"format": _FORMAT, "scenario_sha256": hashlib.sha256(scenario).hexdigest(), **options}
    path = root / _FLEET_FILE
    if path.exists():
        try:
            stored = json.loads(path.read_bytes())
            known_hosts = int(stored.pop("hosts"))
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise StateError(f"{path} is damaged; start a new fleet in another --state") from error
        if hosts is not None:
            stored["hosts"], wanted["hosts"] = known_hosts, hosts
        for name, value in wanted.items():
            if stored.get(name) != value:
                raise ConfigurationError(
                    f"Expected --state of the same fleet: {root} holds one of {name}={stored.get(name)!r} (got "
                    f"{value!r}); give the same options, or another --state"
                )
        return known_hosts, True
    if root.exists() and any(root.iterdir()):
        raise ConfigurationError(f"Expected the folder {root} to be empty, or of a fleet that was interrupted")
    chosen = hosts if hosts is not None else min(os.cpu_count() or 1, 8, max(devices // 50, 1))
    make_folders(root)
    write_atomically(root / SCENARIO_FILE, scenario)
    write_atomically(path, json.dumps({**wanted, "hosts": chosen}, indent=1).encode())
    return chosen, False


def _policy(fleet: FleetTask, test_noise: bool, seed: int) -> EnclavePolicy:
    definition = fleet.task.definition()
    cohort = definition.cohort
    return EnclavePolicy(
        role="aggregator",
        minimum_cohort=max(cohort.minimum, 1),
        population_epsilon=max(20.0, definition.privacy.epsilon),
        population_delta=max(1e-5, definition.privacy.delta),
        test_noise_seed=seed if test_noise else None,
    )


def shards_of(
    services: Services, fleet: FleetTask, handle: TaskHandle, *, root: Path, folder: Path, hosts: int, timeout: float
) -> list[Shard]:
    """One part of the devices per host.

    Args:
      handle: of the submitted task.
      root: stores of the devices, and a copy of the scenario.
      folder: where paths in the scenario start.
    """
    status = handle.status()
    over = status.state == server_pb2.TaskStatus.STATE_FINISHED
    closed = fleet.plan.rounds if over else 0 if fleet.local else _closed(status)
    devices = fleet.plan.devices
    ends = [devices * place // hosts for place in range(hosts + 1)]
    return [
        Shard(
            scenario=str(root / SCENARIO_FILE),
            folder=str(folder),
            seed=fleet.plan.seed,
            devices=devices,
            first=first,
            count=after - first,
            rounds=fleet.plan.rounds,
            closed=closed,
            behaviours=fleet.behaviours,
            bad_byte=fleet.bad_byte,
            day=fleet.day,
            task=handle.task_sha256.hex(),
            population=fleet.task.population,
            server=services.server_address,
            ca=str(services.ca),
            reference_values=str(services.reference_values),
            stores=str(root),
            wait_seconds=timeout,
        )
        for first, after in itertools.pairwise(ends)
    ]


def _closed(status: server_pb2.TaskStatus) -> int:
    """Rounds of a task that are over."""
    return sum(entry.state > server_pb2.RoundStatus.STATE_OPEN for entry in status.rounds)


def _worker(services: Services, number: int, shard: Shard) -> Child:
    folder = services.root / "devices" / f"host-{number}"
    make_folders(folder)
    write_atomically(folder / TASK_FILE, json.dumps(dataclasses.asdict(shard)).encode())
    log = services.root / "logs" / f"devices-{number}.log"
    return Child(f"devices-{number}", [], state=folder, log=log, command=WORKER)


def _watch(
    handle: TaskHandle,
    services: Services,
    workers: list[Child],
    fleet: FleetTask,
    progress: Callable[[int, int, int], None],
    meter: _Meter,
    *,
    until: float,
    report: Callable[[str], None],
) -> server_pb2.TaskStatus:
    """The status of the finished task, or of one of local trust to which all devices reported."""
    pause, waits = threading.Event(), False
    rounds, devices = fleet.plan.rounds, fleet.plan.devices
    while True:
        # A program that died says more than a call that it did not answer.
        dead = services.dead()
        failed = [worker for worker in workers if worker.process.poll() not in (None, 0)]
        if dead is not None or failed:
            ended = dead if dead is not None else failed[0]
            raise ServiceError(f"{ended.name} ended by itself: {ended.last_line()}; see {ended.log}")
        try:
            status = handle.status()
        except ServiceUnavailable as error:
            if time.monotonic() > until:
                raise
            if not waits:
                report(f"waiting for a service: {error}")
            waits = not pause.wait(_POLL_SECONDS)
            continue
        waits = False
        all_through = all(worker.process.poll() == 0 for worker in workers)
        if status.state == server_pb2.TaskStatus.STATE_FINISHED or (fleet.local and all_through):
            progress(rounds - 1, devices, devices)
            return status
        if status.state != server_pb2.TaskStatus.STATE_ACTIVE:
            raise ServiceError(f"the task ended early: {status.failure or 'cancelled'}")
        if time.monotonic() > until:
            raise ServiceError("not finished in time; raise --timeout")
        through = [
            sum(counts) for counts in zip(*(_through(_progress(worker), rounds) for worker in workers), strict=True)
        ]
        number = next((number for number, count in enumerate(through) if count < devices), rounds - 1)
        progress(number, through[number], devices)
        meter.sample()
        pause.wait(_POLL_SECONDS)


def _end(workers: list[Child]) -> None:
    """Waits for the hosts, which have to write their last lines. Raises ServiceError where one fails to."""
    for worker in workers:
        try:
            failed = worker.process.wait(_QUIET_SECONDS) != 0
        except subprocess.TimeoutExpired:
            failed = True
        if failed:
            raise ServiceError(f"{worker.name} ended by itself: {worker.last_line()}; see {worker.log}")


def _progress(worker: Child) -> dict[str, Any]:
    try:
        progress: dict[str, Any] = json.loads((worker.state / PROGRESS_FILE).read_bytes())
    except (OSError, ValueError):
        return {"filled": False, "rounds": [], "through": []}
    return progress


def _through(progress: dict[str, Any], rounds: int) -> list[int]:
    """Devices of a host that are through with each round."""
    return [int(count) for count in progress["through"]] or [0] * rounds


def _summed(reports: list[dict[str, Any]], status: server_pb2.TaskStatus, fleet: FleetTask) -> list[dict[str, Any]]:
    counted = {entry.round: entry.contributions for entry in status.rounds}
    summed = []
    for number in range(fleet.plan.rounds):
        parts = [progress["rounds"][number] for progress in reports]
        total: dict[str, Any] = {"round": number}
        for name in ("devices_in", "rests", "retries", "bytes_up", "bytes_down", "processor_seconds"):
            total[name] = sum(part[name] for part in parts)
        total["counted"] = total["devices_in"] if fleet.local else counted.get(number, 0)
        for name in ("refused", "injected"):
            total[name] = dict(sorted(sum((Counter(part[name]) for part in parts), Counter()).items()))
        for name in ("seconds", "simulated_hours"):
            total[name] = max(part[name] for part in parts)
        summed.append(total)
    return summed


class _Meter:
    """Time and memory of all programs of a fleet, over all of its runs."""

    def __init__(self, root: Path) -> None:
        self._path = root / _USAGE_FILE
        self._began = time.monotonic()
        self._usage = Usage()
        self._sampled = -_SAMPLE_SECONDS
        try:
            stored = json.loads(self._path.read_bytes())
            self._earlier = {name: float(stored[name]) for name in _USED}
        except (OSError, ValueError, TypeError, KeyError):
            self._earlier = dict(_USED)

    def sample(self, *, force: bool = False) -> None:
        """Looks now and then, and keeps what it saw."""
        now = time.monotonic()
        if force or now - self._sampled >= _SAMPLE_SECONDS:
            self._sampled = now
            self._usage.sample()
            write_atomically(self._path, json.dumps(self.used()).encode())

    def used(self) -> dict[str, Any]:
        """Seconds, processor seconds and the peak of memory."""
        earlier = self._earlier
        return {
            "seconds": earlier["seconds"] + time.monotonic() - self._began,
            "processor_seconds": earlier["processor_seconds"] + self._usage.processor_seconds,
            "memory_bytes": max(int(earlier["memory_bytes"]), self._usage.memory_bytes),
        }
