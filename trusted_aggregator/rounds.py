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

from google.protobuf.message import DecodeError

from odp.algorithms.release import draw_noise
from odp.algorithms.seam import DeclaredRelease, Int64Array, Query, Sum
from odp.crypto import domains, segments
from odp.crypto.hpke import OVERHEAD, DecryptionError, HpkeKey
from odp.enclave.policy import EnclavePolicy
from odp.errors import ContributionRefused, PrivacyError, Refusal, StateError
from odp.privacy.events import Sampling
from odp.privacy.mechanisms import IntegerNoise
from odp.v1 import aggregator_pb2
from trusted_aggregator.interface import Status
from trusted_aggregator.sampling import SEED_BYTES, Draw
from trusted_aggregator.sealed_state import HASH_BYTES, RoundNoise, RoundRecord

#: Accepted payloads wait so long before they are summed: enough for one matrix product, little memory.
BLOCK = 512
BLOCK_BYTES = 2**23
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
    """Contributions of one round of one task. ``submit`` may run in many threads; the other methods run in one."""

    def __init__(
        self, *, task_sha256: bytes, order: aggregator_pb2.RoundOrder, record: RoundRecord, query: Query,
        noise: RoundNoise | None, policy: EnclavePolicy, sampling: Sampling | None = None,
        status: Status = Status.OPEN,
    ) -> None:  # fmt: skip
        self.task_sha256 = task_sha256
        self.number = order.round
        self.model_sha256 = order.model_sha256
        self.record = record
        self.noise = noise
        self.query = query
        self.status = status
        self._draw = None if sampling is None or noise is None else Draw(noise.draw_seed, sampling)
        self._oblivious = policy.accumulation == "oblivious"
        self._large = segments.is_large(query.payload_bytes)
        info = domains.large_contribution_info if self._large else domains.contribution_info
        self._info = info(task_sha256, order.round, order.model_sha256, policy.sha256)
        plaintext_bytes = contribution_bytes(order.round, query.payload_bytes)
        #: Length of every well-formed sealed contribution.
        self.sealed_bytes = segments.sealed_bytes(plaintext_bytes) if self._large else plaintext_bytes + OVERHEAD
        # The sums hold for so many contributions, and so does the charge of a draw.
        self._most = query.maximum if sampling is None else min(query.maximum, sampling.population_bound)
        self._block = min(BLOCK, max(1, BLOCK_BYTES // query.payload_bytes))
        self._lock = threading.Lock()
        self._frozen = False
        self._digests: dict[bytes, bytes] = {}  # contribution id -> SHA-256 of its payload
        # Under a key of this round: where a set keeps a pseudonym shows nothing that lasts from round to round.
        self._pseudonyms: set[bytes] = set()
        self._pseudonym_key = os.urandom(HASH_BYTES)
        self._waiting: list[bytes] = []
        self._sum: Sum | None = None  # made with the first block: it is large, and most rounds that are held are over

    @property
    def contributions(self) -> int:
        """Accepted contributions that are held."""
        return len(self._digests)

    def submit(self, sealed: bytes, key: HpkeKey) -> Refusal | None:
        """Opens, checks and keeps one sealed contribution; the reason where it is refused."""
        if self._frozen or self.status is not Status.OPEN:
            return Refusal.ROUND_CLOSED
        # The exact length leaves no room for unknown or repeated fields, nor for numbers written longer than needed.
        if len(sealed) != self.sealed_bytes:
            return Refusal.MALFORMED
        try:
            contribution, payload = self._parse(self._open(sealed, key))
            self.query.check(payload)
        except DecryptionError:
            return Refusal.MALFORMED
        except ContributionRefused as refused:
            return refused.refusal
        return self._keep(contribution, payload)

    def freeze(self) -> tuple[int, bytes]:
        """Closes the set: (number of contributions, SHA-256 over the sorted pairs of id and payload hash).

        The payload hash is part of it because the host may hold two contributions of one device under one id, of
        which the first counted: after a restart with the second, the same noise would reveal their difference.
        """
        with self._lock:
            self._frozen = True
            pairs = sorted(contribution_id + digest for contribution_id, digest in self._digests.items())
        total = hashlib.sha256()
        for pair in pairs:
            total.update(pair)
        return len(pairs), total.digest()

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
            if total.count + (0 if self._draw is None else self._draw.offered) != len(self._digests):
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
            self._digests, self._pseudonyms, self._waiting = {}, set(), []
            self._sum = self._draw = self.noise = None

    def _open(self, sealed: bytes, key: HpkeKey) -> bytes | bytearray:
        return segments.open_segments(key, sealed, self._info) if self._large else key.open(sealed, self._info)

    def _parse(self, plaintext: bytes | bytearray) -> tuple[aggregator_pb2.Contribution, bytes]:
        """The contribution, and its payload: each access to that field makes a copy."""
        try:
            given = aggregator_pb2.Contribution.FromString(plaintext)  # type: ignore[arg-type]  # any buffer
        except DecodeError:
            raise ContributionRefused(Refusal.MALFORMED) from None
        hashes = (given.task_sha256, given.model_sha256, given.contribution_id, given.pseudonym)
        payload = given.payload
        if any(len(value) != HASH_BYTES for value in hashes) or len(payload) != self.query.payload_bytes:
            raise ContributionRefused(Refusal.MALFORMED)
        if given.task_sha256 != self.task_sha256:
            raise ContributionRefused(Refusal.WRONG_TASK)
        if given.round != self.number:
            raise ContributionRefused(Refusal.WRONG_ROUND)
        if given.model_sha256 != self.model_sha256:
            raise ContributionRefused(Refusal.WRONG_MODEL)
        return given, payload

    def _keep(self, contribution: aggregator_pb2.Contribution, payload: bytes) -> Refusal | None:
        digest = hashlib.sha256(payload).digest()
        pseudonym = hashlib.blake2b(contribution.pseudonym, key=self._pseudonym_key, digest_size=HASH_BYTES).digest()
        with self._lock:
            if self._frozen:
                return Refusal.ROUND_CLOSED
            if contribution.contribution_id in self._digests or pseudonym in self._pseudonyms:
                return Refusal.ALREADY_CONTRIBUTED
            if len(self._digests) >= self._most:
                return Refusal.ROUND_CLOSED
            self._digests[contribution.contribution_id] = digest
            self._pseudonyms.add(pseudonym)
            if self._draw is not None:
                self._draw.offer(contribution.contribution_id, payload)
                return None
            self._waiting.append(payload)
            if len(self._waiting) >= self._block:
                self._add_waiting()
        return None

    def _drawn_totals(self, draw: Draw) -> dict[str, Int64Array]:
        """Exact sums of the draw. The work depends on the number of contributions, not on how many were drawn."""
        counted, dropped = (self.query.new_sum(oblivious=self._oblivious) for _ in range(2))
        for total, payloads in ((counted, draw.kept()), (dropped, draw.fillers())):
            while block := list(itertools.islice(payloads, self._block)):
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
