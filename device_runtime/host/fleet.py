"""A device host: many devices in one process, each with its own store, checking in and taking part.

The host looks at what the server offers; while a round is open, every device that has not settled it checks in for
itself and takes part: a few compute and make calls at a time, and the others wait side by side. In between, the host
waits as long as the server's retry window says. An unavailable service is one outage for the whole host: one line in
the log, one growing pause, and no calls of devices.

A device that is paused, or whose training conditions are not met, rests: it is looked at again now and then, and a host
whose devices all rest makes no network call; one that has to end with its task waits for them only for a limited time
(``ending.py``). Which devices have something to do is in ``roster.py``, how long the host waits in ``pacing.py``.
"""

from __future__ import annotations

import functools
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent import futures

from device_runtime.host.counts import FILE, HostCounts
from device_runtime.host.ending import Ending, FleetOptions, Timing, require_finished
from device_runtime.host.housekeeping import Housekeeping, Pauses
from device_runtime.host.outage import Outage
from device_runtime.host.pacing import SHORTEST_PAUSE, CheckInPlan, CheckIns
from device_runtime.host.roster import DECLINED_SECONDS, NO_ROUND, Key, LocalTurns, Roster, Sweep
from device_runtime.network.services import Traffic
from device_runtime.round.local_reports import LocalReporting
from device_runtime.round.participation import Outcome, Participant
from device_runtime.round.secagg_sessions import Sessions
from device_runtime.store.recovery import repair, set_aside_path
from device_runtime.store.schema import State
from device_runtime.store.store import Store, store_path
from device_runtime.tasks.answers import AnswerReader
from device_runtime.tasks.assignment import Work
from device_runtime.tasks.local_assignment import LocalWork
from odp._system.files.state_folder import StateFolder
from odp.algorithms.cohorts import goal_of
from odp.errors import (
    AttestationError,
    DiskFailed,
    DiskFull,
    NotNow,
    OdpError,
    OutOfResources,
    PrivacyError,
    ServiceUnavailable,
    StaleModel,
    StateError,
    StoreDamaged,
    StoreUnreachable,
    TransparencyError,
)
from odp.transport.logs import Log, short
from odp.v1 import server_pb2

#: Certificates, evidence or logs that are refused so often are no accident: they are not what the person pinned.
_MOST_STRANGERS = 3
_STATISTICS_SECONDS = 1.0
_SIDE_BY_SIDE = 64  # devices that take part at a time: most of them wait (``device_runtime.round.fixed_times``)
#: A host that has to end with its task ends after this time without an open round: it missed the last one.
_QUIET_SECONDS = 120.0
#: How often a host whose devices are not due looks at what its server offers.
_LOOK = server_pb2.RetryWindow(min_seconds=30, max_seconds=60)
#: What an outcome counts as.
_COUNTED = {Outcome.SENT: "devices_in", Outcome.REFUSED: "refused", Outcome.SETTLED: ""}


class Fleet:
    """Runs devices of a state folder.

    Args:
      options: what it does.
      state: the locked state folder; the stores of all devices are in it.
      participant: how one device takes part.
      stop: set by anybody to make ``run`` return soon; a device in the middle of a round finishes it first.
      log: where events go.
      housekeeping: forgets what is past its period, in pauses; None forgets nothing.
      plan: stores the time of the next check-in; without it the time does not hold over a restart.
      timing: how it measures and spends time.
    """

    def __init__(
        self,
        options: FleetOptions,
        *,
        state: StateFolder,
        participant: Participant,
        stop: threading.Event,
        log: Log,
        housekeeping: Housekeeping | None = None,
        plan: CheckInPlan | None = None,
        timing: Timing | None = None,
    ) -> None:
        timing = Timing() if timing is None else timing
        self._options, self._state = options, state
        self._participant = participant
        self._stop, self._log = stop, log
        self._clock = timing.clock
        self._pauses = Pauses(timing.wait or stop.wait, clock=timing.clock, housekeeping=housekeeping)
        population, uniform = options.population, timing.uniform
        self._check_ins = CheckIns(plan=plan, log=log, uniform=uniform)
        self._outage = Outage(uniform=uniform)
        self._ending = Ending(until_finished=options.until_finished, end_after=options.end_after, clock=timing.clock)
        self._reader = AnswerReader(population, trainer=participant.trainer)
        self._roster = Roster(options.devices, clock=timing.clock)
        self._reporting = LocalReporting.of(participant)
        self._local_turns = LocalTurns(options.devices, clock=timing.clock)
        self._last: Work | LocalWork | None = None
        #: Why a device last did not take part, ("declined", "over its limit ..") for example; the reason as in the log.
        self.reason = ("idle", "")
        #: What made a service unusable, while it is.
        self.outage: OdpError | None = None
        self._idle_answers = 0
        self._idle_since: float | None = None
        self._awaited: tuple[bytes, int] | None = None
        self._sessions = Sessions(
            participant, lambda device: Store.open(store_path(state.root, device), durable=options.durable),
            population=population,
        )  # fmt: skip
        self.counts = HostCounts(population=population, devices=len(options.devices), stored=state.read(FILE))

    def run(self) -> None:
        """Works until it is stopped, or finished.

        Raises:
          StateError: the state folder cannot be used, for example because the disk is full.
          AttestationError, CertificateError, TransparencyError: a service or its log was refused again and again;
            nothing was sent to it.
          NotNow: the host was to end with its task, and its devices all rested for too long, or its time was over.
        """
        self._recover()
        before = self.counts.contributions()
        self._log.event("devices_started", devices=len(self._options.devices), population=self._options.population)
        first = self._check_ins.first_wait()
        if first and (self._pauses.wait(self._ending.left(first)) or self._ending.is_over()):
            self.reason = ("idle", f"the server asked to check in again in {first:.0f} s")
            return
        with futures.ThreadPoolExecutor(max_workers=_SIDE_BY_SIDE, thread_name_prefix="device") as pool:
            while not self._stop.is_set():
                try:
                    pause = self._step(pool)
                except OdpError as error:
                    if isinstance(error, (NotNow, StateError)) and not isinstance(error, OutOfResources):
                        raise
                    pause = self._failed_for_all(error)
                self._write_statistics()
                if pause is None:
                    self.counts.finish()
                    self._log.event("devices_finished", population=self._options.population)
                    break
                if self._has_enough(before) or (pause > 0 and self._pauses.wait(self._ending.left(pause))):
                    break
                if self._ending.is_over():
                    break
        self._write_statistics()
        self._log.event("devices_stopped", devices=len(self._options.devices))

    def _has_enough(self, before: int) -> bool:
        """Whether this run made as many contributions as it was to make, or one to the last round of a task."""
        most, last = self._options.most_contributions, self._last
        made = self.counts.contributions() - before
        if most is None or not made or made >= most:
            return most is not None and made > 0
        if last is None or not last.is_last or self._roster.pending(last.opening):
            return False
        self.reason = ("idle", "that was the last round of the task")
        return True

    def _recover(self) -> None:
        """Reads from the stores what was settled before; a store that cannot be read is set aside."""
        counts: dict[tuple[bytes, int], list[int]] = {}
        missing = 0
        for device in self._options.devices:
            path = store_path(self._state.root, device)
            if not path.exists() and not set_aside_path(path).exists():
                missing += 1
                continue
            try:
                with Store.open(path) as store:
                    self._look(store, device)
                    for task, round, recipient, state in store.settled():
                        self._roster.settle((task, round, recipient), device)
                        entry = counts.setdefault((task, round), [0, 0])
                        entry[0] += state is State.SENT
                        entry[1] += state is State.REFUSED
            except StoreUnreachable as error:
                self._let_rest(device, _held(error))
            except StateError as error:
                self._lost(device, error)
        if missing:
            devices = self._options.devices
            raise StateError(
                f"{missing} of the devices {devices.start} to {devices.stop - 1} have no store in "
                f"{self._state.root}; give them data first (--data)"
            )
        for key, (sent, refused) in counts.items():
            self.counts.recovered(key, sent, refused)

    def _step(self, pool: futures.Executor) -> float | None:
        """Looks at what the server offers and works on it; returns the seconds to pause, or None when finished."""
        rest = self._rest()
        self._ending.all_rest(rest is not None)
        if rest is not None:
            return rest
        traffic = Traffic()
        answer = self._participant.services.check_in(self._options.population, traffic)
        work = self._reader.open(answer)
        if isinstance(work, LocalWork):
            return self._report(pool, work, traffic)
        if work is None:
            self.counts.waited(traffic)
            self._recovered_from_outage()
            return self._idle(answer.retry)
        self._idle_answers, self._idle_since = 0, None
        if self._last is None or self._last.key != work.key:
            self._log.event("round_open", task=short(work.key[0]), round=work.round)
            self._check_ins.new_round()
        self._last = work
        self.counts.count(work.key, "", traffic, now=self._clock())
        if not (pending := self._roster.pending(work.opening)):
            self._recovered_from_outage()
            self._say_what_is_awaited(work)
            return self._check_ins.next_pause()
        sweep = self._session(pool, work, pending) if work.sessions else self._sweep(pool, pending, self._visit)
        return self._after(sweep, work.key, len(pending))

    def _after(self, sweep: Sweep, key: Key, pending: int) -> float | None:
        """Seconds to pause after a sweep, or None when finished."""
        counts = {"pending": pending, "settled": sweep.settled, "failed": sweep.failures}
        self._log.event("sweep", task=short(key[0]), round=key[1], **counts)
        if sweep.outage is not None:
            raise sweep.outage
        self._recovered_from_outage()
        if sweep.retry is not None:
            return self._idle(sweep.retry)
        return 0.0 if sweep.settled and not sweep.failures else self._check_ins.next_pause()

    def _report(self, pool: futures.Executor, work: LocalWork, traffic: Traffic) -> float | None:
        """All devices that are due report to a task of local trust; seconds to pause, or None when finished."""
        self._idle_answers, self._idle_since = 0, None
        if self._last is None or self._last.key != work.key:
            self._log.event("reports_open", task=short(work.task_sha256), reports_per_device=work.most)
            self._check_ins.new_round()
        self._last = work
        self.counts.count(work.key, "", traffic, now=self._clock())
        pending = self._local_turns.pending(work.task_sha256, self._roster.pending((work.task_sha256, NO_ROUND)))
        if not pending:
            self._recovered_from_outage()
            due = self._local_turns.next(work.task_sha256)
            if due == math.inf and self._options.until_finished:
                return None
            # Until the next device is due, other tasks may come: the host looks for them now and then.
            return min(self._check_ins.window(_LOOK), due) if due > 0 else self._check_ins.next_pause()
        sweep = self._sweep(pool, pending, functools.partial(self._one_report, work))
        return self._after(sweep, work.key, len(pending))

    def _one_report(self, work: LocalWork, sweep: Sweep, device: int) -> None:
        """One device reports, if it is due."""
        traffic = Traffic()

        def take_part() -> str:
            with self._participant.pipeline.alone(), self._opened(device) as store:
                self._participant.gate.check_in(store, self._options.population)
                done = self._reporting.report(store, work, traffic)
            self._local_turns.wait(work.task_sha256, device, done.next_seconds)
            sweep.count_settled()
            return _COUNTED[done.outcome]

        if (what := self._judged(sweep, (work.key,), device, take_part)) == "declined":
            self._local_turns.wait(work.task_sha256, device, DECLINED_SECONDS)
        self.counts.count(work.key, what, traffic, now=self._clock())

    def _idle(self, window: server_pb2.RetryWindow) -> float | None:
        """Seconds to wait when no round is open, or None when there is nothing left to wait for."""
        now = self._clock()
        self._idle_answers += 1
        if self._idle_since is None:
            self._idle_since = now
        if self._options.until_finished:
            last = self._last
            # Before that, the server still makes the last release, or is between two answers for a moment.
            if last is not None and last.is_last and window.without_task:
                return None
            if now - self._idle_since > _QUIET_SECONDS:
                self._log.warning("no_open_round", seconds=round(now - self._idle_since))
                services, population = self._participant.services, self._options.population
                require_finished(services, self._last, population, quiet=now - self._idle_since)
                return None
        pause = self._check_ins.window(window)
        self.reason = ("idle", f"no round of population {self._options.population!r} is open now")
        if self._idle_answers == 1:
            self._log.event("no_round_open", population=self._options.population, ask_again_seconds=round(pause, 1))
        return pause

    def _say_what_is_awaited(self, work: Work) -> None:
        """One line per round, once all devices of this host are through with it."""
        self.reason = ("waits", f"round {work.round + 1} of task {work.model.definition.name!r} waits for others")
        if self._awaited == work.key:
            return
        self._awaited = work.key
        cohort = work.model.definition.cohort
        self._log.event(
            "round_waits", task=short(work.key[0]), round=work.round, reason="for other devices",
            minimum=cohort.minimum, goal=goal_of(cohort, work.round), seconds=cohort.round_seconds,
        )  # fmt: skip

    def _failed_for_all(self, error: OdpError) -> float:
        """One line for the whole host when a service stops being usable; seconds to pause."""
        self.outage = error
        if self._outage.failed(error):
            self.counts.outage()
            self._log.warning("outage", reason=str(error))
        if self._outage.strangers >= _MOST_STRANGERS and not self._options.keep_running:
            self._write_statistics()
            raise error
        return self._outage.pause()

    def _recovered_from_outage(self) -> None:
        self.outage = None
        if self._outage.over():
            self._log.event("outage_over")

    def _sweep(self, pool: futures.Executor, pending: list[int], visit: Callable[[Sweep, int], None]) -> Sweep:
        sweep = Sweep(deque(pending))
        workers = [pool.submit(self._work, sweep, visit) for _ in range(min(_SIDE_BY_SIDE, len(pending)))]
        while futures.wait(workers, timeout=_STATISTICS_SECONDS).not_done:
            self._write_statistics()
        for worker in workers:
            worker.result()
        return sweep

    def _session(self, pool: futures.Executor, work: Work, pending: list[int]) -> Sweep:
        """All devices together in one session, where one gathers clients now."""
        sweep = Sweep(deque())

        def ended(device: int, result: Outcome | Exception | None, traffic: Traffic) -> None:
            def outcome() -> str:
                if isinstance(result, Exception):
                    raise result
                return "" if result is None else self._settle(sweep, work, device, result)

            what = self._judged(sweep, (work.key,), device, outcome)
            self.counts.count(work.key, what, traffic, now=self._clock())

        try:
            self._sessions.run(work, pending, pool=pool, stop=self._stop, ended=ended)
        except PrivacyError as error:  # of what was announced, to all of them
            for device in pending:
                self._decline(work.key, device, error)
        return sweep

    def _work(self, sweep: Sweep, visit: Callable[[Sweep, int], None]) -> None:
        """One worker: device after device until none is left or the sweep ends; few of them work at a time."""
        while True:
            with self._participant.fixed_times.active:
                if self._stop.is_set() or (device := sweep.next()) is None:
                    return
                visit(sweep, device)

    def _visit(self, sweep: Sweep, device: int) -> None:
        """One device checks in and takes part."""
        traffic = Traffic()
        keys: list[Key] = []

        def take_part() -> str:
            with self._participant.pipeline.alone(), self._opened(device) as store:
                self._participant.gate.check_in(store, self._options.population)
                answer = self._participant.services.check_in(self._options.population, traffic)
                work = self._reader.open(answer)
                if not isinstance(work, Work):  # the round closed meanwhile
                    sweep.end(retry=answer.retry if work is None else None)
                    return ""
                keys.append(work.key)
                if self._roster.has_settled(work.opening, device):
                    return ""
                return self._settle(sweep, work, device, self._participant.take_part(store, work, traffic))

        what = self._judged(sweep, keys, device, take_part)
        if keys:
            self.counts.count(keys[0], what, traffic, now=self._clock())
        else:
            self.counts.waited(traffic)

    def _settle(self, sweep: Sweep, work: Work, device: int, outcome: Outcome) -> str:
        """Notes that a device has nothing left to do in a round; what that counts as."""
        self._roster.settle(work.opening, device)
        sweep.count_settled()
        return _COUNTED[outcome]

    def _judged(self, sweep: Sweep, keys: Sequence[Key], device: int, act: Callable[[], str]) -> str:
        """What a device's part counts as; whatever goes wrong is the device's, or the sweep's, and ends here."""
        try:
            return act()
        except StaleModel:
            # Newer versions replaced the model while devices were at it: all of them check in again, for what is new.
            sweep.stop.set()
            return ""
        except (ServiceUnavailable, AttestationError, TransparencyError) as error:
            sweep.end(outage=error)
        except NotNow as error:
            self._let_rest(device, error)
            return ""
        except StoreUnreachable as error:
            self._let_rest(device, _held(error))
            return ""
        except PrivacyError as error:
            self._decline(keys[0] if keys else None, device, error)
            return "declined"
        except OdpError as error:
            # A full disk or memory is no device's own: with all of them set aside, the host would wait for ever.
            if isinstance(error, StateError) and not isinstance(error, (DiskFull, DiskFailed, OutOfResources)):
                self._roster.set_aside(device)
            self._failed(sweep, device, error)
            if isinstance(error, StoreDamaged):
                self._lost(device, error)
        except Exception as error:  # one device must not take the others down; its data must not reach the log
            self._log.crash("device_crashed", error)
            self.reason = ("failed", f"an unforeseen {type(error).__name__}")
            self._roster.set_aside(device)
        return "failed"

    def _failed(self, sweep: Sweep, device: int, error: OdpError) -> None:
        telling, hopeless = sweep.count_failure()
        self.reason = ("failed", str(error))
        if telling:
            self._log.warning("device_failed", device=device, reason=str(error))
        if hopeless or isinstance(error, (DiskFull, DiskFailed)):
            # One failed store is the device's fault; this number of them is the disk's: the host cannot continue.
            sweep.end(outage=error)

    def _decline(self, key: Key | None, device: int, error: PrivacyError) -> None:
        self.reason = ("declined", str(error))
        if key is not None and self._roster.decline(key, device):
            self._log.warning("task_declined", device=device, task=short(key[0]), reason=str(error))

    def _rest(self) -> float | None:
        """Looks again at devices that rested for a while; seconds to pause where all still do, else None."""
        for device in self._roster.due():
            try:
                with self._participant.pipeline.alone(), self._opened(device) as store:
                    self._look(store, device)
            except StoreUnreachable as error:
                self._let_rest(device, _held(error))
            except StateError as error:
                self._lost(device, error)
        left = self._roster.until_due()
        return None if left is None else max(left, SHORTEST_PAUSE)

    def _opened(self, device: int) -> Store:
        return Store.open(store_path(self._state.root, device), durable=self._options.durable)

    def _look(self, store: Store, device: int) -> None:
        """Lets the device of ``store`` rest, or work again."""
        try:
            self._participant.gate.check_in(store, self._options.population)
        except NotNow as error:
            self._let_rest(device, error)
            return
        if self._roster.wake(device):
            self._log.event("device_awake", device=device)

    def _let_rest(self, device: int, error: NotNow) -> None:
        """One line per reason for the whole host, until a device wakes."""
        self._ending.rests(error)
        self.reason = ("rests", str(error))
        if self._roster.let_rest(device, error):
            self._log.event("device_rests", device=device, reason=str(error))

    def _lost(self, device: int, error: StateError) -> None:
        """Rebuilds a damaged store with all of its ledger, for the next start; leaves the device out until then."""
        self._roster.set_aside(device)
        if isinstance(error, StoreDamaged):
            try:
                done = repair(store_path(self._state.root, device))
                if done.aside is not None:
                    damage = {"damaged": str(done.aside), "incomplete": ",".join(done.incomplete)}
                    self._log.warning("device_rebuilt", device=device, **damage)
                    return
            except StateError as hopeless:
                error = hopeless
        self._log.error("device_set_aside", device=device, reason=str(error))

    def _write_statistics(self) -> None:
        if (content := self.counts.take_changes()) is not None:
            self._state.write_atomically(FILE, content)


def _held(error: StoreUnreachable) -> NotNow:
    """Why a device rests whose store another program holds: it takes part once that has ended."""
    return NotNow(str(error), "store")
