"""Many devices of one process in one SecAgg+ session, each a client of its own.

A session needs all of its clients alive at the same time, so no device is worked on from beginning to end: each has a
*seat*, a seat has at most one call under way, and whoever's answer is there is advanced by one step. Few threads
advance many devices. A seat is in memory alone: a device that dies has dropped out, and its secrets are gone with it.

Steps of one device, in this order:

1. the person's decisions and limits, the conditions       nothing was asked of anybody
2. the transparency log, evidence of the aggregator        nothing private was sent
3. the conditions again; time for the device's own code    the same time whatever it does
4. keys, reveal, shares                                    random numbers of this session, and no data
5. the data are read; clip, quantise, noise                in memory; what cannot be computed is the empty contribution
6. limits; the store: PREPARED, with nothing to send again  one transaction
7. the masked vector                                       once: a lying host could have two of them unmasked
8. the survivors are agreed on, shares to unmask them      what was asked of the others, they have signed
9. the store: SENT                                         one transaction

From 6 on the round is in the person's ledger, and the device joins no further session of it, whatever the host says.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import itertools
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

import numpy as np

from device_runtime.assignment import Work
from device_runtime.contribution import without_rows
from device_runtime.participation import Outcome, Participant
from device_runtime.schema import Participation, State
from device_runtime.services import Traffic
from device_runtime.store import Store
from odp.algorithms.dense.query import DenseQuery
from odp.algorithms.dense.secagg import draw_share, secagg_config
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import Int64Array
from odp.crypto import domains
from odp.crypto.secure_aggregation.client import Client
from odp.crypto.secure_aggregation.session import Configuration
from odp.crypto.signing import SigningKey
from odp.errors import (
    Busy,
    ConfigurationError,
    OdpError,
    PrivacyError,
    ServiceError,
    ServiceUnavailable,
)
from odp.privacy.mechanisms.noise_source import NoiseSource, OperatingSystemNoise
from odp.v1 import secagg_service_pb2 as wire

_TOKEN_BYTES = 32
#: A host that does not answer is asked again for so long.
_OUTAGE_SECONDS = 60.0
_RETRY_SECONDS = 0.2
_LONGEST_POLL_SECONDS = 5.0
#: A session that takes longer than this, gathering included, is left.
_LONGEST_SECONDS = 3600.0
_STOP_SECONDS = 20.0

End = Callable[[int, "Outcome | OdpError | Exception | None", Traffic], None]


@dataclasses.dataclass(frozen=True)
class Session:
    """What the host announced, found to be what the signed task asks for."""

    work: Work
    configuration: Configuration
    query: DenseQuery
    roster: frozenset[bytes] | None

    def client(self, identity: SigningKey, token: bytes) -> wire.SecAggClient:
        """Names a client to the host."""
        return wire.SecAggClient(
            task_sha256=self.configuration.task_sha256,
            round=self.configuration.round,
            attempt=self.configuration.attempt,
            identity=identity.public,
            token=token,
        )


def announced(participant: Participant, work: Work, traffic: Traffic) -> Session | None:
    """The session that gathers clients for ``work``; None where none does now.

    Raises:
        PrivacyError: it is another session than the task's, or the task's roster is not the one that is pinned here.
        AddressRefused: the services are not where the person pinned them.
        ServiceError: the host is away, or does not know the round.
    """
    participant.services.require_pinned(distributor=work.distributor, aggregator=work.aggregator)
    reply = participant.services.join_session(work.aggregator, work.key, traffic)
    if reply.WhichOneof("answer") != "config":
        return None
    try:
        configuration = Configuration.open(reply.config)
    except ConfigurationError as error:
        raise PrivacyError(f"the aggregator announced no valid session: {error}") from error
    model = work.model
    query = algorithm_for(model.definition).query(work.round)
    if not isinstance(query, DenseQuery):
        raise PrivacyError("secure aggregation is for dense contributions")
    expected = secagg_config(
        model.definition, query=query, task_sha256=model.task_sha256, round=work.round,
        model_sha256=model.model_sha256, attempt=configuration.attempt,
    )  # fmt: skip
    if expected != reply.config:
        raise PrivacyError("the aggregator announced another session than the one of the signed task and its model")
    roster = participant.roster_for(model.definition.cohort.secagg.roster_sha256)
    return Session(work, configuration, query, roster)


class Seat:
    """One device in one session: what it answers, and what it stores. Used by one thread at a time.

    Args:
        session: as announced.
        open_store: opens the device's store for one use.
        noise: source of the device's share of the noise.
        random_bytes: source of the client's secrets.
    """

    def __init__(
        self,
        session: Session,
        participant: Participant,
        open_store: Callable[[], Store],
        *,
        population: str,
        noise: NoiseSource,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._session = session
        self._participant = participant
        self._open_store = open_store
        self._population = population
        self._noise = noise
        self._random_bytes = random_bytes
        self._client: Client
        self._name = wire.SecAggClient()
        self._policy_sha256, self._image_digest, self._record = b"", "", b""
        #: Whether a masked vector may have left.
        self.sent = False

    def sit_down(self) -> wire.StepRequest | None:
        """The first message; None where the device has settled the round before.

        Raises as ``Participant.take_part``; nothing was sent.
        """
        work, session = self._session.work, self._session
        with self._open_store() as store:
            if store.participation(work.model.task_sha256, work.round) is not None:
                return None
            self._participant.gate.check_in(store, self._population)
            logged = self._participant.admitted(store, work)
            checked = self._participant.verified_aggregator(work, logged)
            # Before the session begins: it would wait for the device.
            self._participant.before_data(store, work)
            identity = identity_key(
                store.identity().secret, b"" if session.roster is not None else work.model.task_sha256
            )
        if session.roster is not None and identity.public not in session.roster:
            raise PrivacyError("this device is not on the roster of those that may take part")
        self._policy_sha256, self._image_digest = checked.enclave.policy.sha256, checked.enclave.image_digest
        self._record = self._participant.recorded(work, checked)
        self._client = Client(session.configuration, identity, roster=session.roster, random_bytes=self._random_bytes)
        self._name = session.client(identity, self._random_bytes(_TOKEN_BYTES))
        return wire.StepRequest(client=self._name, advert=self._client.advert)

    def poll(self) -> wire.StepRequest:
        """Asks for what comes next."""
        return wire.StepRequest(client=self._name)

    def leave(self) -> wire.StepRequest | None:
        """Tells the host not to wait; None where it never heard of the device."""
        return wire.StepRequest(client=self._name, leave=True) if self._name.identity else None

    def next(self, answer: wire.StepResponse) -> wire.StepRequest | None:
        """The next message; None where the session is over for this device.

        Raises:
            PrivacyError: the host told something that an honest one does not; the session's secrets are erased.
            NotNow, StateError: the device drops out.
        """
        kind = answer.WhichOneof("answer")
        request = wire.StepRequest(client=self._name)
        if kind == "adverts":
            request.reveal.CopyFrom(self._client.reveal(answer.adverts))
        elif kind == "reveals":
            request.shares.CopyFrom(self._client.share(answer.reveals))
        elif kind == "inbox":
            request.masked.CopyFrom(self._masked(answer))
        elif kind == "survivors":
            request.agreement.CopyFrom(self._client.agree(answer.survivors))
        elif kind == "agreements":
            request.unmask.CopyFrom(self._client.unmask(answer.agreements))
        elif kind == "end":
            return None
        else:
            raise ServiceError("the aggregator answered a step with nothing; is it of another version?")
        return request

    def outcome(self, answer: wire.StepResponse) -> Outcome | None:
        """How the session ended for the device; None where it may join another one."""
        if not self.sent:
            return None
        if answer.end.reason != wire.SecAggEnd.REASON_DONE:
            return Outcome.SETTLED  # the vector may have been used, or not: the ledger keeps it
        work = self._session.work
        with self._open_store() as store:
            store.settle(work.model.task_sha256, work.round, State.SENT)
        return Outcome.SENT

    def _masked(self, answer: wire.StepResponse) -> Any:
        work, model = self._session.work, self._session.work.model
        with self._open_store() as store:
            self._participant.gate.after_data(store, model.terms)
            identity = store.identity()
            vector, local = self._vector(store, identity.seed)
            masked = self._client.mask(answer.inbox, vector)
            terms = model.definition.privacy
            participation = Participation(
                task_sha256=model.task_sha256, round=work.round,
                contribution_id=domains.contribution_id(identity.secret, model.task_sha256, work.round),
                model_sha256=model.model_sha256, recipient=b"", epsilon=terms.epsilon, delta=terms.delta,
                policy_sha256=self._policy_sha256, image_digest=self._image_digest,
                time=self._participant.clock(), record=self._record,
            )  # fmt: skip
            with store.transaction():
                # The device may sit in sessions of other tasks: what they spent since it sat down counts now.
                self._participant.gate.person_allows(store, model.terms, work.round)
                store.prepare(participation, local_parameters=local, task=model.signed_task, terms=model.terms)
        self.sent = True
        return masked

    def _vector(self, store: Store, seed: int) -> tuple[Int64Array, bytes | None]:
        """The device's integers with its share of the noise, and its new local parameters."""
        work = self._session.work
        own = self._participant.own_data(store, work, seed=seed)
        found = self._participant.contribution(work, without_rows(work), own, seed=seed)
        vector = np.frombuffer(found.payload, dtype="<i4").astype(np.int64)
        share = draw_share(work.model.definition, self._session.query, self._noise)
        return vector + share, found.local_parameters


def identity_key(secret: bytes, task_sha256: bytes) -> SigningKey:
    """A device's Ed25519 key as a client: of one task, or (``task_sha256`` empty) the one that stands in rosters."""
    return SigningKey.from_bytes(domains.secagg_identity(secret, task_sha256 or bytes(32)))


@dataclasses.dataclass
class _Place:
    """A seat, and what it asks."""

    device: int
    seat: Seat
    traffic: Traffic = dataclasses.field(default_factory=Traffic)
    request: wire.StepRequest | None = None
    away_since: float | None = None


class Sessions:
    """Seats devices of one process in sessions, and advances whoever's answer is there.

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
        self._participant = participant
        self._open_store = open_store
        self._population = population
        self._noise = OperatingSystemNoise() if noise is None else noise
        self._clock = clock
        # The newest attempt that each device was part of: it joins each once.
        self._joined: dict[tuple[bytes, int], dict[int, int]] = {}

    def run(
        self, work: Work, devices: Sequence[int], *, pool: futures.Executor, stop: threading.Event, ended: End
    ) -> bool:
        """Takes the devices through the session that gathers clients now; False where none does.

        ``ended`` is called once for each device that took part or tried to, with its outcome, or None where it may try
        again, or the error that ended it.

        Raises as ``announced``.
        """
        traffic = Traffic()
        session = announced(self._participant, work, traffic)
        if session is None:
            return False
        attempt = session.configuration.attempt
        joined = self._joined.setdefault(work.key, {})
        fresh = [device for device in devices if joined.get(device, -1) < attempt]
        joined.update(dict.fromkeys(fresh, attempt))
        if not fresh:
            return False
        _Table(self, session, pool, stop, ended).run(fresh)
        return True

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
        self, owner: Sessions, session: Session, pool: futures.Executor, stop: threading.Event, ended: End
    ) -> None:
        self._owner = owner
        self._session = session
        self._pool = pool
        self._stop = stop
        self._ended = ended
        self._clock = owner.clock
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._later: list[tuple[float, int, _Place]] = []
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._seated: dict[int, _Place] = {}

    def run(self, devices: Sequence[int]) -> None:
        """Returns once no device is seated any more."""
        self._seated = {device: _Place(device, self._owner.seat(self._session, device)) for device in devices}
        for place in list(self._seated.values()):
            self._pool.submit(self._guarded, place, functools.partial(self._sit_down, place))
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
                self._pool.submit(event)
            self._ask_due()

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
            self._ask(place)

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
            self._finish(place, error)

    def _say_goodbye(self, place: _Place) -> None:
        goodbye = place.seat.leave()
        if goodbye is not None:
            call = self._owner.participant.services.start_step(self._session.work.aggregator, goodbye)
            # Nobody waits for the answer: a host that does not hear it finds out by itself. A call that nobody holds is
            # cancelled, and the callback holds it.
            call.add_done_callback(lambda done: None)

    def _sit_down(self, place: _Place) -> None:
        place.request = place.seat.sit_down()
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
            place.request = None
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
