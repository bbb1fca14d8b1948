"""One device reports to a task of local trust: to the developer's server, and without any enclave.

Steps, in this order, each of which may be the last one before the device dies. Those marked with * are shared with
rounds and sessions (``pipeline.py``).

1. * the person's decisions and limits, the conditions     nothing was asked of anybody
2. * the transparency log: task and charter                nothing private was sent
   a token, where the population's issuer gives them       the same calls for everybody
3. a row of the task, if it has rows                       the same request of every device
4. * the conditions again; time for the device's own code  the same time whatever it does
5. * the data are read, and the report is made             in a fixed time (``fixed_times.py``), whose rest is for 6
6. the store: PREPARED, bytes and id to send, the charge   one transaction
7. ``Report``                                              the server counts one report per id
8. the store: SENT, bytes erased                           one transaction

Before 6 a device that comes back starts again, after 6 it sends the stored bytes again, for a day at most. Where a
wrong clock says that the day is over, it sends them once the clock is right. Which calls it makes, when, and of which
sizes never depends on its data: what cannot be computed is the report of no data, which is random like every other. A
report that the server refuses was seen by it: it stays charged.

``ReportTimes`` says how long a device waits between two reports, and how old one is, also where its clock was wrong
when it made it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path

from device_runtime.network.services import Services, Traffic
from device_runtime.round.admission import NO_TOKEN
from device_runtime.round.participation import Outcome, Participant
from device_runtime.round.pipeline import Pipeline
from device_runtime.store.schema import Participation, State
from device_runtime.store.store import Store
from device_runtime.tasks.local_assignment import LocalWork
from odp.crypto import domains
from odp.errors import ConfigurationError, Refusal, ServiceError
from odp.privacy.mechanisms.random_source import RandomSource
from odp.v1 import aggregator_pb2, local_pb2

#: A report without an answer is sent again for this time, which the server remembers it for.
RESEND_SECONDS = 86_400.0
#: A device whose clock keeps it from sending a report looks at the clock again after this time.
_LOOK_SECONDS = 60.0
_PERIOD_BYTES = 4


def seconds_awake_or_not() -> float:
    """Seconds that only grow, those included for which the machine slept, where its system counts them."""
    clock = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class ReportTimes:
    """What a process knows of the times of reports. ``monotonic`` gives seconds that only grow, also in a sleep.

    A device dates its reports by the time of day, so that they last over its restarts. A report of the future was dated
    by a clock that was wrong then, or is wrong now: the device waits for one period from when this process first sees
    it, and neither for that time nor not at all.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._ahead: dict[Hashable, float] = {}
        self._made: dict[Hashable, float] = {}

    def made(self, report: Hashable) -> None:
        """Notes that this process made a report now."""
        self._made[report] = self._monotonic()

    def answered(self, report: Hashable) -> None:
        """Forgets a report. Idempotent."""
        self._made.pop(report, None)

    def age(self, report: Hashable, *, dated: float, now: float) -> float:
        """Seconds since a report was made: exact in the process that made it, and else what the time of day says.

        ``dated`` and ``now`` are seconds since the epoch.
        """
        made = self._made.get(report)
        return abs(now - dated) if made is None else self._monotonic() - made

    def left(self, report: Hashable, *, last: float, between: float, now: float) -> float:
        """Seconds until the report after ``report`` is due, at most ``between``; 0 or less if it is due.

        Args:
          report: names the last one, among all devices and tasks of the process.
          last: its time, in seconds since the epoch; minus infinity where there is none.
          between: seconds between two.
          now: seconds since the epoch.
        """
        if last <= now:
            self._ahead.pop(report, None)
            return between - (now - last)
        return between - (self._monotonic() - self._ahead.setdefault(report, self._monotonic()))


@dataclass(frozen=True)
class Reported:
    """How an attempt ended, and the seconds until the device may report to the task again; infinite: never."""

    outcome: Outcome
    next_seconds: float


@dataclass(frozen=True, kw_only=True)
class LocalReporting:
    """Reports for one device after another; holds what they share, and nothing of any device; thread-safe.

    Args:
      services: whom to talk to.
      pipeline: the steps that all uploads of a device share.
      source: makes the randomness of one report.
      monotonic: seconds that only grow, also while the machine sleeps, which periods between reports follow.
    """

    services: Services
    pipeline: Pipeline
    source: Callable[[], RandomSource] = RandomSource
    monotonic: Callable[[], float] = seconds_awake_or_not
    _times: ReportTimes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_times", ReportTimes(self.monotonic))

    @classmethod
    def of(cls, participant: Participant) -> LocalReporting:
        """For the devices of ``participant``."""
        return cls(services=participant.services, pipeline=participant.pipeline)

    def report(self, store: Store, work: LocalWork, traffic: Traffic) -> Reported:
        """Reports with the device of ``store``, where it is due, or finishes what was begun.

        Raises:
          PrivacyError: the person's limits decline the task, or they opted out of it; nothing was sent.
          NotNow: the device is paused, or a training condition is not met; later it may go on where it was.
          EnrolmentError: the issuer gives the device no token now; nothing was read.
          TransparencyError: task or charter are not in the pinned log; nothing was sent.
          StaleModel: the task is over, or not yet open.
          ServiceError, ServiceUnavailable: try again later; a report that was prepared stays so.
          StateError: the store cannot be used.
        """
        task_lines = [line for line in store.ledger() if line.task_sha256 == work.task_sha256]
        prepared, now = self._queued(store, task_lines), self.pipeline.clock()
        if prepared is None:
            if len(task_lines) >= work.most:
                return Reported(Outcome.SETTLED, _LOOK_SECONDS if any(map(_is_unsent, task_lines)) else math.inf)
            between, last = work.terms.seconds_between, max((line.time for line in task_lines), default=-math.inf)
            wait = self._times.left(
                (store.path, work.task_sha256, len(task_lines)), last=last, between=between, now=now
            )
            if wait > 0:
                return Reported(Outcome.SETTLED, wait)
        number = max((line.round for line in task_lines), default=-1) + 1 if prepared is None else prepared.round
        self.pipeline.admitted(store, work, number)
        self.pipeline.charters.accept(work.charter, None)
        if prepared is None:
            prepared = self._prepare(store, work, number, traffic)
        outcome = self._send(store, work, prepared, traffic)
        made = len({line.round for line in task_lines} | {number})
        return Reported(outcome, work.terms.seconds_between if made < work.most else math.inf)

    def _queued(self, store: Store, task_lines: list[Participation]) -> Participation | None:
        """A report that is still to be sent, and may be: the server forgets ids, and would count it a second time.

        An older one stays in the store: it is the clock that says so, which may be wrong now.
        """
        now = self.pipeline.clock()
        for line in filter(_is_unsent, task_lines):
            if self._times.age(_name(store, line), dated=line.time, now=now) <= RESEND_SECONDS:
                return line
        return None

    def _prepare(self, store: Store, work: LocalWork, number: int, traffic: Traffic) -> Participation:
        algorithm, secret = work.algorithm, store.identity().secret
        report_id = domains.contribution_id(secret, work.task_sha256, number)
        token = self.pipeline.admission.token(work, domains.contribution_token(report_id), secret, traffic)
        drawn_row = self.services.draw(work.task_sha256, traffic) if algorithm.row_bytes else b""
        source = self.source()
        try:
            # Before the data are read: a row that is none is refused aloud, and alike by every device.
            nothing = algorithm.empty_report(drawn_row, source=source)
        except ConfigurationError as error:
            raise ServiceError(f"the server drew a row that is none: {error}") from error
        self.pipeline.before_data(store, work)
        with self.pipeline.reporting(store, work, drawn_row=drawn_row, source=source, empty=nothing) as contributing:
            made = contributing.contribution(None)
            self.pipeline.gate.after_data(store, work.terms)
            privacy = work.definition.privacy
            participation = Participation(
                task_sha256=work.task_sha256,
                round=number,
                contribution_id=report_id,
                model_sha256=b"",
                recipient=b"",
                epsilon=privacy.epsilon,
                delta=privacy.delta,
                policy_sha256=b"",
                image_digest="",
                time=self.pipeline.clock(),
                sealed=made.payload,
                token=_with_period(token, work.round),
            )
            self._times.made(_name(store, participation))
            store.prepare(
                participation, local_parameters=made.local_parameters, task=work.signed_task, terms=work.terms
            )
            contributing.leave()
        return participation

    def _send(self, store: Store, work: LocalWork, prepared: Participation, traffic: Traffic) -> Outcome:
        self.pipeline.gate.after_data(store, work.terms)
        token, period = _of_period(prepared.token or b"")
        request = local_pb2.ReportRequest(
            task_sha256=prepared.task_sha256, report_id=prepared.contribution_id, report=prepared.sealed or b"",
            token=token, period=period,
        )  # fmt: skip
        answer = self.services.report(request, traffic)
        refusal = None if answer.refusal == aggregator_pb2.REFUSAL_UNSPECIFIED else _refusal(answer.refusal)
        store.settle(prepared.task_sha256, prepared.round, State.SENT, refusal)
        self._times.answered(_name(store, prepared))
        if refusal is Refusal.TASK_ABANDONED:
            store.end_task(prepared.task_sha256)
        return Outcome.SENT if refusal is None else Outcome.REFUSED


def _is_unsent(line: Participation) -> bool:
    return line.state is State.PREPARED and line.sealed is not None


def _name(store: Store, line: Participation) -> tuple[Path, bytes, int, str]:
    """Of a report among all of the process; that of a report whose period is waited for has no last part."""
    return store.path, line.task_sha256, line.round, "made"


def _with_period(token: bytes, period: int) -> bytes:
    """A token as the store keeps it: the period is public, and needed to send it."""
    return token + period.to_bytes(_PERIOD_BYTES, "big") if token else NO_TOKEN


def _of_period(stored: bytes) -> tuple[bytes, int]:
    """(token, period) of what ``_with_period`` made."""
    return stored[:-_PERIOD_BYTES], int.from_bytes(stored[-_PERIOD_BYTES:], "big")


def _refusal(number: int) -> Refusal:
    try:
        return Refusal(number)
    except ValueError:
        raise ServiceError(f"the server gave an unknown refusal={number}") from None
