"""Rounds of MovieLens-1M shape over TLS: one device host with 6,040 real devices, and the three services.

Every device has its own store, secret and key, and goes through all of it: check-in, evidence, encrypted selection,
training, sealing, submission. Time runs from the moment when the host has its devices until the task is finished.

Data are MovieLens-1M where the folder ``ml-1m`` lies in the folder that the variable ODP_SHARED_DATA names, or in
``shared/data`` beside the repository; else invented ratings of the same shape. Speed does not depend on their values.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Figure, Limit, progress
from benchmarks.processes import Usage, with_enclaves
from odp.cli.device import take_users
from odp.datasets import load
from odp.errors import ServiceError
from odp.operations.local.processes import Child, Services
from odp.services.connection import TaskHandle, connect
from odp.transport.sweeping import stop_event
from odp.trust.enclave.policy import EnclavePolicy
from odp.v1 import server_pb2

if TYPE_CHECKING:
    from odp.tasks.task import Task

_POPULATION = "benchmark"
_MINIMUM_COHORT = 100
_EPSILON, _DELTA = 8.0, 1e-6
_POLL_SECONDS = 0.25
_START_SECONDS, _FINISH_SECONDS = 600.0, 1800.0
_MIB = 2.0**20

Rounds = list[dict[str, Any]]


@dataclass(frozen=True)
class Plan:
    """The size of a run; ``steps`` of 0 leaves the rounds of counts and of biases."""

    devices: int
    source: str
    rank: int
    steps: int
    full: bool

    @property
    def rounds(self) -> int:
        """Rounds until the task is finished."""
        return 2 + self.steps


def plan(quick: bool) -> Plan:
    """6,040 devices and 3 rounds, or 300 devices and 2."""
    if quick:
        return Plan(300, "synthetic:n_users=300,n_items=600,ratings_per_user=60", rank=0, steps=0, full=False)
    folder = real_data()
    source = "synthetic:n_users=6040,n_items=3706,ratings_per_user=165" if folder is None else str(folder)
    return Plan(6040, source, rank=8, steps=1, full=True)


def real_data() -> Path | None:
    """The folder of MovieLens-1M, where there is one."""
    given = os.environ.get("ODP_SHARED_DATA")
    shared = Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data"
    return shared / "ml-1m" if (shared / "ml-1m").is_dir() else None


def run(quick: bool) -> list[Figure]:
    """Runs the task and stops every program, whatever happens."""
    chosen = plan(quick)
    ratings = take_users(load(chosen.source), chosen.devices)
    task = _task(chosen, items=ratings.n_items, low=ratings.low, high=ratings.high)
    progress(f"{ratings.name}: {chosen.devices:,} devices, {ratings.n_items:,} items, {chosen.rounds} rounds")
    del ratings
    policy = EnclavePolicy(role="aggregator", minimum_cohort=_MINIMUM_COHORT)
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(signals())
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="odp-benchmark-")))
        services = stack.enter_context(Services(root, policy=policy))
        connection = stack.enter_context(connect(services.server_address, state=root))
        # Before the devices: a population without a task is told to come back much later.
        handle = connection.submit(task)
        began = time.monotonic()
        host = _host(chosen, root, services.server_address)
        stack.callback(host.stop)
        pids = {name: child.process.pid for name, child in [*services.children.items(), (host.name, host)]}
        usage = stack.enter_context(Usage(with_enclaves(pids)))
        wait_for_devices(services, host, stop)
        started = time.monotonic()
        before = usage.processor_seconds()
        progress(f"  devices have their data after {started - began:.1f} s")
        status = wait_for_end(handle, services, host, stop)
        seconds = time.monotonic() - started
        after, peak = usage.processor_seconds(), usage.peak_bytes()
        host.stop()  # it writes its last statistics
        rounds: Rounds = json.loads((host.state / "stats.json").read_text())["rounds"]
    rounds.sort(key=lambda entry: int(entry["round"]))
    contributions = sum(entry.contributions for entry in status.rounds)
    return [
        *_times(chosen, rounds, seconds=seconds, filling=started - began, contributions=contributions),
        *_memory(chosen, peak),
        *_bytes(rounds, whole=float(task.factorization.items * (3 + task.factorization.rank) * 4)),
        *_processor(chosen, {name: after[name] - before[name] for name in after}),
    ]


@contextlib.contextmanager
def signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set, so that both stop the programs; the handlers are put back at the end."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop_event()
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _task(chosen: Plan, *, items: int, low: float, high: float) -> Task:
    from odp.algorithms.dpam.config import DPAM, RatingsData
    from odp.models.matrix_factorization import MatrixFactorization
    from odp.protocol.terms import Cohort, UserLevelDP
    from odp.tasks.task import Task

    return Task(
        name=_POPULATION,
        model=MatrixFactorization(items=items, rank=chosen.rank),
        data=RatingsData(low=low, high=high),
        privacy=UserLevelDP(epsilon=_EPSILON, delta=_DELTA, max_items_per_user=50),
        training=DPAM(steps=chosen.steps),
        cohort=Cohort(minimum=_MINIMUM_COHORT, goal=chosen.devices, round_seconds=3600),
    )


def _host(chosen: Plan, root: Path, server: str) -> Child:
    return Child(
        "device host",
        [
            "device", "run", "--population", _POPULATION, "--server", server, "--services", str(root),
            "--data", chosen.source, "--devices", str(chosen.devices), "--max-epsilon", repr(_EPSILON),
            "--max-total-epsilon", repr(_EPSILON), "--min-cohort", str(_MINIMUM_COHORT),
        ],
        state=root / "devices",
        log=root / "logs" / "devices.log",
    )  # fmt: skip


def _check(services: Services, host: Child, stop: threading.Event) -> None:
    dead = services.dead() or (host if host.process.poll() is not None else None)
    if dead is not None:
        raise ServiceError(f"{dead.name} ended by itself: {dead.last_line()}")
    if stop.wait(_POLL_SECONDS):
        raise KeyboardInterrupt


def wait_for_devices(services: Services, host: Child, stop: threading.Event) -> None:
    until = time.monotonic() + _START_SECONDS
    while b"devices_started" not in host.log.read_bytes():
        _check(services, host, stop)
        if time.monotonic() > until:
            raise ServiceError(f"the devices had no data after {_START_SECONDS:.0f} s")


def wait_for_end(handle: TaskHandle, services: Services, host: Child, stop: threading.Event) -> server_pb2.TaskStatus:
    started = time.monotonic()
    applied = 0
    while True:
        status = handle.status()
        done = sum(entry.state == server_pb2.RoundStatus.STATE_APPLIED for entry in status.rounds)
        if done > applied:
            applied = done
            progress(f"  round {applied}/{status.planned_rounds} applied after {time.monotonic() - started:.1f} s")
        if status.state == server_pb2.TaskStatus.STATE_FINISHED:
            return status
        if status.state in (server_pb2.TaskStatus.STATE_FAILED, server_pb2.TaskStatus.STATE_CANCELLED):
            raise ServiceError(f"the task ended early: {status.failure or 'cancelled'}")
        if time.monotonic() - started > _FINISH_SECONDS:
            raise ServiceError(f"round {applied + 1} was not finished after {_FINISH_SECONDS:.0f} s")
        _check(services, host, stop)


def _times(chosen: Plan, rounds: Rounds, *, seconds: float, filling: float, contributions: int) -> list[Figure]:
    goal = "<= 300" if chosen.full else None
    working = sum(float(entry["seconds"]) for entry in rounds)
    figures = [
        Figure(f"{chosen.rounds} rounds", seconds, "s", goal, Limit("devices at work", working)),
        # A run that leaves devices out would look fast.
        Figure("contributions", contributions, "contributions", f"== {chosen.devices * chosen.rounds}"),
        Figure("devices get their stores and data", filling, "s"),
    ]
    for entry in rounds:
        rate = entry["devices_in"] / max(float(entry["seconds"]), 1e-3)
        figures.append(Figure(f"round {entry['round'] + 1}: devices per second", rate, "devices/s"))
    return figures


def _memory(chosen: Plan, peak: dict[str, int]) -> list[Figure]:
    figures = []
    for name, found in peak.items():
        goal = "<= 1536" if name == "device host" else "<= 500"
        figures.append(Figure(f"{name}: peak resident memory", found / _MIB, "MiB", goal if chosen.full else None))
    return figures


def _bytes(rounds: Rounds, *, whole: float) -> list[Figure]:
    model = Limit("whole model", whole)
    figures = []
    for entry in rounds:
        devices = max(int(entry["devices_in"]), 1)
        for what, key in (("down", "bytes_down"), ("up", "bytes_up")):
            figures.append(
                Figure(f"round {entry['round'] + 1}: {what} per device", entry[key] / devices, "B", None, model)
            )
    return figures


def _processor(chosen: Plan, used: dict[str, float]) -> list[Figure]:
    participations = chosen.devices * chosen.rounds
    total = Limit("all programs", 1000 * sum(used.values()) / participations)
    return [
        Figure(f"{name}: processor time per device and round", 1000 * seconds / participations, "ms", None, total)
        for name, seconds in used.items()
    ]
