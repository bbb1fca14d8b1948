"""Many devices of one process in one SecAgg+ session: each device with an answer is advanced by one step.

Few threads advance many devices, each on a seat of its own (``secagg.py``). What goes wrong with one device ends its
own part alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import heapq
import itertools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

from device_runtime.network.services import Traffic
from device_runtime.round.participation import Outcome, Participant
from device_runtime.round.secagg import Seat, Session, announced
from device_runtime.store.store import Store
from device_runtime.tasks.assignment import Work
from odp.errors import (
    AttestationError,
    Busy,
    EnrolmentError,
    NotNow,
    OdpError,
    PrivacyError,
    ServiceUnavailable,
    TransparencyError,
)
from odp.privacy.mechanisms.discrete_gaussian import NoiseSource, OperatingSystemNoise
from odp.v1 import secagg_service_pb2 as wire

#: Time for which calls to a host without an answer are retried.
_OUTAGE_SECONDS = 60.0
_RETRY_SECONDS = 0.2
_LONGEST_POLL_SECONDS = 5.0
#: A session that takes longer than this, gathering included, is left.
_LONGEST_SECONDS = 3600.0
_STOP_SECONDS = 20.0
_STEPPING_THREADS = 8
# What passes while others gather, for whom the session may need this very device. An issuer refuses a wrong clock, too.
_PASSING = (ServiceUnavailable, AttestationError, TransparencyError, EnrolmentError, NotNow)
_PAUSE_SECONDS = 5.0

End = Callable[[int, "Outcome | OdpError | Exception | None", Traffic], None]


@dataclasses.dataclass
class _Place:
    """A seat, and what it asks."""

    device: int
    seat: Seat
    traffic: Traffic = dataclasses.field(default_factory=Traffic)
    request: wire.StepRequest | None = None
    away_since: float | None = None
    #: What kept it from sitting down.
    outage: OdpError | None = None


class Sessions:
    """Seats devices of one process in sessions, and advances each device with an answer.

    Args:
        participant: how a device takes part.
        open_store: opens a device's store for one use.
        population: what the devices check in for.
        noise: source of the shares of the noise.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        participant: Participant,
        open_store: Callable[[int], Store],
        *,
        population: str,
        noise: NoiseSource | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._participant, self._open_store, self._population = participant, open_store, population
        self._noise = OperatingSystemNoise() if noise is None else noise
        self._clock = clock
        # The newest attempt of each opening that each device was part of: it joins each once.
        self._joined: dict[tuple[bytes, int, bytes], dict[int, int]] = {}

    def run(
        self, work: Work, devices: Sequence[int], *, pool: futures.Executor, stop: threading.Event, ended: End
    ) -> bool:
        """Takes the devices through the session that gathers clients now; False where none does.

        ``ended`` is called once for each device that took part or tried to, with its outcome, or None where it may try
        again, or the error that ended it.

        Raises as ``announced``.
        """
        traffic = Traffic()
        if (session := announced(self._participant, work, traffic)) is None:
            return False
        attempt = session.configuration.attempt
        joined = self._joined.setdefault((*work.key, work.hpke_key), {})
        fresh = [device for device in devices if joined.get(device, -1) < attempt]
        joined.update(dict.fromkeys(fresh, attempt))
        if not fresh:
            return False
        # Steps of the session have threads of their own: those of ``pool`` may all wait for a fixed time.
        with futures.ThreadPoolExecutor(max_workers=_STEPPING_THREADS, thread_name_prefix="session") as stepping:
            _Table(self, session, pool, stepping, stop, ended).run(fresh)
        return True

    def may_try_again(self, work: Work, device: int) -> None:
        """Lets a device join the newest attempt once more: it revealed nothing of an order yet."""
        self._joined[*work.key, work.hpke_key].pop(device, None)

    def seat(self, session: Session, device: int) -> Seat:
        """A seat for a device."""
        return Seat(
            session, self._participant, lambda: self._open_store(device), population=self._population,
            noise=self._noise, random_bytes=self._participant.random_bytes,
        )  # fmt: skip

    @property
    def participant(self) -> Participant:
        """How a device takes part."""
        return self._participant

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds that only grow."""
        return self._clock


class _Table:
    """All seats of one session; ``run`` is its whole life."""

    def __init__(
        self,
        owner: Sessions,
        session: Session,
        seating: futures.Executor,
        stepping: futures.Executor,
        stop: threading.Event,
        ended: End,
    ) -> None:
        self._owner, self._session = owner, session
        self._seating, self._stepping = seating, stepping
        self._stop, self._ended = stop, ended
        self._clock = owner.clock
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._later: list[tuple[float, int, _Place]] = []
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._seated: dict[int, _Place] = {}
        #: Those that an outage kept out, with the times at which they try again; they hold no session open.
        self._outside: list[tuple[float, int, _Place]] = []

    def run(self, devices: Sequence[int]) -> None:
        """Returns once no device is seated any more."""
        self._seated = {device: _Place(device, self._owner.seat(self._session, device)) for device in devices}
        for place in list(self._seated.values()):
            self._seat(place)
        end = self._clock() + _LONGEST_SECONDS
        stopped_at: float | None = None
        while self._count():
            now = self._clock()
            if self._stop.is_set() and stopped_at is None:
                stopped_at = now
            over = now >= end or (stopped_at is not None and now >= stopped_at + _STOP_SECONDS)
            if over or stopped_at is not None:
                self._leave(all_of_them=over)
            try:
                event = self._events.get(timeout=self._until_next(now))
            except queue.Empty:
                event = None
            if event is not None:
                self._stepping.submit(event)
            self._ask_due()
            if stopped_at is None:
                self._seat_due()
        for _, _, place in self._outside:
            self._owner.may_try_again(self._session.work, place.device)
            self._ended(place.device, place.outage, place.traffic)

    def _seat(self, place: _Place) -> None:
        self._seating.submit(self._guarded, place, functools.partial(self._sit_down, place))

    def _seat_due(self) -> None:
        with self._lock:
            due = []
            while self._seated and self._outside and self._outside[0][0] <= self._clock():
                due.append(heapq.heappop(self._outside)[2])
            self._seated.update((place.device, place) for place in due)
        for place in due:
            self._seat(place)

    def _keep_outside(self, place: _Place, outage: OdpError) -> None:
        """Has a device that sent nothing sit down again after a pause, as long as others are seated."""
        place.outage = outage
        with self._lock:
            if self._seated.pop(place.device, None) is None:
                return
            heapq.heappush(self._outside, (self._clock() + _PAUSE_SECONDS, next(self._numbers), place))
        self._events.put(None)

    def _gathers(self, traffic: Traffic) -> bool:
        session = announced(self._owner.participant, self._session.work, traffic)
        return session is not None and session.configuration.attempt == self._session.configuration.attempt

    def _count(self) -> int:
        with self._lock:
            return len(self._seated)

    def _until_next(self, now: float) -> float:
        with self._lock:
            return min(max(self._later[0][0] - now, 0.0), 0.5) if self._later else 0.5

    def _ask_due(self) -> None:
        now = self._clock()
        while True:
            with self._lock:
                if not self._later or self._later[0][0] > now:
                    return
                place = heapq.heappop(self._later)[2]
            self._guarded(place, functools.partial(self._ask, place))

    def _leave(self, *, all_of_them: bool) -> None:
        with self._lock:
            leaving = [place for place in self._seated.values() if all_of_them or not place.seat.sent]
        for place in leaving:
            self._say_goodbye(place)
            self._finish(place, Outcome.SETTLED if place.seat.sent else None)

    def _finish(self, place: _Place, result: Outcome | Exception | None) -> None:
        with self._lock:
            if self._seated.pop(place.device, None) is None:
                return
        self._ended(place.device, result, place.traffic)
        self._events.put(None)

    def _guarded(self, place: _Place, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # one device must not take the others down
            self._say_goodbye(place)
            if not place.seat.revealed and not isinstance(error, PrivacyError):
                self._owner.may_try_again(self._session.work, place.device)
            self._finish(place, error)

    def _say_goodbye(self, place: _Place) -> None:
        if (goodbye := place.seat.leave()) is None:
            return
        # A host whose name leads nowhere now finds out by itself.
        with contextlib.suppress(OdpError):
            call = self._owner.participant.services.start_step(self._session.work.aggregator, goodbye)
            # Nobody waits for the answer. A call that nobody holds is cancelled, and the callback holds it.
            call.add_done_callback(lambda done: None)

    def _sit_down(self, place: _Place) -> None:
        try:
            # A contribution takes its fixed time, in which others may gather for the next attempt.
            if place.outage is not None and not self._gathers(place.traffic):
                raise place.outage
            with self._owner.participant.fixed_times.active:
                place.request = place.seat.sit_down(place.traffic)
        except _PASSING as outage:
            self._keep_outside(place, outage)
            return
        if place.request is None:
            self._finish(place, Outcome.SETTLED)
        else:
            self._ask(place)

    def _ask(self, place: _Place) -> None:
        request = place.seat.poll() if place.request is None else place.request
        call = self._owner.participant.services.start_step(self._session.work.aggregator, request)
        call.add_done_callback(
            lambda done: self._events.put(lambda: self._guarded(place, lambda: self._answered(place, request, done)))
        )

    def _answered(self, place: _Place, request: wire.StepRequest, done: Any) -> None:
        services, address = self._owner.participant.services, self._session.work.aggregator
        try:
            answer = services.step_answer(address, request, done, place.traffic)
        except ServiceUnavailable as error:
            now = self._clock()
            place.away_since = now if place.away_since is None else place.away_since
            if now - place.away_since > _OUTAGE_SECONDS:
                raise
            self._ask_later(place, services.moment(error) if isinstance(error, Busy) else _RETRY_SECONDS)
            return
        place.away_since = None
        if answer.WhichOneof("answer") == "wait":
            place.request = place.seat.repeat() if answer.wait.repeat else None
            self._ask_later(place, min(answer.wait.milliseconds / 1000.0, _LONGEST_POLL_SECONDS))
            return
        place.request = place.seat.next(answer)
        if place.request is None:
            self._finish(place, place.seat.outcome(answer))
        else:
            self._ask(place)

    def _ask_later(self, place: _Place, seconds: float) -> None:
        with self._lock:
            heapq.heappush(self._later, (self._clock() + seconds, next(self._numbers), place))
        self._events.put(None)
