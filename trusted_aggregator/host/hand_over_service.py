"""The old host's half of a hand-over: it closes rounds first, then the enclave names its successor, durably.

The successor's host asks until it gets the package. From its first question on, no further round is opened here and no
session of devices begins; when it stops asking for a minute, both go on, unless the populations were handed over by
then. On its word, open rounds end as void, but for those with a session under way.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping

from google.protobuf.message import DecodeError

from odp._system.files.state_folder import StateFolder
from odp.errors import Busy, PrivacyError, StateError
from odp.transport.logs import Log
from odp.v1 import aggregator_enclave_pb2, aggregator_pb2, hand_over_pb2
from trusted_aggregator.boundary.calls import AggregatorCalls
from trusted_aggregator.boundary.interface import Status
from trusted_aggregator.host.changes import Changes
from trusted_aggregator.host.rounds import HostedRounds
from trusted_aggregator.host.storage import Storage
from trusted_aggregator.modes.hosting import HostModes
from trusted_aggregator.rounds.host_half import Key, read_attempts
from trusted_aggregator.state.records import (
    LEDGER_PREFIX,
    LEDGER_STATE_PREFIX,
    PARTICIPATION_PREFIX,
    POPULATION_PREFIX,
    RELEASE_PREFIX,
    STREAM_PREFIX,
    TASK_PREFIX,
    piece_key,
    release_of,
)

#: How long after the last question of a successor's host no round is opened.
PAUSE_SECONDS = 60.0

#: File of a state folder: a GetHandOversResponse.
HISTORY = "hand-overs"

#: File of the state folder of a tree's root: 32 bytes by which its leaves know it.
ROOT_NAME = "root-name"

_HANDED = (
    POPULATION_PREFIX, LEDGER_PREFIX, LEDGER_STATE_PREFIX, RELEASE_PREFIX, TASK_PREFIX, PARTICIPATION_PREFIX,
    STREAM_PREFIX,
)  # fmt: skip
_PAGE_BYTES = 2**20
_MOST_PIECES = 999_999
# When a server comes back whose round is not opened now.
_RETRY_SECONDS = (2.0, 10.0)


class HandOverService:
    """The calls of a successor's host. ``clock`` gives seconds that never go back."""

    def __init__(
        self,
        core: AggregatorCalls,
        storage: Storage,
        state: StateFolder,
        changes: Changes,
        log: Log,
        modes: HostModes,
        *,
        rounds: HostedRounds,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._core, self._storage, self._state, self._changes = core, storage, state, changes
        self._log, self._modes, self._rounds, self._clock = log, modes, rounds, clock
        self._asked = float("-inf")
        self._given = False

    def require_open(self) -> None:
        """Returns if a round may be opened now. Raises Busy while a successor waits for open rounds."""
        if self._clock() - self._asked < PAUSE_SECONDS:
            raise Busy("the aggregator is being upgraded: no round is opened now; try again later", *_RETRY_SECONDS)

    def draw_nonce(self) -> bytes:
        """A nonce for the evidence of a successor. Raises StateError as ``Changes.turn``."""
        with self._changes.turn():
            return self._core.ask_nonce(aggregator_enclave_pb2.AskNonce()).nonce

    def hand_over(self, request: hand_over_pb2.HandOverRequest) -> hand_over_pb2.HandOverResponse:
        """The package, or the number of rounds that have to close first. Raises as ``HandOver.begin_hand_over``."""
        # Leaves may be slow to answer: nothing else waits for them.
        uncounted = {key: self._modes.of(key).uncounted(key) for key in self._open_rounds()}
        stays = {key for key, waits in uncounted.items() if waits and not request.void_rounds}
        with self._changes.turn(), self._holding_sessions():
            stays |= {key for key in self._open_rounds() if not self._modes.of(key).can_be_void(key)}
            before = self._rounds.held()
            # Of some contributions the enclave knows nothing yet.
            writes = () if stays else self._core.begin_hand_over(request).records
            self._asked = self._clock()
            if not writes:
                return hand_over_pb2.HandOverResponse(waiting=self._waiting(stays, uncounted))
            self._modes.keep_attempts()
            self._changes.settle(writes)
            package = self._core.finish_hand_over(request)
            self._given = True
            self._rounds.erase_ended(before)
        statement = hand_over_pb2.HandOverStatement.FromString(package.hand_over.statement)
        self._log.event(
            "handed_over", successor=statement.successor_image, populations=len(statement.populations),
            void_rounds=len(before),
        )  # fmt: skip
        return hand_over_pb2.HandOverResponse(package=package)

    def records(self, request: aggregator_pb2.GetHandedRecordsRequest) -> aggregator_pb2.GetHandedRecordsResponse:
        """A page of the sealed records that were handed over. Raises PrivacyError before a hand-over."""
        if not self._given:
            raise PrivacyError("there was no hand-over since the start of this program: request it again")
        reply, size = aggregator_pb2.GetHandedRecordsResponse(), 0
        if request.offset:
            rest = (self._record(request.after) or b"")[request.offset :]
            reply.records.add(key=request.after, data=rest[:_PAGE_BYTES], unfinished=len(rest) > _PAGE_BYTES)
            return reply
        for key, data in self._handed(request.after):
            if reply.records and size + len(data) > _PAGE_BYTES:
                break
            unfinished = len(data) > _PAGE_BYTES
            reply.records.add(key=key, data=data[:_PAGE_BYTES], unfinished=unfinished)
            size += len(data)
            if unfinished:
                break
        return reply

    def _record(self, key: str) -> bytes | None:
        """A record that goes along; None for all others."""
        return self._storage.record(key) if key.startswith(_HANDED) else None

    def _handed(self, after: str) -> Iterator[tuple[str, bytes]]:
        """The records above ``after``, then the pieces of releases, by ascending key."""
        for key in self._storage.keys(after=after):
            if (data := self._record(key)) is not None:
                yield key, data
        for key in self._storage.keys(after=RELEASE_PREFIX):
            record = self._storage.record(key) if key.startswith(RELEASE_PREFIX) else None
            if record is None or piece_key(key, _MOST_PIECES) <= after:
                continue
            first = int(after.rpartition("/")[2]) + 1 if release_of(after) == key else 0
            for number, piece in enumerate(self._storage.pieces(record, first=first), first):
                yield piece_key(key, number), piece

    def history(self) -> aggregator_pb2.GetHandOversResponse:
        """The hand-overs that led to this enclave, oldest first, and what its host had to remember."""
        history = read_history(self._state)
        history.root_name = self._state.read(ROOT_NAME) or b""
        history.attempts.extend(read_attempts(self._state))
        return history

    @contextlib.contextmanager
    def _holding_sessions(self) -> Iterator[None]:
        """Holds the sessions of clients from here on, unless the enclave refuses the successor: it holds nobody up."""
        self._modes.hold_sessions(PAUSE_SECONDS)
        try:
            yield
        except BaseException:
            self._modes.hold_sessions(PAUSE_SECONDS - (self._clock() - self._asked))
            raise

    def _open_rounds(self) -> list[Key]:
        return [(each.task_sha256, each.round) for each in self._core.round_states() if each.status is Status.OPEN]

    def _waiting(self, stays: Collection[Key], uncounted: Mapping[Key, int]) -> hand_over_pb2.WaitingRounds:
        """What has to close: rounds with contributions, and ``stays``; ``uncounted`` the enclave does not know of."""
        states = {(state.task_sha256, state.round): state for state in self._core.round_states()}
        held = {key: state for key, state in states.items() if state.status is not Status.VOID}
        final = {
            key
            for key, state in held.items()
            if state.status is not Status.OPEN or not self._modes.of(key).can_be_void(key)
        }
        counts = {key: max(state.contributions, uncounted.get(key, 0)) for key, state in held.items()}
        waiting = {key for key in held if counts[key] or key in stays or key in final}
        return hand_over_pb2.WaitingRounds(
            rounds=len(waiting), contributions=sum(counts[key] for key in waiting), unvoidable=len(final)
        )


def read_history(state: StateFolder) -> aggregator_pb2.GetHandOversResponse:
    """The hand-overs that led to the enclave of a state folder, oldest first. Raises StateError."""
    try:
        return aggregator_pb2.GetHandOversResponse.FromString(state.read(HISTORY) or b"")
    except DecodeError:
        raise StateError(f"{state.path(HISTORY)} is damaged: restore the state folder") from None


def last_successor(state: StateFolder) -> str:
    """The code that took the state of a folder over last; empty where none did. Raises StateError."""
    done = read_history(state).hand_overs
    return hand_over_pb2.HandOverStatement.FromString(done[-1].statement).successor_image if done else ""
