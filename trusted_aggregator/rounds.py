"""One round inside the enclave: its noise, its contributions, and the release that comes of them.

Guarantee: what ``Round.noisy_sums`` gives is the exact integer sum over pairwise distinct contributions, each of which
the declared query accepted, plus noise that was drawn before the first of them was opened. Where the task samples, the
sum is over the secret draw of ``sampling.py``; everything else, and every number that leaves, is as without it.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import threading
from collections.abc import Sequence

from google.protobuf.message import DecodeError

from odp.algorithms.release import draw_noise
from odp.algorithms.seam import DeclaredRelease, Int64Array, Query, Sum
from odp.crypto import domains
from odp.crypto.hpke import OVERHEAD, DecryptionError, HpkeKey
from odp.enclave.policy import EnclavePolicy
from odp.errors import ContributionRefused, PrivacyError, Refusal, StateError
from odp.privacy.events import Sampling
from odp.privacy.mechanisms import IntegerNoise
from odp.v1 import aggregator_pb2
from trusted_aggregator.interface import Status
from trusted_aggregator.sampling import SEED_BYTES, Draw
from trusted_aggregator.sealed_state import HASH_BYTES, RoundNoise, RoundRecord
from trusted_aggregator.seen import Seen

#: Accepted payloads wait so long before they are summed: enough for one matrix product, little memory.
BLOCK = 512
# Sums and noise stay below this, so that adding them cannot wrap around in 64 bits.
_LARGEST_INTEGER = 2**62


def draw_round_noise(query: Query, noise: IntegerNoise, *, model_sha256: bytes) -> RoundNoise:
    """All noise of one round, under a new random name.

    Raises:
        PrivacyError: a declared release has less noise in a column than what its charge covers.
    """
    for release in query.releases:
        # An entry that the norm counts twice has noise_std / sqrt(2), all others noise_std: never less.
        if not release.column_std.min() >= release.noise_std / math.sqrt(2.0) * (1.0 - 1e-12):
            raise PrivacyError(
                f"release {release.name!r} has less noise than its charged noise_std={release.noise_std!r}"
            )
    arrays = {release.name: draw_noise(release, noise) for release in query.releases}
    return RoundNoise(
        noise_id=os.urandom(HASH_BYTES), model_sha256=model_sha256, draw_seed=os.urandom(SEED_BYTES), arrays=arrays
    )


class Round:
    """Contributions of one round of one task. ``submit`` may run in many threads; the other methods run in one.

    ``most`` is the largest number of contributions that can be charged: the round takes no more.
    """

    def __init__(
        self, *, task_sha256: bytes, order: aggregator_pb2.RoundOrder, record: RoundRecord, query: Query,
        noise: RoundNoise | None, policy: EnclavePolicy, sampling: Sampling | None = None,
        most: int, status: Status = Status.OPEN,
    ) -> None:  # fmt: skip
        self.task_sha256 = task_sha256
        self.number = order.round
        self.model_sha256 = order.model_sha256
        self.record = record
        self.noise = noise
        self.query = query
        self.status = status
        self._most = most if sampling is None else min(most, sampling.population_bound)
        self._draw = None if sampling is None or noise is None else Draw(noise.draw_seed, sampling)
        self._info = domains.contribution_info(task_sha256, order.round, order.model_sha256, policy.sha256)
        self._oblivious = policy.accumulation == "oblivious"
        self.plaintext_bytes = contribution_bytes(order.round, query.payload_bytes)
        self._lock = threading.Lock()
        self._frozen = False
        self._seen = Seen()
        self._waiting: list[bytes] = []
        self._sum: Sum | None = None  # made with the first block: it is large, and most rounds that are held are over

    @property
    def contributions(self) -> int:
        """Accepted contributions that are held."""
        return len(self._seen)

    def submit(self, sealed: Sequence[bytes], key: HpkeKey) -> list[Refusal | None]:
        """Opens, checks and keeps sealed contributions, in order; for each the reason where it is refused."""
        answers: list[Refusal | None] = [Refusal.ROUND_CLOSED] * len(sealed)
        if self._frozen or self.status is not Status.OPEN:
            return answers
        opened: list[tuple[int, aggregator_pb2.Contribution, bytes]] = []
        for number, one in enumerate(sealed):
            try:
                opened.append((number, *self._parse(self._open(one, key))))
            except DecryptionError:
                answers[number] = Refusal.MALFORMED
            except ContributionRefused as refused:
                answers[number] = refused.refusal
        checked = self.query.refusals([payload for _, _, payload in opened])
        for (number, contribution, payload), refusal in zip(opened, checked, strict=True):
            answers[number] = self._keep(contribution, payload) if refusal is None else refusal
        return answers

    def freeze(self) -> tuple[int, bytes]:
        """Closes the set: (number of contributions, SHA-256 over the sorted pairs of id and payload hash).

        The payload hash is part of it because the host may hold two contributions of one device under one id, of
        which the first counted: after a restart with the second, the same noise would reveal their difference.
        """
        with self._lock:
            self._frozen = True
            return len(self._seen), self._seen.sha256()

    def thaw(self) -> None:
        """Opens the set again: nothing was charged for it."""
        with self._lock:
            self._frozen = False

    def noisy_sums(self) -> dict[str, Int64Array]:
        """The integers of the release, by release name, of the frozen set.

        Raises:
            StateError: the noise is not there, or the sums are not those of the set.
        """
        if self.noise is None:
            raise StateError(f"the noise of round {self.number} is not stored")
        with self._lock:
            if not self._frozen:
                raise StateError(f"round {self.number} is still open")
            self._add_waiting()
            total = self.query.new_sum(oblivious=self._oblivious) if self._sum is None else self._sum
            if total.count + (0 if self._draw is None else self._draw.offered) != len(self._seen):
                raise StateError(f"round {self.number} lost contributions in memory; start the program again")
            totals = total.totals() if self._draw is None else self._drawn_totals(self._draw)
        noise = self.noise.arrays
        return {
            release.name: _add(release, totals[release.name], noise[release.name]) for release in self.query.releases
        }

    def erase(self) -> None:
        """Drops contributions, sums and noise."""
        with self._lock:
            self._frozen = True
            self._seen, self._waiting = Seen(), []
            self._sum = self._draw = self.noise = None

    def _open(self, sealed: bytes, key: HpkeKey) -> bytes:
        # The exact length leaves no room for unknown or repeated fields, nor for numbers written longer than needed.
        if len(sealed) != self.plaintext_bytes + OVERHEAD:
            raise ContributionRefused(Refusal.MALFORMED)
        return key.open(sealed, self._info)

    def _parse(self, plaintext: bytes) -> tuple[aggregator_pb2.Contribution, bytes]:
        """The contribution, and its payload: each access to that field makes a copy."""
        try:
            given = aggregator_pb2.Contribution.FromString(plaintext)
        except DecodeError:
            raise ContributionRefused(Refusal.MALFORMED) from None
        task, model, payload = given.task_sha256, given.model_sha256, given.payload
        hashes = (task, model, given.contribution_id, given.pseudonym)
        if any(len(value) != HASH_BYTES for value in hashes) or len(payload) != self.query.payload_bytes:
            raise ContributionRefused(Refusal.MALFORMED)
        if task != self.task_sha256:
            raise ContributionRefused(Refusal.WRONG_TASK)
        if given.round != self.number:
            raise ContributionRefused(Refusal.WRONG_ROUND)
        if model != self.model_sha256:
            raise ContributionRefused(Refusal.WRONG_MODEL)
        return given, payload

    def _keep(self, contribution: aggregator_pb2.Contribution, payload: bytes) -> Refusal | None:
        contribution_id, digest = contribution.contribution_id, hashlib.sha256(payload).digest()
        with self._lock:
            if self._frozen:
                return Refusal.ROUND_CLOSED
            if len(self._seen) >= self._most:
                held = self._seen.holds(contribution_id, contribution.pseudonym)
                return Refusal.ALREADY_CONTRIBUTED if held else Refusal.ROUND_CLOSED
            if not self._seen.add(contribution_id, contribution.pseudonym, digest):
                return Refusal.ALREADY_CONTRIBUTED
            if self._draw is not None:
                self._draw.offer(contribution_id, payload)
                return None
            self._waiting.append(payload)
            if len(self._waiting) >= BLOCK:
                self._add_waiting()
        return None

    def _drawn_totals(self, draw: Draw) -> dict[str, Int64Array]:
        """Exact sums of the draw. The work depends on the number of contributions, not on how many were drawn."""
        counted, dropped = (self.query.new_sum(oblivious=self._oblivious) for _ in range(2))
        for total, payloads in ((counted, draw.kept()), (dropped, draw.fillers())):
            while block := list(itertools.islice(payloads, BLOCK)):
                total.add(block)
        return counted.totals()

    def _add_waiting(self) -> None:
        # Taken off first: after an error half-way, the count does not match the set and nothing is released.
        block, self._waiting = self._waiting, []
        if block:
            if self._sum is None:
                self._sum = self.query.new_sum(oblivious=self._oblivious)
            self._sum.add(block)


def contribution_bytes(round: int, payload_bytes: int) -> int:
    """Length of the plaintext of every contribution of a round."""
    filled = bytes(HASH_BYTES)
    return aggregator_pb2.Contribution(
        task_sha256=filled, round=round, model_sha256=filled, contribution_id=filled, pseudonym=filled,
        payload=bytes(payload_bytes),
    ).ByteSize()  # fmt: skip


def _add(release: DeclaredRelease, total: Int64Array, noise: Int64Array) -> Int64Array:
    if total.shape != release.shape or noise.shape != release.shape:
        raise StateError(f"release {release.name!r} has another shape than declared")
    for values in (total, noise):
        if values.size and (int(values.max()) >= _LARGEST_INTEGER or int(values.min()) <= -_LARGEST_INTEGER):
            raise StateError(f"release {release.name!r} does not fit 64-bit integers")
    return total + noise
