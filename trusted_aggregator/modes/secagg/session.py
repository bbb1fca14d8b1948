"""One session of SecAgg+ at the host: the stages, the clients that answered in each, and the next messages.

=============  =======================================================  ================================================
stage          is over when                                             and then
=============  =======================================================  ================================================
ADVERTS        the goal is here, or time is up and the minimum is here  clients that fell silent are left out
REVEALS        all answered, or time is up                              void where a reveal is missing
SHARES         all answered, or time is up                              void below the minimum
MASKED         all that shared answered, or time is up                  void below the minimum
AGREEMENTS     all survivors answered, or time is up                    void below the threshold; else it is *ready*
UNMASKS        all that agreed answered, or time is up                  the sum, or none
=============  =======================================================  ================================================

A session begins where the host has memory for it, else it goes on gathering. While it gathers it has a seat for each
client up to its largest size; seats of clients that fell silent are given to others.

A session that is ready waits for its charge: no client gets what it needs to give unmask shares before
``allow_unmasking``. A session that is void has erased what clients sent; callers get a retry time.

Where a journal is given, the end of a stage is stored before any client hears of it (``journal.py``), and ``resume``
takes up a session of a host that died. Time goes on meanwhile; clients have a moment to come back if they still try.

A session has no thread: each call advances it. The host is trusted with nothing but the round itself.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import threading
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from odp.crypto.secure_aggregation.parameters import is_withstood
from odp.crypto.secure_aggregation.server import Server, Stage, TooFew
from odp.crypto.secure_aggregation.session import Configuration, check_advert, survivors_bytes
from odp.errors import Busy, ConfigurationError, OdpError, PrivacyError, StateError
from odp.v1 import secagg_service_pb2 as wire, secagg_state_pb2 as state, secure_aggregation_pb2 as messages
from trusted_aggregator.modes.secagg.clients import RETRY_SECONDS, STAGES, Member, Message, Phase, Told, ended, place_of
from trusted_aggregator.modes.secagg.journal import Journal
from trusted_aggregator.modes.secagg.limits import Memory, Pace, SessionLimits, session_bytes
from trusted_aggregator.rounds.host_half import Survivors

TOKEN_BYTES = 32
_POLL_SECONDS = 0.05
_OUTAGE_SECONDS = 60.0  # for which clients call a host that is away


class LiveSession:
    """One attempt of one round. Thread-safe.

    Args:
        configuration: what is summed.
        goal: the number of clients at which the session begins.
        patience: seconds after the first client at which it begins with at least the minimum.
        pace: how long the steps take.
        clock: seconds that only grow.
        roster: identities that may take part; None accepts any.
        limits: seats of one address.
        memory: of all sessions of the host.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        goal: int,
        patience: float,
        pace: Pace,
        clock: Callable[[], float],
        roster: Collection[bytes] | None = None,
        limits: SessionLimits | None = None,
        memory: Memory | None = None,
    ) -> None:
        self.configuration = configuration
        self._config_sha256 = hashlib.sha256(configuration.data).digest()
        self._roster = roster
        self._goal = min(goal, configuration.ring.maximum)
        self._pace, self._clock = pace, clock
        self._limits = SessionLimits() if limits is None else limits
        self._memory = Memory(self._limits.memory) if memory is None else memory
        self._reserved = 0
        self._changed = threading.Condition(threading.RLock())
        self._server: Server | None = Server(configuration, roster=roster, threads=self._limits.threads)
        self._members: dict[bytes, Member] = {}
        self._seats: Counter[str] = Counter()  # of each address
        self._told = Told()
        self._stage = Stage.ADVERTS
        self._patience = patience
        self._deadline = math.inf
        self._phase = Phase.RUNNING
        self._survivors = Survivors(0, bytes(32))
        self._awaited: set[bytes] = set()
        self._journal: Journal | None = None
        self._said = state.SecAggSaid()
        # Of a session that a restarted host goes on with: clients are coming back until then.
        self._restarted, self._grace = False, -math.inf
        self.reason = ""

    def resume(self, journal: Journal, *, restarted: bool) -> None:
        """Stores the session in ``journal`` from now on; goes on from what is stored there.

        ``restarted``: the host has died since clients were told of the session.
        """
        with self._changed:
            parts = journal.stored()
            try:
                for part in parts:
                    self._replay(part)
            except (OdpError, KeyError) as error:
                self.void(f"its stored state cannot be used: {error}")
            self._journal, self._restarted = journal, restarted
            if not parts or self._phase is Phase.VOID:
                return
            now = self._clock()
            self._grace = now + self._pace.silent
            # A clock that was set back since makes no stage longer than it ever was.
            whole = self._patience if self._stage is Stage.ADVERTS else self._deadline - now
            left = min(journal.seconds_left(parts[-1]), whole)
            self._deadline = now + (left if left < -_OUTAGE_SECONDS else max(left, self._pace.silent))
            for member in self._members.values():
                member.seen = -math.inf

    @property
    def phase(self) -> Phase:
        """The current phase, after all time limits that have passed."""
        with self._changed:
            self._move()
            return self._phase

    @property
    def gathering(self) -> bool:
        """Whether more clients may join."""
        with self._changed:
            self._move()
            return self._phase is Phase.RUNNING and self._stage is Stage.ADVERTS

    @property
    def survivors(self) -> Survivors:
        """Number of survivors of a session that is ready, or further."""
        with self._changed:
            return self._survivors

    @property
    def vector_bytes(self) -> int:
        """Length of every masked vector."""
        return self.configuration.length * self.configuration.ring.dtype.itemsize

    @property
    def connected(self) -> bool:
        """Whether enough of the clients that agreed are here to unmask; after a restart they have to come back."""
        with self._changed:
            return self._phase is not Phase.READY or self._clock() >= self._grace or self._enough_here()

    def holds(self, identity: bytes) -> bool:
        """Whether a client has a seat."""
        with self._changed:
            return identity in self._members

    def step(
        self, identity: bytes, token: bytes, message: Message | None, *, address: str = "", wait: float = 0.0
    ) -> wire.StepResponse | None:
        """Takes a client's message, if there is one; returns the next message for it, or None while it has to wait.

        The same message again changes nothing. Waits up to ``wait`` seconds for the answer. ``address`` is where the
        client connected from.

        Raises:
            ConfigurationError, PrivacyError, SignatureError: the message is refused; it changed nothing.
            Busy: clients of its address have their seats.
        """
        with self._changed:
            self._move()
            if self._phase is Phase.VOID:
                return ended(wire.SecAggEnd.REASON_VOIDED)
            member = self._member(identity, token, message, address)
            if member is None and message is None and self._restarted and self._stage is Stage.ADVERTS:
                return wire.StepResponse(wait=wire.SecAggWait(milliseconds=1, repeat=True))
            if member is None or member.left:
                return ended(wire.SecAggEnd.REASON_DROPPED)
            member.seen = self._clock()
            if message is not None:
                self._take(identity, member, message)
                self._move()
            if wait > 0.0 and self._answer(member) is None:
                left = self._deadline - self._clock() if self._phase is Phase.RUNNING else wait
                self._changed.wait_for(lambda: self._answer(member) is not None, max(min(wait, left), 0.0))
                member.seen = self._clock()
                self._move()
            return self._answer(member)

    def leave(self, identity: bytes, token: bytes) -> wire.StepResponse:
        """Drops a client: the session does not wait for it any more. Raises as ``step``."""
        with self._changed:
            if (member := self._member(identity, token, None, "")) is not None:
                member.left = True
                self._awaited.discard(identity)
                self._move()
                self._changed.notify_all()
            return ended(wire.SecAggEnd.REASON_DROPPED)

    def has_vector(self, identity: bytes, token: bytes) -> bool:
        """Whether this client's vector is in the sum."""
        with self._changed:
            member = self._members.get(identity)
            is_member = member is not None and hmac.compare_digest(member.token, token)
            return member is not None and is_member and place_of(member.last) >= place_of(Stage.MASKED)

    def require_may_send(self, identity: bytes, token: bytes) -> None:
        """Returns if this client may send its masked vector now. Raises PrivacyError."""
        with self._changed:
            self._move()
            member = self._members.get(identity)
            is_member = member is not None and hmac.compare_digest(member.token, token)
            if not is_member or self._stage is not Stage.MASKED or self._phase is not Phase.RUNNING:
                raise PrivacyError("the session expects no masked vector of this client now; request the session again")

    def require_ready(self) -> Survivors:
        """The set that can be unmasked now. Raises PrivacyError; a charge is then not allowed."""
        with self._changed:
            self._move()
            if not self.connected:
                raise Busy("clients of the session are coming back after a restart: try again", RETRY_SECONDS, 5.0)
            if self._phase is Phase.READY and not self._enough_here():
                self.void("too few of the clients that agreed are still connected")
            if self._phase not in (Phase.READY, Phase.UNMASKING):
                raise PrivacyError(f"no session of the round can be unmasked now: {self.reason or self._phase.value}")
            return self._survivors

    def allow_unmasking(self) -> None:
        """Confirms that the charge is stored: survivors then get what they need to unmask. Idempotent."""
        with self._changed:
            self._move()
            if self._phase is Phase.READY:
                self._deadline = self._clock() + self._pace.step
                self._keep(unmasking=state.SecAggUnmasking())
                self._phase = Phase.UNMASKING
                self._changed.notify_all()

    def finish(self) -> npt.NDArray[np.int64]:
        """The sum of the survivors' vectors, int64 [length], once enough of them sent shares.

        Raises PrivacyError where too few did, or somebody lied: then nobody can ever unmask this session.
        """
        with self._changed:
            while self._phase is Phase.UNMASKING and self._awaited and self._clock() < self._deadline:
                self._changed.wait(_POLL_SECONDS)
            if self._phase is not Phase.UNMASKING or self._server is None:
                raise PrivacyError(f"the session cannot be unmasked: {self.reason or self._phase.value}")
            try:
                total = self._server.finish()
            except OdpError as error:  # whatever it is: the round was charged, and must not wait for ever
                self.void(str(error))
                raise PrivacyError(f"the session cannot be unmasked: {error}") from error
            self._phase = Phase.OVER
            self._erase()
            return total

    def void(self, reason: str) -> None:
        """Ends the session without a sum, and erases the clients' messages. Idempotent."""
        with self._changed:
            if self._phase not in (Phase.VOID, Phase.OVER):
                self._phase, self.reason = Phase.VOID, reason
                self._erase()

    def _erase(self) -> None:
        self._server, self._told, self._awaited = None, Told(), set()
        self._memory.give(self._reserved)
        self._reserved = 0
        self._changed.notify_all()

    def _member(self, identity: bytes, token: bytes, message: Message | None, address: str) -> Member | None:
        if len(token) != TOKEN_BYTES:
            raise ConfigurationError(f"Expected a token of {TOKEN_BYTES} bytes, got {len(token)}")
        member = self._members.get(identity)
        if member is not None and hmac.compare_digest(member.token, token):
            return member
        advert = message if isinstance(message, messages.SecAggAdvert) and self._stage is Stage.ADVERTS else None
        if member is not None and advert is None:
            raise PrivacyError("another client of the session has this identity")
        if advert is None or self._server is None:
            return None
        if advert.identity != identity:
            raise PrivacyError("the advert is of another identity than its client's")
        if self._roster is not None and identity not in self._roster:
            raise PrivacyError("the client is not on the roster")
        check_advert(advert, self._config_sha256, name="the client")
        if member is not None:
            # A client that died lost the secrets of its advert. Its new one, which its identity signed, takes the seat.
            del self._members[identity]
            self._seats[member.address] -= 1
        if not self._has_seat(address):
            return None
        member = Member(token, advert, self._clock(), address=address)
        if not self._members and self._deadline == math.inf:
            self._deadline = member.seen + self._patience
            self._keep(gathering=state.SecAggGathering())
        self._members[identity] = member
        self._seats[address] += 1
        return member

    def _has_seat(self, address: str) -> bool:
        """Whether ``address`` has room for one more client; seats of silent clients become free first.

        Raises Busy where other clients of that address have its seats.
        """
        most = self._limits.seats(address)

        def taken() -> bool:
            return most is not None and self._seats[address] >= most

        full = len(self._members) >= self.configuration.ring.maximum
        if full or taken():
            here = set(self._here())
            self._members = {
                identity: member
                for identity, member in self._members.items()
                if identity in here or not (full or member.address == address)
            }
            self._seats = Counter(member.address for member in self._members.values())
        if taken():
            raise Busy(
                f"{most} clients of your address are in the session: try again after it, or have the "
                "host's operator raise --secagg-seats", RETRY_SECONDS, 2.0 * RETRY_SECONDS,
            )  # fmt: skip
        return len(self._members) < self.configuration.ring.maximum

    def _take(self, identity: bytes, member: Member, message: Message) -> None:
        stage = STAGES[type(message)]
        if self._server is None or place_of(stage) <= place_of(member.last):
            return
        if place_of(stage) != place_of(member.last) + 1:
            raise ConfigurationError("the client skipped a step")
        if stage is not self._stage or member.number < 0:
            return  # too late: the answer reports that
        if stage is Stage.UNMASKS and self._phase is not Phase.UNMASKING:
            raise PrivacyError("no request for shares was sent yet")
        server, number = self._server, member.number
        if isinstance(message, messages.SecAggReveal):
            server.reveal(number, message)
            self._said.reveals[number].CopyFrom(message)
        elif isinstance(message, messages.SecAggShares):
            server.share(number, message)
            self._said.shares[number].CopyFrom(message)
        elif isinstance(message, messages.SecAggMasked):
            server.masked(number, message)
        elif isinstance(message, messages.SecAggAgreement):
            server.agree(number, message)
            self._said.agreements[number].CopyFrom(message)
        elif isinstance(message, messages.SecAggUnmask):
            server.unmask(number, message)
            self._keep(unmasked=state.SecAggUnmasked(number=number, unmask=message))
        member.last = stage
        self._awaited.discard(identity)
        if stage is Stage.UNMASKS and not self._awaited:
            self._changed.notify_all()

    def _answer(self, member: Member) -> wire.StepResponse | None:
        """The next message for the client, or None while it has to wait."""
        if self._phase is Phase.VOID:
            return ended(wire.SecAggEnd.REASON_VOIDED)
        if member.last is Stage.UNMASKS or self._phase is Phase.OVER:
            late = member.last is not Stage.UNMASKS
            return ended(wire.SecAggEnd.REASON_DROPPED if late else wire.SecAggEnd.REASON_DONE)
        if self._stage is member.last:
            return None
        if member.number < 0 or place_of(self._stage) > place_of(member.last) + 1:
            return ended(wire.SecAggEnd.REASON_DROPPED)
        told, number = self._told, member.number
        if member.last is Stage.ADVERTS:
            return told.adverts
        if member.last is Stage.REVEALS:
            return told.reveals
        if member.last is Stage.SHARES:
            return wire.StepResponse(inbox=told.inboxes[number])
        if member.last is Stage.MASKED:
            return told.survivors
        if self._phase is not Phase.UNMASKING:
            return None
        return wire.StepResponse(agreements=told.agreements[number])

    def _move(self) -> None:
        """Ends every stage whose condition is met by now."""
        while self._phase is Phase.RUNNING and self._server is not None and self._is_over():
            try:
                self._end_step(self._server)
            except (TooFew, PrivacyError, StateError) as error:
                self.void(str(error))
                return
            self._changed.notify_all()

    def _is_over(self) -> bool:
        late = self._clock() >= self._deadline
        if self._stage is not Stage.ADVERTS:
            return late or not self._awaited
        here = len(self._here())
        if here < self._goal and not (late and here >= max(3, self.configuration.minimum)):
            return False
        return is_withstood(clients=here, threat=self.configuration.threat) and self._reserve(here)

    def _reserve(self, clients: int) -> bool:
        """Reserves the host's memory for a session with this number of clients; returns whether it was available."""
        if not self._reserved:
            needed = session_bytes(self.configuration, clients)
            self._reserved = needed if self._memory.take(needed) else 0
        return self._reserved > 0

    def _here(self) -> list[bytes]:
        alive = self._clock() - self._pace.silent
        return [identity for identity, member in self._members.items() if member.seen >= alive and not member.left]

    def _end_step(self, server: Server) -> None:
        """Ends a stage; that is stored before any client is told. Raises TooFew, PrivacyError, StateError."""
        told = self._told
        step: dict[str, Any] = {"said": self._said}
        if self._stage is Stage.ADVERTS:
            for identity in self._here():
                server.advertise(self._members[identity].advert)
            adverts = server.close_adverts()
            step = {"seats": state.SecAggSeats()}
            for number, advert in enumerate(adverts.adverts):
                self._members[advert.identity].number = number
                step["seats"].seats.add(advert=advert, token=self._members[advert.identity].token)
            told.adverts = wire.StepResponse(adverts=adverts)
            self._begin(Stage.REVEALS, {advert.identity for advert in adverts.adverts})
        elif self._stage is Stage.REVEALS:
            told.reveals = wire.StepResponse(reveals=server.close_reveals())
            self._begin(Stage.SHARES, self._who(Stage.REVEALS))
        elif self._stage is Stage.SHARES:
            told.inboxes = server.close_shares()
            self._begin(Stage.MASKED, self._who(Stage.SHARES))
        elif self._stage is Stage.MASKED:
            clients, total = server.summed()
            survivors = server.close_masked()
            step = {"summed": state.SecAggSummed(clients=clients, sum=total)}
            told.survivors = wire.StepResponse(survivors=survivors)
            signed = survivors_bytes(survivors.session, survivors.shared, survivors.survivors)
            self._survivors = Survivors(server.survivors, hashlib.sha256(signed).digest())
            self._begin(Stage.AGREEMENTS, self._who(Stage.MASKED))
        else:
            told.agreements = server.close_agreements()
            self._begin(Stage.UNMASKS, self._who(Stage.AGREEMENTS))
            self._phase = Phase.READY
        self._keep(**step)
        self._said.Clear()

    def _keep(self, **step: Any) -> None:
        if self._journal is not None:
            self._journal.add(self._deadline - self._clock(), **step)

    def _replay(self, part: state.SecAggPart) -> None:
        """Takes a stored part as it came. Raises OdpError, KeyError where it does not follow from those before."""
        kind, server = part.WhichOneof("step"), self._server
        if server is None:
            return
        if kind == "seats":
            self._members = {
                seat.advert.identity: Member(seat.token, seat.advert, self._clock()) for seat in part.seats.seats
            }
            if not self._reserve(len(self._members)):
                raise PrivacyError("the host has no memory left for it")
        who = {member.number: identity for identity, member in self._members.items()}
        if kind == "said":
            for said in (part.said.reveals, part.said.shares, part.said.agreements):
                for number in sorted(said):
                    self._take(who[number], self._members[who[number]], said[number])
        elif kind == "summed":
            server.restore_sum(part.summed.clients, part.summed.sum)
            for number in part.summed.clients:
                self._members[who[number]].last = Stage.MASKED
        elif kind == "unmasking":
            self._phase = Phase.UNMASKING
        elif kind == "unmasked":
            client = who[part.unmasked.number]
            self._take(client, self._members[client], part.unmasked.unmask)
        if kind in ("seats", "said", "summed"):
            self._end_step(server)

    def _enough_here(self) -> bool:
        here = len(self._awaited.intersection(self._here()))
        return self._server is not None and here >= self._server.session.parameters.threshold

    def _begin(self, stage: Stage, awaited: set[bytes]) -> None:
        self._stage = stage
        self._awaited = awaited
        self._deadline = self._clock() + (self._pace.vector if stage is Stage.MASKED else self._pace.step)

    def _who(self, stage: Stage) -> set[bytes]:
        members = self._members.items()
        return {identity for identity, member in members if member.last is stage and not member.left}
