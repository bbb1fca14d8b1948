"""A simulated fleet from its scenario to its final model: services, task, processes of devices, and results."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odp.algorithms.dpam.data import RatingsData
from odp.algorithms.registry import algorithm_for
from odp.client import TaskHandle, connect
from odp.crypto.segments import is_large
from odp.datasets import Ratings, load
from odp.enclave.policy import EnclavePolicy
from odp.errors import ConfigurationError, ServiceError
from odp.local.processes import OPEN, Child, Services
from odp.models.matrix_factorization import MatrixFactorization
from odp.simulation.fleet.plan import Plan
from odp.simulation.fleet.scenario import Scenario, load_scenario
from odp.simulation.fleet.worker import PROGRESS_FILE, TASK_FILE, Shard
from odp.task import Cohort, Task, UserLevelDP
from odp.transport.private_files import make_folders
from odp.transport.state_folder import write_atomically
from odp.v1 import server_pb2
from odp.wire.model import ModelVersion
from odp.wire.tables import table_bytes

_POPULATION = "fleet"
_ROUND_SECONDS = 10**6
_POLL_SECONDS = 0.25
_SCENARIO_FILE = "scenario.toml"
WORKER = (sys.executable, "-P", "-m", "odp.simulation.fleet.worker")


@dataclass(frozen=True, kw_only=True)
class FleetRun:
    """What a fleet did.

    ``rounds`` are sums over the processes. In them everything but seconds, and ``model_sha256`` with test noise, is the
    same for the same scenario, devices, seed and processes; another number of processes changes no more than how often
    devices rested.
    """

    devices: int
    goal: int
    malicious: int
    rounds: list[dict[str, Any]]
    epsilon: float
    model_sha256: str
    model: ModelVersion
    noise: str
    seconds: float
    processes: int

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        names = [one.name for one in dataclasses.fields(self) if one.name != "model"]
        return {name: getattr(self, name) for name in names}


def run_fleet(
    scenario_file: Path,
    *,
    devices: int | None,
    seed: int,
    root: Path,
    test_noise: bool,
    processes: int | None = None,
    timeout: float = 3600.0,
    report: Callable[[str], None] = lambda line: None,
    progress: Callable[[int, int, int], None] = lambda round, done, of: None,
) -> FleetRun:
    """Runs a fleet under the folder ``root``, which holds nothing yet.

    Args:
      scenario_file: see ``odp.simulation.fleet.scenario``.
      devices: how many; default all users of the scenario's data.
      seed: decides everything that is random about the devices, and the test noise.
      root: stores, logs and states of the services.
      test_noise: noise from the seed, in enclaves that say so; it protects nobody.
      processes: that run the devices; default one per processor, at most 8.
      timeout: seconds after which the run is given up.
      report: called with one line per step.
      progress: (round, devices through, devices) now and then.

    Raises:
      ConfigurationError: the scenario does not fit the number of devices, or ``root`` is not empty.
      ServiceError: a program ended by itself, or the task was not finished in time.
    """
    started = time.monotonic()
    scenario = load_scenario(scenario_file)
    ratings = load(scenario.data.source)
    devices = ratings.n_users if devices is None else devices
    if not 1 <= devices <= ratings.n_users:
        raise ConfigurationError(
            f"Expected devices={devices} to be from 1 to {ratings.n_users}, the users of {scenario.data.source!r}"
        )
    if root.exists() and any(root.iterdir()):
        raise ConfigurationError(f"Expected the folder {root} to be empty; a fleet starts anew each time")
    rounds = 2 + scenario.task.steps
    plan = Plan(scenario, devices=devices, rounds=rounds, seed=seed)
    task = _task(scenario, ratings, goal=plan.goal)
    policy = EnclavePolicy(
        role="aggregator",
        minimum_cohort=scenario.task.minimum_cohort,
        population_epsilon=max(20.0, scenario.task.epsilon),
        population_delta=max(1e-5, scenario.task.delta),
        test_noise_seed=seed if test_noise else None,
    )
    with contextlib.ExitStack() as stack:
        services = stack.enter_context(Services(root, policy=policy, admission=OPEN))
        report(f"services at {services.server_address}, over TLS")
        connection = stack.enter_context(connect(services.server_address, state=root))
        handle = connection.submit(task)
        kept = root / _SCENARIO_FILE
        write_atomically(kept, scenario_file.read_bytes())
        workers = _start(
            services, kept, devices=devices, seed=seed, rounds=rounds, timeout=timeout,
            processes=min(processes if processes is not None else os.cpu_count() or 1, 8, max(devices // 50, 1)),
        )  # fmt: skip
        for worker in workers:
            stack.callback(worker.stop)
        report(f"{devices:,} devices in {len(workers)} processes; {plan.goal:,} contributions close a round")
        status = _watch(handle, services, workers, rounds, devices, progress, timeout=timeout)
        for worker in workers:
            worker.process.wait(60)
        model = handle.model()
        return FleetRun(
            devices=devices,
            goal=plan.goal,
            malicious=len(plan.malicious),
            rounds=_summed([_progress(worker) for worker in workers], status),
            epsilon=status.epsilon_spent,
            model_sha256=model_digest(model),
            model=model,
            noise=f"TEST NOISE of seed {seed}, protects nobody" if test_noise else "exact",
            seconds=time.monotonic() - started,
            processes=len(workers),
        )


def model_digest(model: ModelVersion) -> str:
    """SHA-256 of all tables of a model, in hex."""
    digest = hashlib.sha256(str(model.version).encode())
    for table in model.tables:
        digest.update(f"{table.name} {table.rows.shape}".encode() + table_bytes(table))
    return digest.hexdigest()


def _task(scenario: Scenario, ratings: Ratings, *, goal: int) -> Task:
    from odp.algorithms.dpam.config import DPAM

    wanted = scenario.task
    task = Task(
        name=_POPULATION,
        population=_POPULATION,
        model=MatrixFactorization(items=ratings.n_items, rank=wanted.rank if wanted.steps else 0),
        data=RatingsData(low=ratings.low, high=ratings.high),
        privacy=UserLevelDP(
            epsilon=wanted.epsilon, delta=wanted.delta,
            max_items_per_user=min(wanted.max_items_per_user, ratings.n_items),
        ),
        training=DPAM(steps=wanted.steps) if wanted.steps else DPAM(),
        cohort=Cohort(minimum=goal, goal=goal, round_seconds=_ROUND_SECONDS),
    )  # fmt: skip
    algorithm = algorithm_for(task.definition())
    if any(is_large(algorithm.query(number).payload_bytes) for number in range(2 + wanted.steps)):
        raise ConfigurationError("Expected contributions that travel whole; take a smaller max_items_per_user")
    return task


def _start(
    services: Services, scenario: Path, *, devices: int, seed: int, rounds: int, timeout: float, processes: int
) -> list[Child]:
    """One process per part of the devices."""
    workers = []
    for number in range(processes):
        first, after = (devices * place // processes for place in (number, number + 1))
        folder = services.root / "devices" / f"process-{number}"
        make_folders(folder)
        shard = Shard(
            scenario=str(scenario),
            seed=seed,
            devices=devices,
            first=first,
            count=after - first,
            rounds=rounds,
            population=_POPULATION,
            server=services.server_address,
            ca=str(services.ca),
            reference_values=str(services.reference_values),
            stores=str(services.root),
            wait_seconds=timeout,
        )
        write_atomically(folder / TASK_FILE, json.dumps(dataclasses.asdict(shard)).encode())
        log = services.root / "logs" / f"devices-{number}.log"
        workers.append(Child(f"devices-{number}", [], state=folder, log=log, command=WORKER))
    return workers


def _watch(
    handle: TaskHandle,
    services: Services,
    workers: list[Child],
    rounds: int,
    devices: int,
    progress: Callable[[int, int, int], None],
    *,
    timeout: float,
) -> server_pb2.TaskStatus:
    """The status of the finished task."""
    pause = threading.Event()
    until = time.monotonic() + timeout
    while True:
        status = handle.status()
        if status.state == server_pb2.TaskStatus.STATE_FINISHED:
            progress(rounds - 1, devices, devices)
            return status
        if status.state != server_pb2.TaskStatus.STATE_ACTIVE:
            raise ServiceError(f"the task ended early: {status.failure or 'cancelled'}")
        dead = services.dead()
        failed = [worker for worker in workers if worker.process.poll() not in (None, 0)]
        if dead is not None or failed:
            ended = dead if dead is not None else failed[0]
            raise ServiceError(f"{ended.name} ended by itself: {ended.last_line()}; see {ended.log}")
        if time.monotonic() > until:
            raise ServiceError(f"not finished after {timeout:.0f} s; raise --timeout")
        number = max(len(status.rounds) - 1, 0)
        through = sum(_through(_progress(worker), number) for worker in workers)
        progress(number, min(through, devices), devices)
        pause.wait(_POLL_SECONDS)


def _progress(worker: Child) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((worker.state / PROGRESS_FILE).read_bytes())
    except (OSError, ValueError):
        return {"filled": False, "rounds": []}
    return found


def _through(found: dict[str, Any], number: int) -> int:
    """Devices of a process that are through with a round."""
    if len(found["rounds"]) <= number:
        return 0
    counts = found["rounds"][number]
    refused = sum(count for name, count in counts["refused"].items() if ":" not in name)
    return int(counts["devices_in"] + refused + counts["injected"].get("drop_out", 0))


def _summed(found: list[dict[str, Any]], status: server_pb2.TaskStatus) -> list[dict[str, Any]]:
    summed = []
    for entry in status.rounds:
        parts = [one["rounds"][entry.round] for one in found]
        total: dict[str, Any] = {"round": entry.round, "counted": entry.contributions}
        for name in ("devices_in", "rests", "retries", "bytes_up", "bytes_down", "processor_seconds"):
            total[name] = sum(part[name] for part in parts)
        for name in ("refused", "injected"):
            total[name] = dict(sorted(sum((Counter(part[name]) for part in parts), Counter()).items()))
        for name in ("seconds", "simulated_hours"):
            total[name] = max(part[name] for part in parts)
        summed.append(total)
    return summed
