"""The signed release of a round, and noise and releases that are too long for one message.

Long ones leave the enclave, and come back, in sealed pieces. A record of the host then has no numbers, but the key of
their pieces: 32 random bytes, drawn for these numbers alone. So pieces are as safe as their record: those of noise
cannot be opened once the round's secret is erased, those of a release not before it is in force, and the pieces of two
records cannot be mixed.

The enclave holds the numbers once each way, and seals or opens a piece of 1 MiB at a time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from odp.algorithms.declared import DeclaredRelease, TensorCharge
from odp.algorithms.release import charge_of, is_detached, release_bytes
from odp.crypto import domains
from odp.crypto.hpke import DecryptionError
from odp.crypto.segments import SEGMENT_BYTES, open_segment, seal_segment
from odp.crypto.signing import SigningKey
from odp.errors import Refusal, StateError
from odp.numerics.arrays import Int64Array
from odp.privacy.events import releases_of
from odp.privacy.ledger_entry import Entry
from odp.privacy.ledger_events import CoveredRelease, LedgerEvent
from odp.privacy.local_events import LocalReport
from odp.privacy.matrix.encoding import Encoder
from odp.v1 import aggregator_enclave_pb2, common_pb2, stored_release_pb2
from trusted_aggregator.boundary.interface import HostSum, Status
from trusted_aggregator.enclave.state import EnclaveState
from trusted_aggregator.rounds.enclave_half import Round
from trusted_aggregator.state.records import SealedRecord, noise_key, release_key
from trusted_aggregator.state.sealed_state import HASH_BYTES, RoundNoise, Sealer

_KEY_BYTES = 32


class Leaving:
    """Numbers on their way to the host, under the record ``key``."""

    def __init__(self, key: str, arrays: Sequence[Int64Array]) -> None:
        self.key = key
        self.secret = os.urandom(_KEY_BYTES)
        self._views = [np.ascontiguousarray(array, dtype="<i8").data.cast("B") for array in arrays]
        self.pieces = -(-sum(map(len, self._views)) // SEGMENT_BYTES)
        self._next = 0

    @property
    def is_over(self) -> bool:
        """Whether every piece was taken."""
        return self._next == self.pieces

    def take(self, number: int) -> bytes:
        """Piece ``number``, sealed. Raises StateError unless it is the next one."""
        if number != self._next or self.is_over:
            raise StateError(f"piece {number} of {self.key!r} is not the next one: start the program again")
        self._next += 1
        return seal_segment(self.secret, self._plain(number * SEGMENT_BYTES), number, last=self.is_over)

    def _plain(self, start: int) -> bytes:
        piece = bytearray()
        for view in self._views:
            piece += view[start : start + SEGMENT_BYTES - len(piece)]
            start = max(0, start - len(view))
        return bytes(piece)


class Arriving:
    """Numbers on their way back from the host, under one record; ``size`` is their length in bytes."""

    def __init__(self, record: bytes, secret: bytes, size: int) -> None:
        self.record = record
        self._secret = secret
        self._data = bytearray(size)
        self._pieces = -(-size // SEGMENT_BYTES)
        self._next = 0

    def give(self, number: int, sealed: bytes) -> None:
        """Takes piece ``number``. Raises StateError unless it is the next one, as it left."""
        if number != self._next or number >= self._pieces:
            raise StateError(f"piece {number} of the noise is not the next one: start the program again")
        try:
            data = open_segment(self._secret, sealed, number, last=number == self._pieces - 1)
        except DecryptionError as error:
            raise StateError(f"piece {number} of the noise was changed: restore the state folder") from error
        start = number * SEGMENT_BYTES
        if len(data) != min(SEGMENT_BYTES, len(self._data) - start):
            raise StateError(f"piece {number} of the noise has another length: restore the state folder")
        self._data[start : start + len(data)] = data
        self._next += 1

    def arrays(self, releases: Sequence[DeclaredRelease]) -> dict[str, Int64Array]:
        """The numbers by release name. Raises StateError where pieces are missing."""
        if self._next < self._pieces:
            raise StateError(
                f"{self._pieces - self._next} pieces of the noise are not stored: restore the state folder"
            )
        arrays: dict[str, Int64Array] = {}
        start = 0
        for release in releases:
            values = np.frombuffer(self._data, dtype="<i8", count=release.coordinates, offset=start)
            arrays[release.name] = values.astype(np.int64, copy=False).reshape(release.shape)
            start += values.nbytes
        return arrays


class LargeValues:
    """The calls for pieces, and the records that have them. At most one set of numbers is on its way each way."""

    def __init__(self, state: EnclaveState) -> None:
        self._state = state
        self._leaving: Leaving | None = None
        self._arriving: Arriving | None = None

    def take_piece(self, request: aggregator_enclave_pb2.TakePiece) -> aggregator_enclave_pb2.SealedPiece:
        """A piece, sealed, of the record that the call before was answered with; each once, in order.

        Raises StateError for any other.
        """
        with self._state.lock:
            leaving = self._leaving
            if leaving is None or leaving.key != request.key:
                raise StateError(f"record {request.key!r} has no pieces to take: start the program again")
            piece = leaving.take(request.number)
            if leaving.is_over:
                self._leaving = None
            return aggregator_enclave_pb2.SealedPiece(data=piece)

    def give_piece(self, request: aggregator_enclave_pb2.GivePiece) -> None:
        """Takes a piece of the noise of a charged round back, in order; with it comes the record of the noise.

        Raises StateError where the round is not charged or has no noise in pieces, or record or piece were changed.
        """
        with self._state.lock:
            held = self._state.find_round(request.task_sha256, request.round)
            if isinstance(held, Refusal) or held.status is not Status.CHARGED:
                raise StateError(f"round {request.round} does not wait for its noise: close it first")
            if request.number == 0 or self._arriving is None or self._arriving.record != request.record:
                self._arriving = self._new_arriving(held, request.record)
            self._arriving.give(request.number, request.data)

    def sealed_noise(self, held: Round, noise: RoundNoise, sealer: Sealer) -> SealedRecord:
        """The record of a round's noise."""
        key, releases = noise_key(held.task_sha256, held.number), held.noised(held.query)
        if not is_detached(releases):
            return sealer.seal(key, noise.encode(releases))
        self._leaving = Leaving(key, [noise.arrays[release.name] for release in releases])
        sealed = sealer.seal(key, noise.noise_id + self._leaving.secret)
        return SealedRecord(key, sealed.data, self._leaving.pieces)

    def opened_noise(self, held: Round, record: bytes | None) -> RoundNoise:
        """The noise of a charged round, from its record and pieces.

        Raises StateError if it is missing or changed.
        """
        if not (releases := held.noised(held.query)):
            return RoundNoise(held.record.noise_id, {})
        sealer = self._state.keys.sealer(held.task_sha256)
        if record is None or sealer is None:
            raise _not_stored(held)
        if not is_detached(releases):
            return RoundNoise.decode(sealer.open(noise_key(held.task_sha256, held.number), record), releases)
        arriving, self._arriving = self._arriving, None
        if arriving is None or arriving.record != record:
            raise _not_stored(held)
        noise_id, _ = self._noise_and_key(held, record)
        return RoundNoise(noise_id, arriving.arrays(releases))

    def sealed_release(self, held: Round, made: MadeRelease) -> SealedRecord:
        """The record of a round's release."""
        state = self._state
        key = release_key(held.task_sha256, held.number)
        stored = stored_release_pb2.StoredRelease(release=made.signed.release, signature=made.signed.signature)
        if not made.values:
            return state.sealer.seal(key, stored.SerializeToString(deterministic=True))
        self._leaving = Leaving(key, made.values)
        stored.values_key = self._leaving.secret
        sealed = state.sealer.seal(key, stored.SerializeToString(deterministic=True))
        return SealedRecord(key, sealed.data, self._leaving.pieces)

    def _new_arriving(self, held: Round, record: bytes) -> Arriving:
        releases = held.noised(held.query)
        if not is_detached(releases):
            raise StateError(f"the noise of round {held.number} has no pieces: start the program again")
        _, secret = self._noise_and_key(held, record)
        self._arriving = None  # its memory is free before the next one's is taken
        return Arriving(record, secret, release_bytes(releases))

    def _noise_and_key(self, held: Round, record: bytes) -> tuple[bytes, bytes]:
        if (sealer := self._state.keys.sealer(held.task_sha256)) is None:
            raise _not_stored(held)
        data = sealer.open(noise_key(held.task_sha256, held.number), record)
        if len(data) != HASH_BYTES + _KEY_BYTES:
            raise StateError("the sealed noise does not fit the declared releases: restore the state folder")
        return data[:HASH_BYTES], data[HASH_BYTES:]


def _not_stored(held: Round) -> StateError:
    return StateError(f"the noise of round {held.number} is not stored; restore the newest state folder")


class MadeRelease(NamedTuple):
    """A signed release; ``values`` are its integers by tensor where it has their hash alone, and else empty."""

    signed: common_pb2.SignedRelease
    values: Sequence[Int64Array]


def signed_release(
    round: Round,
    entry: Entry,
    key: SigningKey,
    *,
    noise: RoundNoise,
    host_sum: HostSum | None = None,
    encoder: Encoder | None = None,
) -> MadeRelease:
    """The release of a frozen round under the ledger entry that charged it.

    A function of its arguments alone (Ed25519 signatures are deterministic), so that a release that is made again after
    a crash is the same release. ``encoder`` takes in the round's sum.

    Raises:
        StateError: the entry does not charge this set of contributions with this noise.
        PrivacyError, ConfigurationError: as ``Round.noisy_sums``.
    """
    if (*round.freeze(), round.record.noise_id) != (entry.contributions, entry.id_set_sha256, entry.noise_id):
        raise StateError(f"the contributions or the noise of round {round.number} differ from the charged ones")
    sums = round.noisy_sums(noise, host_sum, encoder)
    releases = round.query.releases
    detached = is_detached(releases)
    values = [np.ascontiguousarray(sums[declared.name], dtype="<i8") for declared in releases]
    release = common_pb2.Release(
        task_sha256=round.task_sha256,
        round=round.number,
        model_sha256=round.model_sha256,
        tensors=[
            common_pb2.ReleasedTensor(
                name=declared.name,
                integers=b"" if detached else array.tobytes(),
                shape=declared.shape,
                step=declared.step,
            )
            for declared, array in zip(releases, values, strict=True)
        ],
        charges=[charge_of(charge) for event in entry.events for charge in _releases_of(event)],
        epsilon_spent=entry.task_epsilon,
        epsilon_remaining=max(0.0, entry.task_budget.epsilon - entry.task_epsilon),
        contributions=entry.contributions,
        values_sha256=_sha256(values) if detached else b"",
        values_bytes=release_bytes(releases) if detached else 0,
    )
    data = release.SerializeToString(deterministic=True)
    signed = common_pb2.SignedRelease(release=data, signature=key.sign(domains.RELEASE, data))
    return MadeRelease(signed, values if detached else ())


def _sha256(values: Sequence[Int64Array]) -> bytes:
    digest = hashlib.sha256()
    for array in values:
        digest.update(array.data.cast("B"))
    return digest.digest()


def _releases_of(event: LedgerEvent) -> tuple[TensorCharge, ...]:
    if isinstance(event, LocalReport):
        raise StateError(f"{event.name!r} is a report of a device, which no enclave releases")
    if isinstance(event, CoveredRelease):
        return (event,)
    return tuple(release for release in releases_of(event) if not isinstance(release, LocalReport))


def release_sha256(signed: common_pb2.SignedRelease) -> bytes:
    """The hash that names a release in the ledger: SHA-256 of its signed bytes."""
    return hashlib.sha256(signed.release).digest()
