"""The host's rounds of SecAgg+: one session after another until one of them is unmasked.

A round has one session at a time. One that is void is followed by the next attempt; the number of the attempt is on the
disk before a client gets it, and each stage before clients hear of its end (``journal.py``): a host that died goes on
with the same session, or, where nobody was told who is in it, gathers clients for the same attempt again. A round has
four attempts, over restarts: if all of them ended without a sum, the round has failed, and every query about it gets
that error. The first attempt gathers clients for as long as the round is open. A later one ends where too few come for
some minutes: whoever made a vector joins no further session, so that the devices of the round may be used up.

At most one session of a round is unmasked: ``take_sum`` is called for a charged round, and what was charged names the
session. A charged session that cannot be unmasked any more leaves its round without a release.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

import numpy as np

from odp._system.files.state_folder import StateFolder
from odp.algorithms.cohorts import goal_of
from odp.algorithms.dense.query import DenseQuery
from odp.algorithms.dense.shares import secagg_config
from odp.algorithms.registry import algorithm_for
from odp.crypto.roster import hash_of
from odp.crypto.secure_aggregation.parameters import MOST_ATTEMPTS
from odp.crypto.secure_aggregation.session import Configuration
from odp.crypto.secure_aggregation.terms import is_secagg
from odp.errors import Busy, ConfigurationError, PrivacyError, StateError
from odp.signed.task import open_task, task_sha256
from odp.transport.logs import Log, short
from odp.transport.service import NotFound
from odp.trust.enrolment.token_key import TokenKey
from odp.v1 import aggregator_pb2, common_pb2
from trusted_aggregator.boundary.interface import HostSum, ordered
from trusted_aggregator.modes.secagg.clients import Phase
from trusted_aggregator.modes.secagg.journal import Journal, Parts
from trusted_aggregator.modes.secagg.limits import MEBIBYTE, Memory, Pace, SessionLimits, session_bytes
from trusted_aggregator.modes.secagg.session import LiveSession
from trusted_aggregator.rounds.enclave_half import key_of
from trusted_aggregator.rounds.host_half import Key, Survivors, read_attempts, write_attempts

#: Rounds that are open at a host, at most; each has one session at a time.
MOST_ROUNDS = 256
_LATER_SECONDS = (10.0, 60.0)
# How long an attempt after the first gathers clients: at least so many seconds, and so many times of a round.
_GATHER_SECONDS, _GATHER_ROUNDS = 600.0, 4
_FILE = "secagg-{task}-{round}"
_ATTEMPT_BYTES = 4


@dataclass
class _Open:
    """An open round, and its newest session."""

    definition: common_pb2.TaskDefinition
    order: aggregator_pb2.RoundOrder
    request: bytes
    attempt: int
    #: The attempt is of a host that died since: its session goes on.
    restarted: bool = False
    token_key: TokenKey | None = None
    session: LiveSession | None = None
    #: When the session ends if it still gathers, on the host's clock.
    gathers_until: float = math.inf
    #: At the enclave, too: no session begins before.
    ready: bool = False
    charged: bool = False
    #: Why the newest session ended without a sum, and why none follows; one line each.
    reason: str = ""
    failure: str = ""
    closing: threading.Lock = field(default_factory=threading.Lock)


class SecAggRounds:
    """All rounds of SecAgg+ of a host. Thread-safe.

    Args:
        state: keeps, for each round, what opened it and the number of its newest attempt.
        parts: keeps the newest session of each round.
        log: where attempts go.
        pace: how long the steps of a session take.
        clock: seconds that only grow.
        wall: seconds since the epoch.
        rosters: lists of identities; of a task that names one by its hash, only these may take part. Of one that
            names none, or a list that is not here, anybody may: its devices decide for themselves.
        limits: what sessions may take of the host.
    """

    def __init__(
        self,
        state: StateFolder,
        parts: Parts,
        log: Log,
        *,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        rosters: Collection[Collection[bytes]] = (),
        limits: SessionLimits | None = None,
    ) -> None:
        self._limits = SessionLimits() if limits is None else limits
        self._held_until = -math.inf
        self._memory = Memory(self._limits.memory, held=self._is_held)
        self._state, self._parts, self._log = state, parts, log
        self._pace = Pace() if pace is None else pace
        self._clock, self._wall = clock, wall
        self._rosters = {hash_of(roster): frozenset(roster) for roster in rosters}
        self._lock = threading.Lock()
        self._rounds: dict[Key, _Open] = {}

    def keep(self, key: Key, request: aggregator_pb2.OpenRoundRequest) -> bool:
        """Stores a round that is about to be opened, if it is of SecAgg+; returns whether it is new.

        Raises Busy where too many rounds are open here.
        """
        definition = open_task(request.task)
        if not is_secagg(definition):
            return False
        with self._lock:
            if key in self._rounds:
                return False
            if sum(not opened.failure for opened in self._rounds.values()) >= MOST_ROUNDS:
                raise Busy(f"{MOST_ROUNDS} rounds of SecAgg+ are open here: try again later", *_LATER_SECONDS)
            data = request.SerializeToString()
            used = {
                (attempted.task_sha256, attempted.round): attempted.attempts for attempted in read_attempts(self._state)
            }
            attempt = used.get(key, 0) - 1
            self._write(key, data, attempt=attempt)
            self._rounds[key] = _opened(definition, request, data, attempt=attempt)
        return True

    def hold(self, seconds: float) -> None:
        """Lets no session begin for some time; those that began go on, and others go on gathering."""
        self._held_until = self._clock() + seconds

    def clients_under_way(self, key: Key) -> int:
        """Known clients of a session that began, at least 1: what they sent cannot be called back. 0 without one."""
        with self._lock:
            opened = self._rounds.get(key)
            if opened is None or opened.failure:
                return 0
        session = self._current(key)
        under_way = session is not None and session.phase not in (Phase.VOID, Phase.OVER) and not session.gathering
        return max(session.survivors.clients, 1) if session is not None and under_way else 0

    def _is_held(self) -> bool:
        return self._clock() < self._held_until

    def keep_attempts(self) -> None:
        """Stores the number of the next session of each round, which outlives the round. Raises StateError."""
        used_attempts = {(used.task_sha256, used.round): used.attempts for used in read_attempts(self._state)}
        with self._lock:
            for key, opened in self._rounds.items():
                gathers = opened.session is not None and opened.session.gathering
                used_attempts[key] = opened.attempt + (not gathers)
        write_attempts(
            self._state,
            [
                aggregator_pb2.UsedAttempts(task_sha256=task, round=round, attempts=max(attempts, 0))
                for (task, round), attempts in list(used_attempts.items())[-MOST_ROUNDS:]
            ],
        )

    def opened(self, key: Key) -> None:
        """Marks the round as open at the enclave: its sessions may begin."""
        with self._lock:
            if key in self._rounds:
                self._rounds[key].ready = True

    def restore(self, key: Key, *, charged: bool = False) -> None:
        """Restores a round that is open or charged at the enclave from the state folder. Raises StateError."""
        if (data := self._state.read(_name(key))) is None:
            return
        try:
            attempt = int.from_bytes(data[:_ATTEMPT_BYTES], "big") - 1
            request = aggregator_pb2.OpenRoundRequest.FromString(data[_ATTEMPT_BYTES:])
            opened = _opened(open_task(request.task), request, data[_ATTEMPT_BYTES:], attempt=attempt)
            opened.ready, opened.charged, opened.restarted = True, charged, attempt >= 0
        except Exception as error:
            raise StateError(f"{_name(key)} of the state folder is damaged; restore the state folder") from error
        with self._lock:
            self._rounds[key] = opened

    def keep_only(self, keys: Collection[Key]) -> None:
        """Erases the stored state of all other rounds."""
        names = {_name(key) for key in keys}
        for path in self._state.root.glob(_FILE.format(task="*", round="*")):
            if path.name not in names:
                path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def closing(self, key: Key) -> Iterator[None]:
        """Held while a round closes: a second caller waits, and then finds it closed."""
        with self._lock:
            opened = self._rounds.get(key)
        if opened is None:
            yield
            return
        with opened.closing:
            yield

    def token_key(self, key: Key) -> TokenKey | None:
        """The key of the round's tokens, checked by the enclave; None if anybody may join. Raises NotFound."""
        with self._lock:
            opened = self._rounds.get(key)
            if opened is None or not opened.ready:
                raise _not_here(key)
            return opened.token_key

    def holds(self, key: Key) -> bool:
        """Whether the round is open here and of SecAgg+."""
        with self._lock:
            return key in self._rounds

    def join(self, key: Key) -> bytes | None:
        """The configuration of the session that gathers clients now; None if there is none.

        Raises NotFound where the round is not open here.
        """
        session = self._current(key)
        return session.configuration.data if session is not None and session.gathering else None

    def session(self, key: Key, attempt: int) -> LiveSession | None:
        """The session with this number; None if it is over. Raises NotFound."""
        session = self._current(key)
        return session if session is not None and session.configuration.attempt == attempt else None

    def failure(self, key: Key) -> str:
        """Why the round can never have a sum, in one line; empty while it can. Raises NotFound."""
        self._current(key)
        with self._lock:
            opened = self._rounds.get(key)
            return "" if opened is None else opened.failure

    def survivors(self, key: Key) -> int:
        """Number of vectors that the round's session can unmask; 0 before it is ready.

        Raises PrivacyError where the round has failed: it never has a sum.
        """
        if failure := self.failure(key):
            raise PrivacyError(failure)
        session = self._current(key)
        if session is None or session.phase not in (Phase.READY, Phase.UNMASKING) or not session.connected:
            return 0
        return session.survivors.clients

    def require_ready(self, key: Key) -> Survivors:
        """The set that the round's session can unmask. Raises PrivacyError if it cannot."""
        if (session := self._current(key)) is None:
            raise PrivacyError(f"round {key[1]} has no session that can be unmasked now")
        return session.require_ready()

    def take_sum(self, key: Key, survivors: Survivors | None) -> HostSum:
        """Unmasks the charged session; returns its sum, noise included: int64 little-endian.

        ``survivors`` is None where the host started again after the charge.

        Raises PrivacyError where it is gone, or fails: then the round has no release.
        """
        session = self._current(key)
        with self._lock:
            opened = self._rounds.get(key)
            if opened is None or session is None or opened.session is not session:
                raise void(key[1], "its session is gone")
            if survivors not in (None, session.survivors) or session.phase not in (Phase.READY, Phase.UNMASKING):
                raise void(key[1], session.reason or "its session is gone")
            opened.charged = True
        session.allow_unmasking()
        try:
            total = session.finish()
        except PrivacyError as error:
            self._parts.erase(*key)
            raise void(key[1], str(error)) from error
        return HostSum(np.ascontiguousarray(total, dtype="<i8").tobytes(), session.survivors.set_sha256)

    def forget(self, key: Key) -> None:
        """Deletes a round that is released, or was not opened. Idempotent."""
        with self._lock:
            opened = self._rounds.pop(key, None)
            if opened is not None and opened.session is not None:
                opened.session.void("the round is over")
            if opened is not None:
                self._parts.erase(*key)
            self._state.path(_name(key)).unlink(missing_ok=True)

    def _current(self, key: Key) -> LiveSession | None:
        """The newest session; a new one if there is none or the last is void; None if the attempts are used up."""
        with self._lock:
            if (opened := self._rounds.get(key)) is None:
                raise _not_here(key)
            session = opened.session
            if session is not None and self._clock() >= opened.gathers_until and session.gathering:
                session.void("too few devices came to it: one that made its vector joins no further session")
            if session is not None and (opened.charged or session.phase is not Phase.VOID):
                return session
            if session is not None:
                self._log.warning("secagg_void", task=short(key[0]), round=key[1], reason=session.reason)
                opened.session, opened.reason = None, session.reason
            if opened.failure or not opened.ready or (self._is_held() and not opened.restarted):
                return None
            if not opened.restarted:
                # Its number first: what is erased after it is of no session any more.
                opened.attempt += 1
                self._write(key, opened.request, attempt=opened.attempt)
                if opened.attempt:
                    self._parts.erase(*key)
            if opened.attempt >= MOST_ATTEMPTS:
                self._fail(key, opened, _used_up(key[1], opened.reason))
                return None
            opened.session = self._begin(key, opened)
            if opened.session is not None:
                journal = Journal(self._parts, key, opened.attempt, wall=self._wall)
                opened.session.resume(journal, restarted=opened.restarted)
                if opened.charged and opened.session.phase not in (Phase.READY, Phase.UNMASKING):
                    opened.session.void("its session is gone")
            opened.restarted = False
            return opened.session

    def _fail(self, key: Key, opened: _Open, failure: str) -> None:
        opened.failure = failure
        self._log.error("secagg_failed", task=short(key[0]), round=key[1], reason=failure)

    def _begin(self, key: Key, opened: _Open) -> LiveSession | None:
        query = algorithm_for(opened.definition).query(key[1])
        if not isinstance(query, DenseQuery):
            raise ConfigurationError("Expected dense contributions for aggregation='secagg+'")
        cohort = opened.definition.cohort
        goal = goal_of(cohort, key[1])
        configuration = Configuration.open(
            secagg_config(
                opened.definition, query=query, task_sha256=key[0], round=key[1],
                model_sha256=opened.order.model_sha256, attempt=opened.attempt,
            )
        )  # fmt: skip
        needed = session_bytes(configuration, min(goal, configuration.ring.maximum))
        if needed > self._limits.session_memory:
            self._fail(key, opened, _too_large(key[1], needed, self._limits.session_memory))
            return None
        named = cohort.secagg.roster_sha256
        roster = self._rosters.get(named)
        if named and roster is None:
            self._log.warning("secagg_roster_missing", task=short(key[0]), roster=named.hex())
        gathering = max(_GATHER_SECONDS, _GATHER_ROUNDS * float(cohort.round_seconds)) if opened.attempt else math.inf
        opened.gathers_until = self._clock() + gathering
        self._log.event("secagg_gathers", task=short(key[0]), round=key[1], attempt=opened.attempt)
        return LiveSession(
            configuration, goal=goal, patience=float(cohort.round_seconds), pace=self._pace, clock=self._clock,
            roster=roster, limits=self._limits, memory=self._memory,
        )  # fmt: skip

    def _write(self, key: Key, request: bytes, *, attempt: int) -> None:
        self._state.write_atomically(_name(key), (attempt + 1).to_bytes(_ATTEMPT_BYTES, "big") + request)


@contextlib.contextmanager
def kept(rounds: SecAggRounds, request: aggregator_pb2.OpenRoundRequest) -> Iterator[None]:
    """Wraps the opening of a round: stores the round before it, and deletes it if the opening is refused.

    Raises ConfigurationError, SignatureError where task or order are malformed.
    """
    key = task_sha256(request.task), ordered(request.order)[1]
    new = rounds.keep(key, request)
    try:
        yield
    except BaseException:
        if new:
            rounds.forget(key)
        raise
    rounds.opened(key)


def _opened(
    definition: common_pb2.TaskDefinition, request: aggregator_pb2.OpenRoundRequest, data: bytes, *, attempt: int
) -> _Open:
    stated = key_of(request.token_key) if request.HasField("token_key") else None
    return _Open(definition, aggregator_pb2.RoundOrder.FromString(request.order), data, attempt, token_key=stated)


def _not_here(key: Key) -> NotFound:
    return NotFound(f"round {key[1]} of task {short(key[0])} is not open here for SecAgg+")


def _name(key: Key) -> str:
    return _FILE.format(task=key[0].hex(), round=key[1])


def _used_up(round: int, reason: str) -> str:
    last = f" (the last: {reason})" if reason else ""
    return (
        f"round {round} has failed: its {MOST_ATTEMPTS} sessions ended without a sum{last}; it has no "
        "release; find the cause, and submit a new task"
    )


def _too_large(round: int, needed: int, most: int) -> str:
    return (
        f"round {round} has failed: a session of its goal needs {math.ceil(needed / MEBIBYTE)} MiB of memory, and this "
        f"host has {most // MEBIBYTE} for one session; lower the goal, or have its operator raise --secagg-memory"
    )


def void(round: int, why: str) -> PrivacyError:
    """The error for a charged round that has no sum."""
    return PrivacyError(f"round {round} is void: {why}; its charge stays, submit a new task")
