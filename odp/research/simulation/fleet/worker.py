"""One host of a simulated fleet: some of its devices, one after another in simulated time, against real services.

``python -m odp.research.simulation.fleet.worker --state FOLDER`` reads ``task.json`` of the folder and writes
``journal.jsonl`` and ``progress.json`` there; a host that was killed goes on by its journal. Devices wait on a
simulated clock: a day of a fleet takes as long as its computations, and no longer. What a device did in a round is
decided by the plan alone; the clocks decide when.

The last contribution of a round comes from a device that nothing happens to, after all others of this process are
through: with any number of hosts, the round closes only after every device had its turn.
"""

from __future__ import annotations

import argparse
import heapq
import json
import resource
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from device_runtime import (
    Gate,
    Limits,
    PinnedAddresses,
    Store,
    catalogue_memory,
    charter_memory,
    log_guard,
    store_path,
)
from device_runtime.network.enclaves import Enclaves
from device_runtime.network.services import Traffic
from device_runtime.person.conditions import Standing, readings, require as require_met
from device_runtime.round.fixed_times import FixedTimes
from device_runtime.round.local_reports import LocalReporting
from device_runtime.round.participation import Outcome, Participant
from device_runtime.round.verification import FOLDER, Records
from device_runtime.store.schema import State
from device_runtime.tasks.answers import AnswerReader
from device_runtime.tasks.assignment import Work
from device_runtime.tasks.local_assignment import LocalWork
from odp._system.files.state_folder import write_atomically
from odp.errors import NotNow, OdpError, PrivacyError, ServiceError, ServiceUnavailable
from odp.research.simulation.fleet.device_data import load_data
from odp.research.simulation.fleet.faults import (
    AnswerLost,
    Died,
    Outage,
    SimulatedServices,
    Turn,
    Vanished,
    local_work_of,
    work_of,
)
from odp.research.simulation.fleet.journal import Journal
from odp.research.simulation.fleet.plan import DAY, PROGRESS_FILE, TASK_FILE, Plan, Shard, earlier
from odp.research.simulation.fleet.scenario import load_scenario
from odp.transport.logs import Log
from odp.trust.enclave.reference_values import ReferenceValues

#: When the first simulated day begins: midnight, 1 January 2027, UTC.
EPOCH = 1_798_761_600.0
_REST_SECONDS = 1800.0
_COME_BACK_SECONDS = 300.0
_MOST_ATTEMPTS = 200
_POLL_SECONDS = 0.1
_WRITE_SECONDS = 0.5


class Worker:
    """Runs a shard.

    Raises:
      OdpError: the services cannot be used, or a device does what the plan does not foresee.
    """

    def __init__(self, shard: Shard, folder: Path, *, log: Callable[[Callable[[], float]], Log], stop: threading.Event):
        self._shard, self._folder, self._stop = shard, folder, stop
        scenario = load_scenario(Path(shard.scenario))
        self._plan = Plan(
            scenario, devices=shard.devices, rounds=shard.rounds, seed=shard.seed, behaviours=shard.behaviours
        )
        self._now = EPOCH
        self._jump = dict.fromkeys(range(shard.first, shard.first + shard.count), 0.0)
        self._log = log(lambda: self._now)
        values = ReferenceValues.load(Path(shard.reference_values))
        self._services = SimulatedServices(shard.server, Path(shard.ca), pinned=PinnedAddresses.of(values))
        self._participant = Participant(
            services=self._services,
            enclaves=Enclaves(self._services, lambda: values),
            gate=Gate(
                limits=Limits(max_epsilon=1e3, max_total_epsilon=1e3, max_total_epsilon_30_days=1e3,
                              max_developer_epsilon=1e3, max_developer_epsilon_30_days=1e3, max_local_epsilon=1e3,
                              min_cohort=1),
                conditions=scenario.conditions,
                sensors=lambda path: self._plan.sensors(int(path.stem), self._now),
                clock=self._device_clock,
            ),
            records=Records(folder / FOLDER, lambda: values),
            log=log_guard(self._services, values, folder),
            charters=charter_memory(values, folder),
            catalogues=catalogue_memory(self._services, folder),
            clock=self._device_clock,
            fixed_times=FixedTimes(wait=_until_computed),
        )  # fmt: skip
        self._reporting = LocalReporting.of(self._participant)
        self._reader = AnswerReader(shard.population)
        self._journal = Journal(folder, rounds=shard.rounds)
        self._spent = earlier(folder, shard.rounds)
        for counts, spent in zip(self._journal.counts, self._spent, strict=True):
            vars(counts).update(spent)
        self._turn: Turn | None = None
        self._rested = False
        #: Of devices that are not through with the round, and not in the journal yet.
        self._rests: dict[int, int] = {}
        self._draws = 0
        self._written = 0.0

    def run(self) -> None:
        """Gives the devices their data, and works through all rounds."""
        self._fill()
        for number in range(self._shard.rounds):
            self._now = self._start(number)
            self._jumps(number)
            left = [device for device in self._jump if device not in self._journal.through[number]]
            if not left:
                continue
            if number < self._shard.closed:
                self._settle(number, left)
                continue
            if (work := self._open_round(number)) is None:
                return
            if isinstance(work, Work) and work.round > number:
                self._settle(number, left)
                continue
            self._round(number, work, left)
            if self._stop.is_set():
                return
            self._write(force=True)
        self._write(force=True)
        self._log.event("devices_finished", devices=self._shard.count)

    def close(self) -> None:
        """Ends all connections."""
        self._services.close()
        self._journal.close()

    def _fill(self) -> None:
        if not self._journal.is_filled:
            data = load_data(self._plan.scenario, folder=Path(self._shard.folder))
            for device in self._jump:
                if self._stop.is_set():
                    return
                path = store_path(Path(self._shard.stores), device)
                source = self._plan.random_bytes(device)
                with Store.open_or_create(path, durable=False, random_bytes=source) as store:
                    data.fill(store, device, seed=self._shard.seed, time=EPOCH - DAY)
            self._journal.filled()
        self._write(force=True)

    def _jumps(self, number: int) -> None:
        """Lets the clocks jump that jump before a round."""
        for device in self._jump:
            act = self._plan.act(device, number)
            if act.clock_jump:
                self._jump[device] += act.clock_jump
                if device in self._journal.through[number]:
                    continue
                if self._journal.fault(device, number, "clock_jump"):
                    self._log.event(
                        "injected_fault", injected="true", device=device, round=number, kind="clock_jump",
                        seconds=round(act.clock_jump),
                    )  # fmt: skip

    def _settle(self, number: int, left: list[int]) -> None:
        """Ends the parts of devices in a round that closed while the last run died: their stores say how they ended.

        A round closes with the last contribution of the plan, so all of them were counted that were to be.
        """
        for device in left:
            with Store.open(store_path(Path(self._shard.stores), device), durable=False) as store:
                line = store.participation(bytes.fromhex(self._shard.task), number)
            if line is None or not self._plan.act(device, number).counted:
                raise ServiceError(f"round {number} closed without device {device}, which had to be in it")
            self._journal.done(device, number, sent=True)
        self._log.event("devices_settled", devices=len(left), round=number)

    def _open_round(self, number: int) -> Work | LocalWork | None:
        """Waits until the server offers the round; None after a stop."""
        until, outage = (
            time.monotonic() + self._shard.wait_seconds,
            Outage(self._log, self._stop, most_seconds=self._shard.wait_seconds),
        )
        while not self._stop.wait(_POLL_SECONDS):
            try:
                work = self._reader.open(self._services.check_in(self._shard.population, Traffic()))
                outage.over()
                if isinstance(work, LocalWork) or (work is not None and work.round >= number):
                    return work
            except ServiceUnavailable as error:
                outage.wait(error)
            if time.monotonic() > until:
                raise ServiceError(f"round {number} did not open within {self._shard.wait_seconds:.0f} s")
        return None

    def _round(self, number: int, work: Work | LocalWork, left: list[int]) -> None:
        began, processor = time.monotonic(), time.process_time()
        self._now = start = self._start(number)
        last, outage = self._last(number), Outage(self._log, self._stop, most_seconds=self._shard.wait_seconds)
        attempts: dict[int, int] = {}
        due = [(start + self._plan.act(device, number).arrives, device) for device in left if device != last]
        heapq.heapify(due)
        held_back = [last] if last in left else []
        while (due or held_back) and not self._stop.is_set():
            if not due:
                due.append((self._now + 1.0, held_back.pop()))
            at, device = heapq.heappop(due)
            self._now = max(self._now, at)
            if rest := self._rest(device, number):
                heapq.heappush(due, (self._now + rest, device))
                continue
            if attempts.get(device, 0) >= _MOST_ATTEMPTS:
                raise ServiceError(
                    f"device {device} did not get through round {number} in {_MOST_ATTEMPTS} attempts; do the "
                    "conditions of the scenario ever hold?"
                )
            try:
                again = self._visit(device, number, work)
                attempts[device] = attempts.get(device, 0) + 1
                outage.over()
            except ServiceUnavailable as error:
                outage.wait(error)
                again = 0.0
            if again is not None:
                heapq.heappush(due, (self._now + again, device))
            self._timing(number, began, processor, start)
        self._timing(number, began, processor, start)

    def _start(self, number: int) -> float:
        """When a round's simulated day begins."""
        return EPOCH + max(DAY, self._shard.day) * number

    def _rest(self, device: int, number: int) -> float:
        """Seconds that a device rests from now on, whose conditions do not hold; 0 where they do.

        The conditions alone decide about it, so its store stays closed: a device looks dozens of times a day.
        """
        rested, at, counted = 0.0, self._now, 0
        conditions = self._plan.scenario.conditions
        while True:
            measured = readings(conditions, self._plan.sensors(device, at), Standing(last=None), now=at)
            if all(reading.met for reading in measured):
                break
            if not self._rested:
                self._rested = True
                try:
                    require_met(measured)
                except NotNow as error:
                    self._log.event("device_rests", device=device, reason=str(error))
            counted += 1
            if counted > _MOST_ATTEMPTS:
                raise ServiceError(
                    f"device {device} did not get through round {number} in {_MOST_ATTEMPTS} attempts; do the "
                    "conditions of the scenario ever hold?"
                )
            # Half an hour to an hour, as its own character has it.
            rested += _REST_SECONDS * (1.0 + (device * 0.618033988749895 + counted * 0.7548776662466927) % 1.0)
            at = self._now + rested
        self._rests[device] = self._rests.get(device, 0) + counted
        return rested

    def _visit(self, device: int, number: int, work: Work | LocalWork) -> float | None:
        """One attempt of one device; seconds until the next one, None after the last.

        Raises ServiceUnavailable where nobody injected that.
        """
        turn = Turn(
            device=device,
            round=number,
            act=self._plan.act(device, number),
            character=self._plan.character(device),
            log=self._log,
            journal=self._journal,
            bad_byte=self._shard.bad_byte,
        )
        traffic = Traffic()
        self._draws = 0
        self._turn = self._services.turn = turn
        numbers = {"rests": self._rests.pop(device, 0)}
        try:
            refused, again = self._take_part(turn, work, traffic)
            if again is None:
                self._journal.done(device, number, _with(numbers, traffic), refused=refused, sent=not refused)
                return None
        except Vanished:
            self._journal.done(device, number, _with(numbers, traffic))
            return None
        except Died:
            again = self._uniform(*_after(turn, _COME_BACK_SECONDS))
        except NotNow:
            numbers["rests"] += 1
            again = self._uniform(*_after(turn, _REST_SECONDS))
        except AnswerLost as error:
            self._log.warning("device_failed", device=device, round=number, reason=str(error), injected="true")
            numbers["retries"] = 1
            again = self._uniform(*_after(turn, _COME_BACK_SECONDS))
        finally:
            self._turn = self._services.turn = None
        self._journal.attempt(device, number, _with(numbers, traffic))
        return again

    def _take_part(self, turn: Turn, work: Work | LocalWork, traffic: Traffic) -> tuple[str, float | None]:
        """As a device host lets a device take part: (reason of a refusal or "", seconds to wait or None)."""
        with Store.open(store_path(Path(self._shard.stores), turn.device), durable=False) as store:
            self._participant.gate.check_in(store, self._shard.population)
            offered = self._reader.open(self._services.check_in(self._shard.population, traffic))
            try:
                if isinstance(work, LocalWork):
                    return self._report(turn, store, offered, traffic)
                if isinstance(offered, Work) and offered.key == work.key:
                    outcome = self._participant.take_part(store, work_of(turn, offered), traffic)
                elif store.participation(*work.key) is not None and turn.act.counted:
                    outcome = Outcome.SETTLED  # sent before this host was killed, and the round closed with it
                else:
                    raise ServiceError(f"round {work.round} closed before device {turn.device} had its turn")
            except PrivacyError as error:
                raise ServiceError(f"device {turn.device} declined the task: {error}") from error
            line = store.participation(*work.key)
            refusal = None if line is None else line.refusal
            if outcome is Outcome.REFUSED or (outcome is Outcome.SETTLED and refusal is not None):
                return self._refused(turn, "unknown" if refusal is None else refusal.name.lower(), expected=False), None
            return self._sent(turn, outcome), None

    def _report(
        self, turn: Turn, store: Store, offered: Work | LocalWork | None, traffic: Traffic
    ) -> tuple[str, float | None]:
        """A device's part in a task of local trust."""
        task = bytes.fromhex(self._shard.task)
        answered = [line for line in store.ledger() if line.task_sha256 == task and line.state is not State.PREPARED]
        before = sum(self._plan.act(turn.device, number).drop_out is None for number in range(turn.round))
        if len(answered) > before:  # before this host was killed
            if (refusal := answered[-1].refusal) is not None:
                return self._refused(turn, refusal.name.lower(), expected=turn.act.behaviour is None), None
            return self._sent(turn, Outcome.SETTLED), None
        if not isinstance(offered, LocalWork):
            raise ServiceError(f"the task was over before device {turn.device} had its turn")
        done = self._reporting.report(store, local_work_of(turn, offered), traffic)
        if done.outcome is Outcome.SETTLED:
            if not 0 < done.next_seconds < float("inf"):
                raise ServiceError(f"device {turn.device} made all of its reports before its report {turn.round}")
            return "", done.next_seconds
        if done.outcome is Outcome.REFUSED:
            line = max((line for line in store.ledger() if line.task_sha256 == task), key=lambda line: line.round)
            reason = "unknown" if line.refusal is None else line.refusal.name.lower()
            # A server's test for spam refuses an honest report now and then.
            return self._refused(turn, reason, expected=turn.act.behaviour is None), None
        return self._sent(turn, done.outcome), None

    def _sent(self, turn: Turn, outcome: Outcome) -> str:
        """Raises ServiceError where a service counted what the plan says it refuses."""
        if not turn.act.counted:
            raise ServiceError(
                f"device {turn.device} in round {turn.round}: {outcome.value}, though the plan says "
                f"{turn.act.behaviour}"
            )
        return ""

    def _refused(self, turn: Turn, reason: str, *, expected: bool) -> str:
        """Raises ServiceError where a service refused what the plan says it counts."""
        if turn.act.counted and not expected:
            raise ServiceError(
                f"device {turn.device} in round {turn.round}: refused ({reason}), though the plan says counted"
            )
        self._log.event(
            "contribution_refused", device=turn.device, round=turn.round, reason=reason,
            injected="true" if turn.act.behaviour is not None else "false",
        )  # fmt: skip
        return reason

    def _device_clock(self) -> float:
        """Of the device whose turn it is: wrong by its skew and by its jumps, later by its network."""
        if (turn := self._turn) is None:
            return self._now
        return self._now + turn.elapsed + turn.character.skew + self._jump[turn.device]

    def _uniform(self, low: float, high: float) -> float:
        """Between two bounds; a function of the seed, the device, the round and how far the device got."""
        if (turn := self._turn) is None:
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
        raise ServiceError(f"every device of a host has a fault in round {number}; take more --devices")

    def _timing(self, number: int, began: float, processor: float, start: float) -> None:
        counts, earlier = self._journal.counts[number], self._spent[number]
        counts.seconds = earlier["seconds"] + time.monotonic() - began
        counts.processor_seconds = earlier["processor_seconds"] + time.process_time() - processor
        counts.simulated_hours = max(earlier["simulated_hours"], (self._now - start) / 3600.0)
        self._write()

    def _write(self, *, force: bool = False) -> None:
        """Writes the progress so far."""
        now = time.monotonic()
        if not force and now - self._written < _WRITE_SECONDS:
            return
        self._written = now
        content = {
            "filled": self._journal.is_filled,
            "rounds": [vars(counts) for counts in self._journal.counts],
            "through": [len(devices) for devices in self._journal.through],
            "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        write_atomically(self._folder / PROGRESS_FILE, json.dumps(content, sort_keys=True).encode())


def _until_computed(seconds: float, finished: threading.Event) -> None:
    """Gives a computation ``seconds``, and goes on once it has finished.

    Devices of a fleet take part one after another, so that their fixed times would add up. Whoever could observe when
    they send holds all their data.
    """
    finished.wait(seconds)


def _with(numbers: Mapping[str, int], traffic: Traffic) -> dict[str, int]:
    return {**numbers, "bytes_up": traffic.up, "bytes_down": traffic.down}


def _after(turn: Turn, seconds: float) -> tuple[float, float]:
    """A retry window that begins when the attempt ended, by the device's clock."""
    return turn.elapsed + seconds, turn.elapsed + 2 * seconds


def main() -> None:
    """Runs the shard of a folder until it is done, or its parent is gone."""
    from odp.operations.local.foreground import parent_watch
    from odp.transport.sweeping import stop_event

    parser = argparse.ArgumentParser()
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--with-parent", action="store_true")
    options = parser.parse_args()
    stop = stop_event()
    if options.with_parent:
        parent_watch(stop)
    values: dict[str, Any] = json.loads((options.state / TASK_FILE).read_bytes())
    try:
        worker = Worker(Shard(**values), options.state, log=lambda clock: Log("fleet", clock=clock), stop=stop)
        try:
            worker.run()
        finally:
            worker.close()
    except OdpError as error:
        raise SystemExit(f"odp: {error}") from None


if __name__ == "__main__":
    main()
