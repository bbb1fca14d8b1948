"""One process of a simulated fleet: some of its devices, one after another in simulated time, against real services.

``python -m odp.simulation.fleet.worker --state FOLDER`` reads ``task.json`` of the folder and writes ``progress.json``
there. Devices wait on a simulated clock: a day of a fleet takes as long as its computations, and no longer. What a
device did in a round is decided by the plan alone; the clocks decide when.

The last contribution of a round comes from a device that nothing happens to, after all others of this process are
through: with any number of processes, the round closes only after every device had its turn.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from device_runtime import Gate, Limits, PinnedAddresses, Store, charter_memory, log_guard, store_path
from device_runtime.host.scheduler import Job, Scheduler
from device_runtime.network.enclaves import Enclaves
from device_runtime.network.services import Traffic
from device_runtime.round.participation import Outcome, Participant
from device_runtime.round.verification import FOLDER, Records
from device_runtime.tasks.assignment import AssignmentReader, Work
from odp.datasets import load
from odp.enclave.reference_values import ReferenceValues
from odp.errors import NotNow, OdpError, PrivacyError, ServiceError, ServiceUnavailable
from odp.simulation.fleet.faults import Died, SimulatedServices, Turn, Vanished, work_of
from odp.simulation.fleet.plan import DAY, Plan
from odp.simulation.fleet.scenario import load_scenario
from odp.transport.logs import Log
from odp.transport.state_folder import write_atomically

TASK_FILE, PROGRESS_FILE = "task.json", "progress.json"
#: When the first simulated day begins: midnight, 1 January 2027, UTC.
EPOCH = 1_798_761_600.0
_REST_SECONDS = 1800.0
_COME_BACK_SECONDS = 300.0
_MOST_ATTEMPTS = 200
_POLL_SECONDS = 0.1
_WRITE_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Shard:
    """What one process needs to know; ``first`` .. ``first + count - 1`` are its devices of ``devices``."""

    scenario: str
    seed: int
    devices: int
    first: int
    count: int
    rounds: int
    population: str
    server: str
    ca: str
    reference_values: str
    stores: str
    wait_seconds: float


@dataclass
class Counts:
    """One round of one process. The numbers follow from the seed, but for the seconds."""

    devices_in: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)
    rests: int = 0
    retries: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    processor_seconds: float = 0.0
    seconds: float = 0.0
    simulated_hours: float = 0.0


class Worker:
    """Runs a shard.

    Raises:
      OdpError: the services cannot be used, or a device does what the plan does not foresee.
    """

    def __init__(self, shard: Shard, folder: Path, *, log: Callable[[Callable[[], float]], Log], stop: threading.Event):
        self._shard, self._folder, self._stop = shard, folder, stop
        scenario = load_scenario(Path(shard.scenario))
        self._plan = Plan(scenario, devices=shard.devices, rounds=shard.rounds, seed=shard.seed)
        self._now = EPOCH
        self._jump = dict.fromkeys(range(shard.first, shard.first + shard.count), 0.0)
        self._log = log(lambda: self._now)
        values = ReferenceValues.load(Path(shard.reference_values))
        self._services = SimulatedServices(shard.server, Path(shard.ca), pinned=PinnedAddresses.of(values))
        self._participant = Participant(
            services=self._services,
            enclaves=Enclaves(self._services, values),
            gate=Gate(
                limits=Limits(max_epsilon=1e3, max_total_epsilon=1e3, max_total_epsilon_30_days=1e3,
                              max_developer_epsilon=1e3, max_developer_epsilon_30_days=1e3, min_cohort=1),
                conditions=scenario.conditions,
                sensors=lambda path: self._plan.sensors(int(path.stem), self._now),
                clock=self._device_clock,
            ),
            records=Records(folder / FOLDER, values),
            log=log_guard(self._services, values, folder),
            charters=charter_memory(values, folder),
            clock=self._device_clock,
        )  # fmt: skip
        self._reader = AssignmentReader(shard.population)
        self._rounds: list[Counts] = []
        self._past: dict[tuple[int, int], set[str]] = {}
        self._turn: Turn | None = None
        self._draws = 0
        self._filled = False
        self._written = 0.0

    def run(self) -> None:
        """Gives the devices their data, and works through all rounds."""
        self._fill()
        for number in range(self._shard.rounds):
            work = self._open_round(number)
            if work is None:
                return
            self._round(work)
            self._write(force=True)
        self._log.event("devices_finished", devices=self._shard.count)

    def close(self) -> None:
        """Ends all connections."""
        self._services.close()

    def _fill(self) -> None:
        ratings = load(self._plan.scenario.data.source)
        for device in self._jump:
            items, values = ratings.user(device)
            path = store_path(Path(self._shard.stores), device)
            source = self._plan.random_bytes(device)
            with Store.open_or_create(path, durable=False, random_bytes=source) as store:
                store.fill(items, values, filled_from=str(self._shard.seed).encode())
        self._filled = True
        self._write(force=True)

    def _open_round(self, number: int) -> Work | None:
        """Waits until the server offers the round; None after a stop."""
        until = time.monotonic() + self._shard.wait_seconds
        while not self._stop.wait(_POLL_SECONDS):
            answer = self._services.check_in(self._shard.population, Traffic())
            if answer.WhichOneof("answer") == "assignment":
                work = self._reader.open(answer.assignment)
                if work.round >= number:
                    return work
            if time.monotonic() > until:
                raise ServiceError(f"round {number} did not open within {self._shard.wait_seconds:.0f} s")
        return None

    def _round(self, work: Work) -> None:
        number = work.round
        counts = Counts()
        self._rounds.append(counts)
        began, processor = time.monotonic(), time.process_time()
        self._now = start = EPOCH + DAY * number
        last = self._last(number)
        with Scheduler(None, clock=lambda: self._now, monotonic=lambda: self._now, uniform=self._uniform) as jobs:
            for device in self._jump:
                act = self._plan.act(device, number)
                if act.clock_jump:
                    self._jump[device] += act.clock_jump
                    counts.injected["clock_jump"] += 1
                    self._log.event(
                        "injected_fault", injected="true", device=device, round=number, kind="clock_jump",
                        seconds=round(act.clock_jump),
                    )  # fmt: skip
                if device != last:
                    jobs.add(Job(name=str(device), due=start + act.arrives, retry=(1.0, 60.0)))
            while (job := jobs.next()) is not None and not self._stop.is_set():
                self._now = max(self._now, job.due)
                self._one(jobs, job, work, counts)
                self._timing(counts, began, processor, start)
            if not self._stop.is_set():
                jobs.add(Job(name=str(last), due=self._now + 1.0))
                while (job := jobs.next()) is not None and not self._stop.is_set():
                    self._now = max(self._now, job.due)
                    self._one(jobs, job, work, counts)
        self._timing(counts, began, processor, start)

    def _one(self, jobs: Scheduler, job: Job, work: Work, counts: Counts) -> None:
        """One attempt of one device."""
        device = int(job.name)
        if job.failures >= _MOST_ATTEMPTS:
            raise ServiceError(
                f"device {device} did not get through round {work.round} in {job.failures} attempts; do the conditions "
                "of the scenario ever hold?"
            )
        turn = Turn(
            device=device,
            round=work.round,
            act=self._plan.act(device, work.round),
            character=self._plan.character(device),
            log=self._log,
            injected=counts.injected,
            refused=counts.refused,
            past=self._past.setdefault((device, work.round), set()),
        )
        traffic = Traffic()
        self._draws = 0
        self._turn = self._services.turn = turn
        try:
            self._take_part(turn, work, counts, traffic)
            jobs.succeeded(job.name)
        except Vanished:
            jobs.succeeded(job.name)
        except Died:
            jobs.failed(job.name, retry=_after(turn, _COME_BACK_SECONDS))
        except NotNow as error:
            if not counts.rests:
                self._log.event("device_rests", device=device, reason=str(error))
            counts.rests += 1
            jobs.failed(job.name, retry=_after(turn, _REST_SECONDS))
        except ServiceUnavailable as error:
            if not turn.act.lost_answer:
                raise
            self._log.warning("device_failed", device=device, round=work.round, reason=str(error), injected="true")
            counts.retries += 1
            jobs.failed(job.name, retry=_after(turn, _COME_BACK_SECONDS))
        finally:
            self._turn = self._services.turn = None
            counts.bytes_up += traffic.up
            counts.bytes_down += traffic.down

    def _take_part(self, turn: Turn, work: Work, counts: Counts, traffic: Traffic) -> None:
        """As a device host lets a device take part."""
        with Store.open(store_path(Path(self._shard.stores), turn.device), durable=False) as store:
            self._participant.gate.check_in(store, self._shard.population)
            answer = self._services.check_in(self._shard.population, traffic)
            if answer.WhichOneof("answer") != "assignment":
                raise ServiceError(f"round {work.round} closed before device {turn.device} had its turn")
            given = self._reader.open(answer.assignment)
            if given.key != work.key:
                raise ServiceError(f"round {given.round} opened before device {turn.device} took part in {work.round}")
            try:
                outcome = self._participant.take_part(store, work_of(turn, given), traffic)
            except PrivacyError as error:
                raise ServiceError(f"device {turn.device} declined the task: {error}") from error
            if outcome is Outcome.REFUSED:
                self._refused(turn, store, given, counts)
            elif outcome is Outcome.SENT:
                counts.devices_in += 1
            if (outcome is Outcome.SENT) != turn.act.counted:
                raise ServiceError(
                    f"device {turn.device} in round {work.round}: {outcome.value}, though the plan says "
                    f"{'counted' if turn.act.counted else turn.act.behaviour}"
                )

    def _refused(self, turn: Turn, store: Store, work: Work, counts: Counts) -> None:
        line = store.participation(*work.key)
        reason = "unknown" if line is None or line.refusal is None else line.refusal.name.lower()
        counts.refused[reason] += 1
        self._log.event(
            "contribution_refused", device=turn.device, round=turn.round, reason=reason,
            injected="true" if turn.act.behaviour is not None else "false",
        )  # fmt: skip

    def _device_clock(self) -> float:
        """Of the device whose turn it is: wrong by its skew and by its jumps, later by its network."""
        turn = self._turn
        if turn is None:
            return self._now
        return self._now + turn.elapsed + turn.character.skew + self._jump[turn.device]

    def _uniform(self, low: float, high: float) -> float:
        """Between two bounds; a function of the seed, the device, the round and how far the device got."""
        turn = self._turn
        if turn is None:
            return low
        self._draws += 1
        draw = self._plan.generator("retry", turn.device, turn.round, int(self._now), self._draws)
        return float(draw.uniform(low, high))

    def _last(self, number: int) -> int:
        """The last device of this process to which nothing happens in a round."""
        for device in reversed(self._jump):
            act = self._plan.act(device, number)
            if not (act.drop_out or act.crash or act.behaviour or act.lost_answer):
                return device
        raise ServiceError(f"every device of a process has a fault in round {number}; take more --devices")

    def _timing(self, counts: Counts, began: float, processor: float, start: float) -> None:
        counts.seconds = time.monotonic() - began
        counts.processor_seconds = time.process_time() - processor
        counts.simulated_hours = (self._now - start) / 3600.0
        self._write()

    def _write(self, *, force: bool = False) -> None:
        """Writes the progress so far."""
        now = time.monotonic()
        if not force and now - self._written < _WRITE_SECONDS:
            return
        self._written = now
        content = {"filled": self._filled, "rounds": [vars(one) for one in self._rounds]}
        write_atomically(self._folder / PROGRESS_FILE, json.dumps(content, sort_keys=True).encode())


def _after(turn: Turn, seconds: float) -> tuple[float, float]:
    """A retry window that begins when the attempt ended, by the device's clock."""
    return turn.elapsed + seconds, turn.elapsed + 2 * seconds


def main() -> None:
    """Runs the shard of a folder until it is done, or its parent is gone."""
    from odp.local.foreground import parent_watch
    from odp.transport.stopping import stop_event

    parser = argparse.ArgumentParser()
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--with-parent", action="store_true")
    given = parser.parse_args()
    stop = stop_event()
    if given.with_parent:
        parent_watch(stop)
    values: dict[str, Any] = json.loads((given.state / TASK_FILE).read_bytes())
    try:
        worker = Worker(Shard(**values), given.state, log=lambda clock: Log("fleet", clock=clock), stop=stop)
        try:
            worker.run()
        finally:
            worker.close()
    except OdpError as error:
        raise SystemExit(f"odp: {error}") from None


if __name__ == "__main__":
    main()
