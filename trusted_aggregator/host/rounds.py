"""The life of a round at the host in any mode of aggregation: opened, charged, released.

All modes have one order of steps. Each step is durable before the next begins:

1. all contributions that the charge is for are stored, where they are stored at all;
2. the charge is stored and in force;
3. the host makes its sum, where it has a part in it: nothing that a charge pays for comes into being before the charge;
4. the sealed release is stored, and its hash in force;
5. its signature leaves.
"""

from __future__ import annotations

from collections.abc import Iterator

from odp.algorithms.cohorts import goal_of
from odp.crypto.hpke import DecryptionError
from odp.crypto.segments import SEGMENT_BYTES, open_segment
from odp.errors import Busy, ConfigurationError, DiskFailed, PopulationFull, PrivacyError, StateError
from odp.signed.task import open_task
from odp.transport.logs import Log, short
from odp.v1 import aggregator_enclave_pb2, aggregator_pb2, common_pb2, stored_release_pb2
from odp.v1.aggregator_enclave_pb2 import ChargedRound
from trusted_aggregator.boundary import wire
from trusted_aggregator.boundary.calls import AggregatorCalls
from trusted_aggregator.boundary.interface import RoundState, ordered
from trusted_aggregator.host.changes import Changes
from trusted_aggregator.host.storage import Storage
from trusted_aggregator.modes.hosting import HostModes
from trusted_aggregator.rounds.host_half import HostHalf, Key, Survivors
from trusted_aggregator.state.records import noise_key, release_key, stream_key

_STORE_SECONDS = 30.0
# After which a server may ask again for a round of a population that has as many open as it may.
_FULL_SECONDS = 5.0, 15.0


class HostedRounds:
    """Passes orders for rounds to the enclave, and stores its answers."""

    def __init__(self, core: AggregatorCalls, storage: Storage, changes: Changes, modes: HostModes, log: Log) -> None:
        self._core, self._storage, self._changes = core, storage, changes
        self._modes, self._log = modes, log

    def open(self, request: aggregator_pb2.OpenRoundRequest) -> None:
        """Opens a round; returns once that is stored."""
        with self._changes.turn(), self._modes.opening(request):
            try:
                writes = self._core.open_round(request).records
            except PopulationFull as error:
                # A refusal would end the task, whatever it has spent.
                raise Busy(str(error), *_FULL_SECONDS) from error
            self._changes.store(writes)
        task, number = ordered(request.order)
        self._modes.of((task, number)).opened((task, number))
        cohort = open_task(request.task).cohort
        self._log.event(
            "round_opened", task=short(task), round=number, minimum=cohort.minimum, goal=goal_of(cohort, number),
            seconds=cohort.round_seconds,
        )  # fmt: skip

    def close(self, request: aggregator_pb2.CloseRoundRequest) -> common_pb2.SignedRelease:
        """Charges and releases a round; returns once both are stored and in force."""
        key = ordered(request.order)
        half = self._modes.of(key)
        half.gather(request)
        with half.closing(key), self._changes.turn():
            if (survivors := half.survivors(key)) is not None:
                self._core.announce(
                    aggregator_enclave_pb2.AnnounceSurvivors(
                        task_sha256=key[0], round=key[1], clients=survivors.clients, set_sha256=survivors.set_sha256
                    )
                )
            charged = self._core.charge(request)
            if charged.released:  # a failure may have kept it from being in force
                self._changes.settle(self._core.seal_release(wire.seal_release(request.order)).records)
            else:
                self._seal(request.order, charged, self._modes.of(key, charged), survivors)
            release = self._opened(request.order, self._storage.record(release_key(*key)) or b"")
            half.forget(key)
        return common_pb2.SignedRelease(release=release.release, signature=release.signature)

    def values(self, order: bytes) -> Iterator[bytes]:
        """The integers of a release that has their hash alone, in pieces of 1 MiB.

        Raises:
            ConfigurationError: the release has its integers itself, or the order is of no round of the enclave.
            PrivacyError: the round is not released.
            StateError: here, or while they are read: pieces are missing or changed.
        """
        with self._changes.turn():
            stored = self._storage.record(release_key(*ordered(order))) or b""
            release = self._opened(order, stored)
        if not release.values_key:
            raise ConfigurationError("the release of this round has its integers itself: CloseRound answers with them")
        size = common_pb2.Release.FromString(release.release).values_bytes
        return _opened_pieces(release.values_key, self._storage.pieces(stored), -(-size // SEGMENT_BYTES))

    def _opened(self, order: bytes, stored: bytes) -> stored_release_pb2.StoredRelease:
        released = self._core.release(aggregator_enclave_pb2.ReleaseRound(order=order, stored=stored))
        return stored_release_pb2.StoredRelease.FromString(released.signed_release)

    def _seal(self, order: bytes, charged: ChargedRound, half: HostHalf, survivors: Survivors | None) -> None:
        task, number = charged.task_sha256, charged.round
        # The charge names the exact set: a crash after it must find all of the set.
        self._storage.wait_for(task, number, half.to_store(charged), timeout=_STORE_SECONDS)
        self._changes.settle(charged.writes)
        self._log.event("round_charged", task=short(task), round=number, contributions=charged.contributions)
        try:
            host_sum = half.host_sum(charged, survivors, self._changes.pause)
        except PrivacyError:
            given_up = self._core.give_up(aggregator_pb2.GetRoundRequest(task_sha256=task, round=number))
            self._changes.store(given_up.records)
            raise
        noise, stream = (self._storage.record(key(task, number)) for key in (noise_key, stream_key))
        for piece, data in enumerate(() if noise is None else self._storage.pieces(noise)):
            self._core.give_piece(
                aggregator_enclave_pb2.GivePiece(task_sha256=task, round=number, record=noise, number=piece, data=data)
            )
        sealed = self._core.seal_release(wire.seal_release(order, noise, stream, host_sum))
        self._changes.settle(sealed.records)
        self._storage.erase(task, number)
        self.empty_files()
        self._log.event("round_released", task=short(task), round=number, contributions=charged.contributions)

    def contributions(self, state: RoundState) -> int:
        """The number of contributions of a round. Raises PrivacyError if it has failed."""
        return self._modes.of((state.task_sha256, state.round)).contributions(state)

    def held(self) -> set[Key]:
        """The rounds in the enclave's memory."""
        return {(state.task_sha256, state.round) for state in self._core.round_states()}

    def erase_ended(self, before: set[Key]) -> None:
        """Erases the contributions of the rounds of ``before`` that the enclave has dropped."""
        for key in before - self.held():
            self._modes.forget(key)
            self._storage.erase(*key)
        # Also what an earlier order could not: it is asked again, and there is nothing left to end.
        self._storage.finish_erasing()

    def empty_files(self) -> None:
        """Removes erased data from the files, now or with a later round: a release does not wait for it."""
        try:
            self._storage.finish_erasing()
        except DiskFailed:
            raise
        except StateError as error:
            self._log.warning("not_erased", reason=str(error))


def _opened_pieces(key: bytes, sealed: Iterator[bytes], count: int) -> Iterator[bytes]:
    number = 0
    for number, piece in enumerate(sealed, 1):
        try:
            yield open_segment(key, piece, number - 1, last=number == count)
        except DecryptionError as error:
            raise StateError(f"piece {number - 1} of a release was changed: restore the state folder") from error
    if number < count:
        raise StateError(f"{count - number} pieces of a release are not stored: restore the newest state folder")
