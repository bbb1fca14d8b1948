"""Streams of DP-FTRL between their rounds: past sums and participations, sealed, and bound to the ledger in force.

Guarantee: round t of a stream is encoded with exactly the sums of the releases in force before it, and takes nobody who
may not come back yet. The state after round t names the release of round t by its hash, and the population's ledger,
which is bound to the platform's counters, says which release that was: any other state is refused, whether it is older
or of a copy of this enclave. Without its state a stream is over: what was charged stays charged.

A hand-over takes the states along: the successor gets the secrets of their slots inside the sealed package, and seals
the states under secrets of its own. The old ones are erased once it has taken over.

The state is stored together with the release that it follows. It is sealed under a secret of its own in an erasable
slot of the platform. A stream has two slots in turn, so that a death at any step leaves one state that can be read: the
slot of the state before is erased once the release is in force, and before its signature leaves. So what a stream needs
no more cannot be read by anybody, even from old copies of the host's files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from odp.algorithms.seam import StreamQuery
from odp.crypto import domains
from odp.errors import PopulationFull, PrivacyError, StateError
from odp.privacy.ledger_entry import ReleaseState
from odp.privacy.matrix.encoding import Encoder
from odp.privacy.matrix.sensitivity import ParticipationRecord
from odp.trust.enclave import sealing
from odp.trust.enclave.identity import EnclaveIdentity
from odp.v1 import hand_over_pb2
from trusted_aggregator.enclave.holdings import Holdings
from trusted_aggregator.enclave.opened_task import OpenedTask
from trusted_aggregator.rounds.enclave_half import Round
from trusted_aggregator.state import records as names
from trusted_aggregator.state.limits import MOST_STREAM_USERS, MOST_STREAMS
from trusted_aggregator.state.population import Population
from trusted_aggregator.state.records import SealedRecord, Writes
from trusted_aggregator.state.sealed_state import HASH_BYTES, Sealer


@dataclass(frozen=True)
class Position:
    """Where a stream stands: its next round, the release before it by its hash, and who was in the rounds so far."""

    round: int
    release_sha256: bytes
    record: ParticipationRecord


@dataclass(frozen=True)
class NextState:
    """The state after a round: what is kept in memory, None after the last one, and the host's writes."""

    position: Position | None
    writes: Writes


class Streams:
    """The streams of one enclave. Not thread-safe: its owner calls it under one lock."""

    def __init__(self, identity: EnclaveIdentity) -> None:
        self._identity = identity
        self._positions: dict[bytes, Position] = {}

    def participation(self, task: OpenedTask, round: int, population: Population) -> ParticipationRecord | None:
        """Who was in the rounds before ``round`` of a stream; None where the task is none.

        Raises PrivacyError where the stream cannot go on: its state is lost, or its record of users is full.
        """
        query = task.queries[round]
        if not isinstance(query, StreamQuery):
            return None
        if not round:
            return ParticipationRecord(query.allowed)
        position = self._positions.get(task.sha256)
        before = population.find(task.id, round - 1)
        if (
            position is None
            or before is None
            or before.state is not ReleaseState.SEALED
            or (position.round, position.release_sha256) != (round, before.release_sha256)
        ):
            raise self._ended(task, round)
        if len(position.record) + task.definition.cohort.minimum > MOST_STREAM_USERS:
            raise PrivacyError(
                f"the stream of {task.label} ended before round {round}: {len(position.record)} users took part, of at "
                f"most {MOST_STREAM_USERS}; submit a new task"
            )
        return position.record

    def require_room(self, task: OpenedTask, holdings: Holdings) -> None:
        """Returns if a new stream fits its population. Raises PopulationFull."""
        if not isinstance(task.queries[0], StreamQuery):
            return
        held = {round.task_sha256 for round in holdings.rounds()}
        others = [
            other
            for other in holdings.tasks_of(task.population)
            if other.sha256 != task.sha256 and (other.sha256 in self._positions or _is_stream(other, held))
        ]
        if len(others) >= MOST_STREAMS:
            raise PopulationFull(
                f"{task.label} cannot open a round: population {task.population!r} has {len(others)} streams under way,"
                f" of at most {MOST_STREAMS}; wait, or end a task of it"
            )

    def encoder(self, task: OpenedTask, round: Round, stored: bytes | None) -> Encoder | None:
        """The encoder for a charged round, from the record under ``stream_key``; None where the task is no stream.

        Raises StateError where the record is missing, changed, or not the one that the round before left.
        """
        query = task.queries[round.number]
        if not isinstance(query, StreamQuery):
            return None
        if not round.number:
            return query.encoder(wrapped=round.wraps)
        sealer, position = self._sealer(task.sha256, round.number), self._positions.get(task.sha256)
        if stored is None or sealer is None or position is None:
            raise StateError(
                f"the past sums of the stream of {task.label} are not stored: restore the newest state folder"
            )
        data = sealer.open(names.stream_key(task.sha256, round.number), stored)
        if position.round != round.number or data[:HASH_BYTES] != position.release_sha256:
            raise StateError(f"the past sums of the stream of {task.label} are outdated: restore the state folder")
        return query.encoder(wrapped=round.wraps, state=data[HASH_BYTES:])

    def after(self, task: OpenedTask, round: Round, encoder: Encoder | None, release_sha256: bytes) -> NextState | None:
        """The state after the release of a round that ``encoder`` has encoded; None where the task is no stream.

        The state before stays readable. Raises StateError where the platform cannot store the new secret.
        """
        if encoder is None or round.participation is None:
            return None
        number = round.number + 1
        old = tuple(SealedRecord(key, None) for key in _keys(task.sha256, round.number))
        if number == task.planned:
            return NextState(None, old)
        record = round.participation.after(round.number, round.participants())
        sealer = self._new_sealer(task.sha256, number)
        participation, stream = _keys(task.sha256, number)
        written = (
            sealer.seal(participation, release_sha256 + record.to_bytes()),
            sealer.seal(stream, release_sha256 + encoder.to_bytes()),
        )
        return NextState(Position(number, release_sha256, record), (*written, *old))

    def move(self, task_sha256: bytes, state: NextState | None) -> None:
        """Puts the stream after a round whose release is sealed."""
        if state is None:
            return
        if state.position is None:
            self._positions.pop(task_sha256, None)
        else:
            self._positions[task_sha256] = state.position

    def end(self, tasks: Iterable[bytes]) -> Writes:
        """Drops the streams of these tasks; returns what the host has to erase. Their secrets go with ``erase``."""
        ended = [(task, self._positions.pop(task)) for task in tasks if task in self._positions]
        return tuple(SealedRecord(key, None) for task, position in ended for key in _keys(task, position.round))

    def erase(self, tasks: Collection[bytes]) -> None:
        """Erases the secrets of what the streams of these tasks need no more. Idempotent.

        Raises StateError if that fails.
        """
        names_of = []
        for task in tasks:
            position = self._positions.get(task)
            current = None if position is None else position.round % 2
            names_of += [_slot(task, turn) for turn in range(2) if turn != current]
        if names_of:
            self._identity.guest.slots.erase(names_of)

    def restore(
        self, records: Mapping[str, bytes], populations: Mapping[str, Population], holdings: Holdings
    ) -> Writes:
        """Takes up the streams of tasks that are held; returns what the host has to erase of others.

        Raises StateError where a record was changed.
        """
        erased: list[SealedRecord] = []
        for key, data in records.items():
            if not key.startswith(names.PARTICIPATION_PREFIX):
                continue
            sha256, round = names.task_and_round(key)
            sealer = self._sealer(sha256, round)
            if not self.take_up(key, b"" if sealer is None else sealer.open(key, data), populations, holdings):
                erased += [SealedRecord(name, None) for name in (key, names.stream_beside(key))]
        return tuple(erased)

    def take_up(
        self, key: str, participation: bytes, populations: Mapping[str, Population], holdings: Holdings
    ) -> bool:
        """Whether a stream goes on from the plaintext of its record ``key``; it is the newest of a held task then."""
        sha256, round = names.task_and_round(key)
        task = holdings.task(sha256)
        position = None if task is None else _position(task, round, participation, populations[task.population])
        if position is not None:
            self._positions[sha256] = position
        return position is not None

    def secrets(self) -> hand_over_pb2.StreamSecrets:
        """What opens the records of all streams, besides the sealing key."""
        secrets = hand_over_pb2.StreamSecrets()
        for task, position in sorted(self._positions.items()):
            if (secret := self._identity.guest.slots.read(_slot(task, position.round % 2))) is not None:
                secrets.streams.add(task_sha256=task, round=position.round, secret=secret)
        return secrets

    def resealed(self, key: str, plaintext: bytes) -> SealedRecord:
        """A record of a predecessor's stream, for this enclave. Raises StateError where the platform cannot store."""
        task, round = names.task_and_round(key)
        sealer = self._sealer(task, round)
        return (self._new_sealer(task, round) if sealer is None else sealer).seal(key, plaintext)

    def erase_taken(self, tasks: Iterable[bytes]) -> None:
        """Erases the secrets of streams that a successor goes on with. Raises StateError if that fails."""
        gone = [task for task in tasks if self._positions.pop(task, None) is not None]
        self.erase(gone)

    def _ended(self, task: OpenedTask, round: int) -> PrivacyError:
        return PrivacyError(
            f"the stream of {task.label} ended before round {round}: its sealed state is lost; submit a new task, "
            "whose stream is charged on its own"
        )

    def _new_sealer(self, task_sha256: bytes, round: int) -> Sealer:
        return self._derived(self._identity.guest.slots.create(_slot(task_sha256, round % 2)))

    def _sealer(self, task_sha256: bytes, round: int) -> Sealer | None:
        secret = self._identity.guest.slots.read(_slot(task_sha256, round % 2))
        return None if secret is None else self._derived(secret)

    def _derived(self, secret: bytes) -> Sealer:
        return stream_sealer(self._identity.sealing_key, secret)


def stream_sealer(sealing_key: bytes, secret: bytes) -> Sealer:
    """The sealer for the records of a stream before one round, under the secret of its slot."""
    derived = HKDF(hashes.SHA384(), length=sealing.KEY_BYTES, salt=secret, info=domains.STREAM_SEALING)
    return Sealer(derived.derive(sealing_key))


def _slot(task_sha256: bytes, turn: int) -> str:
    return hashlib.sha256(b"odp stream %d " % turn + task_sha256).hexdigest()


def _keys(task_sha256: bytes, round: int) -> tuple[str, str]:
    return names.participation_key(task_sha256, round), names.stream_key(task_sha256, round)


def _is_stream(task: OpenedTask, held: Collection[bytes]) -> bool:
    """Whether a task without a position is in the first round of its stream."""
    return task.sha256 in held and isinstance(task.queries[0], StreamQuery)


def _position(task: OpenedTask, round: int, plaintext: bytes, population: Population) -> Position | None:
    """The position of a record; None where the stream is over, or the record is not the newest of it."""
    before, now = population.find(task.id, round - 1), population.find(task.id, round)
    query = task.queries[round] if 0 < round < task.planned else None
    if (
        before is None
        or before.state is not ReleaseState.SEALED
        or before.release_sha256 != plaintext[:HASH_BYTES]
        or (now is not None and now.state is not ReleaseState.CHARGED)
        or not isinstance(query, StreamQuery)
    ):
        return None
    record = ParticipationRecord.from_bytes(query.allowed, plaintext[HASH_BYTES:])
    return Position(round, before.release_sha256, record)
