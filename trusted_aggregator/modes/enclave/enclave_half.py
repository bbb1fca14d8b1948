"""One round inside the enclave: its noise, its contributions, and the release that comes of them.

Guarantee: what ``Round.noisy_sums`` gives is the exact integer sum over pairwise distinct contributions, each of which
the declared query accepted, plus noise that was drawn before the first of them was opened. Where the task samples, the
sum is over the secret draw of ``sampling.py``; everything else, and every number that leaves, is as without it. Where
the task's aggregation is masked, the contributions are seeds, and the vectors are the host's (``masking.py``). Where it
is SecAgg+, sum and noise are the devices', and come from the host (``announced.py``).
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import threading
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError

from odp import _validate
from odp.algorithms.release import draw_noise
from odp.algorithms.seam import DeclaredRelease, Int64Array, Query, SampledQuery, Sum
from odp.crypto import domains, segments
from odp.crypto.hpke import OVERHEAD, DecryptionError, HpkeKey
from odp.crypto.secure_aggregation.masked import SEED_BYTES as MASK_SEED_BYTES
from odp.crypto.secure_aggregation.masked import MaskedSum, unmasked
from odp.enclave.policy import EnclavePolicy
from odp.errors import ContributionRefused, PrivacyError, Refusal, StateError
from odp.privacy.events import Sampling
from odp.privacy.mechanisms import IntegerNoise
from odp.v1 import aggregator_pb2
from trusted_aggregator.boundary.interface import Status
from trusted_aggregator.modes.admission import NO_KEY, Admission
from trusted_aggregator.modes.enclave.sampling import SEED_BYTES, Draw
from trusted_aggregator.modes.enclave.seen import Seen
from trusted_aggregator.modes.masked.enclave_half import HalfSet, MaskedQuery, require_masked, split_stored
from trusted_aggregator.modes.secagg.enclave_half import Announced, AnnouncedQuery, enclave_draws
from trusted_aggregator.state.sealed_state import HASH_BYTES, RoundNoise, RoundRecord

#: Accepted payloads wait so long before they are summed: enough for one matrix product, little memory.
BLOCK = 512
BLOCK_BYTES = 2**23
#: A ciphertext begins with a public key that its device drew for it alone: so many bytes of it tell it from others.
MARK_BYTES = 8
# Sums and noise stay below this, so that adding them cannot wrap around in 64 bits.
_LARGEST_INTEGER = 2**62


def draw_round_noise(query: Query, noise: IntegerNoise) -> RoundNoise:
    """All noise of one round, under a new random name.

    Raises:
        PrivacyError: a declared release has less noise in a column than what its charge covers.
    """
    arrays = {release.name: draw_noise(release, noise) for release in noised_here(query)}
    return RoundNoise(noise_id=os.urandom(HASH_BYTES), arrays=arrays)


def new_record(
    order: bytes, noise: RoundNoise, *, token_key: bytes = NO_KEY, policy_sha256: bytes = b""
) -> RoundRecord:
    """The record of a round that is opened now, with a new seed of its draw and a new key.

    ``token_key`` is of ``sealed_key``.
    """
    return RoundRecord(
        order=order, noise_id=noise.noise_id, draw_seed=os.urandom(SEED_BYTES),
        hpke_key=HpkeKey.generate().to_bytes(), token_key=token_key, policy_sha256=policy_sha256,
    )  # fmt: skip


def noised_here(query: Query) -> tuple[DeclaredRelease, ...]:
    """The releases whose noise the enclave draws: all, or none where the devices do."""
    return query.releases if enclave_draws(query) else ()


class Judged(NamedTuple):
    """A contribution that the round accepts, unless it was counted before; ``mark`` is where its ciphertext begins."""

    contribution: aggregator_pb2.Contribution
    payload: bytes
    mark: bytes


class Round:
    """Contributions of one round of one task. ``submit`` may run in many threads; the other methods run in one.

    ``most`` is the largest number of contributions that can be charged: the round takes no more.
    """

    def __init__(
        self, *, task_sha256: bytes, order: aggregator_pb2.RoundOrder, record: RoundRecord, query: Query,
        policy: EnclavePolicy, sampling: Sampling | None = None, most: int,
    ) -> None:  # fmt: skip
        self.task_sha256 = task_sha256
        self.number = order.round
        self.model_sha256 = order.model_sha256
        self.record = record
        self.query = query
        self.status = Status.OPEN
        self._draw: Draw | None = None
        if sampling is not None:
            if not isinstance(query, SampledQuery):
                raise PrivacyError(f"round {order.round} cannot be sampled: nothing can stand for what is not drawn")
            self._draw = Draw(record.draw_seed, sampling, empty=query.empty_payload)
        self._key: HpkeKey | None = HpkeKey.from_bytes(record.hpke_key)
        #: Contributions are sealed to it.
        self.public_key = self._key.public
        #: Of each contribution that is held, its first bytes (``MARK_BYTES``).
        self.marks = bytearray()
        self._oblivious = policy.accumulation == "oblivious"
        self._large = segments.is_large(query.payload_bytes)
        info = domains.large_contribution_info if self._large else domains.contribution_info
        self._info = info(task_sha256, order.round, order.model_sha256, policy.sha256)
        self._admission = Admission(record.token_key)
        plaintext_bytes = contribution_bytes(order.round, query.payload_bytes, self._admission.token_bytes)
        #: Length of every well-formed sealed contribution.
        self.sealed_bytes = segments.sealed_bytes(plaintext_bytes) if self._large else plaintext_bytes + OVERHEAD
        # The sums hold for so many contributions, and so does the charge.
        self._most = min(query.maximum, most)
        if sampling is not None:
            self._most = min(self._most, sampling.population_bound)
        #: The halves of a masked round.
        self.halves = HalfSet(task_sha256, order.round) if isinstance(query, MaskedQuery) else None
        #: The survivors of a round of SecAgg+.
        self.announced = Announced(order.round) if isinstance(query, AnnouncedQuery) else None
        #: Length of each masked vector; 0 where the enclave sums the contributions itself.
        self.masked_bytes = query.vector_bytes if isinstance(query, MaskedQuery) else 0
        self._block = min(BLOCK, max(1, BLOCK_BYTES // max(query.payload_bytes, self.masked_bytes)))
        self._lock = threading.Lock()
        self._frozen = False
        self._seen = Seen()
        self._waiting: list[bytes] = []
        self._sum: Sum | None = None  # made with the first block: it is large, and most rounds that are held are over

    @property
    def is_announced(self) -> bool:
        """Whether the round is of SecAgg+."""
        return isinstance(self.query, AnnouncedQuery)

    @property
    def contributions(self) -> int:
        """Accepted contributions that are held, or clients whose vectors the host can unmask."""
        return len(self._seen) if self.announced is None else self.announced.clients

    @property
    def is_closed(self) -> bool:
        """Whether the round takes no contribution now."""
        return self._frozen or self.status is not Status.OPEN

    def submit(self, sealed: Sequence[bytes], *, masked_sha256: Sequence[bytes] | None = None) -> list[Refusal | None]:
        """``judge`` and ``keep``."""
        if self.is_closed:
            return [Refusal.ROUND_CLOSED] * len(sealed)
        return self.keep(self.judge(sealed, masked_sha256=masked_sha256))

    def judge(self, sealed: Sequence[bytes], *, masked_sha256: Sequence[bytes] | None = None) -> list[Judged | Refusal]:
        """Opens and checks sealed contributions, in order; for each the reason where it can never count.

        A refusal follows from the bytes and the round's opening alone: every copy of this enclave gives the same.
        ``masked_sha256`` are, for each, of the masked vector that the host holds to it; empty, or None, of none.
        """
        judged: list[Judged | Refusal] = [Refusal.MALFORMED] * len(sealed)
        opened: list[tuple[int, Judged]] = []
        for number, one in enumerate(sealed):
            try:
                opened.append((number, Judged(*self._parse(self._open(one)), one[:MARK_BYTES])))
            except DecryptionError:
                continue
            except ContributionRefused as refused:
                judged[number] = refused.refusal
        vectors = [b""] * len(sealed) if masked_sha256 is None else masked_sha256
        checked = self.query.refusals([one.payload for _, one in opened])
        for (number, found), refusal in zip(opened, checked, strict=True):
            if refusal is None and (found.payload[MASK_SEED_BYTES:] if self.masked_bytes else b"") != vectors[number]:
                refusal = Refusal.MALFORMED
            judged[number] = found if refusal is None else refusal
        return judged

    def keep(self, judged: Sequence[Judged | Refusal]) -> list[Refusal | None]:
        """Counts what ``judge`` accepted, each once, in order; for each the reason where it is refused."""
        return [one if isinstance(one, Refusal) else self._keep(one) for one in judged]

    def resubmit(self, stored: Iterable[bytes]) -> None:
        """``submit`` of what the host stored of accepted contributions, a few in memory at once."""
        remaining = iter(stored)
        while block := list(itertools.islice(remaining, self._block)):
            if self.halves is None:
                self.submit(block)
            else:
                sealed, masked_sha256 = zip(*map(split_stored, block), strict=True)
                self.submit(sealed, masked_sha256=masked_sha256)

    def freeze(self) -> tuple[int, bytes]:
        """Closes the set: (number of contributions, SHA-256 over the sorted pairs of id and payload hash).

        The payload hash is part of it because the host may hold two contributions of one device under one id, of
        which the first counted: after a restart with the second, the same noise would reveal their difference.
        """
        with self._lock:
            self._frozen = True
            if self.announced is not None:
                return self.announced.clients, self.announced.set_sha256
            return len(self._seen), self._seen.sha256()

    def announce(self, clients: int, set_sha256: bytes) -> None:
        """Takes what the host can unmask in a round of SecAgg+ that is open.

        Raises:
            StateError: the round is closed, or aggregated otherwise.
            ConfigurationError: more clients than the round may have, or no hash.
        """
        with self._lock:
            if self.announced is None or self._frozen:
                raise StateError(f"round {self.number} takes no survivors now")
            _validate.integer(low=0, high=self._most, clients=clients)
            self.announced.set(clients, set_sha256)

    def thaw(self) -> None:
        """Opens the set again: nothing was charged for it."""
        with self._lock:
            self._frozen = False

    def noisy_sums(self, noise: RoundNoise, masked: MaskedSum | None = None) -> dict[str, Int64Array]:
        """The integers of the release, by release name, of the frozen set.

        ``noise`` is what was drawn for the round. ``masked`` is the host's half of a masked round, and None of any
        other.

        Raises:
            StateError: the noise is of another round, or the sums are not those of the set, or the host's half is
                missing.
            PrivacyError: the host's half is of another set.
            ConfigurationError: the host's half has another length.
        """
        if noise.noise_id != self.record.noise_id:
            raise StateError(f"the noise of round {self.number} is another one: restore the newest state folder")
        with self._lock:
            if not self._frozen:
                raise StateError(f"round {self.number} is still open")
            if self.announced is not None:
                return self.announced.sums(self.query.releases, masked)
            self._add_waiting()
            total = self.query.new_sum(oblivious=self._oblivious) if self._sum is None else self._sum
            if total.count != len(self._seen):
                raise StateError(f"round {self.number} lost contributions in memory; start the program again")
            totals = total.totals() if self._draw is None else self._draw.within_cap(total.totals())
        arrays = noise.arrays
        if self.halves is not None:
            given = require_masked(masked, round=self.number)
            self.halves.require(given)
            return {name: unmasked(given.sum, masks, noise=arrays[name]) for name, masks in totals.items()}
        return {
            release.name: _add(release, totals[release.name], arrays[release.name]) for release in self.query.releases
        }

    def erase(self) -> None:
        """Drops contributions, sums and the round's secrets; its public key and its marks stay."""
        with self._lock:
            self._frozen = True
            self._key = None
            self.record = dataclasses.replace(self.record, draw_seed=b"", hpke_key=b"")
            self._seen, self._waiting = Seen(), []
            self._sum = self._draw = self.halves = None

    def _open(self, sealed: bytes) -> bytes | bytearray:
        # The exact length leaves no room for unknown or repeated fields, nor for numbers written longer than needed.
        if len(sealed) != self.sealed_bytes:
            raise ContributionRefused(Refusal.MALFORMED)
        key = self._key
        if key is None:  # closed in between
            raise ContributionRefused(Refusal.ROUND_CLOSED)
        return segments.open_segments(key, sealed, self._info) if self._large else key.open(sealed, self._info)

    def _parse(self, plaintext: bytes | bytearray) -> tuple[aggregator_pb2.Contribution, bytes]:
        """The contribution, and its payload: each access to that field makes a copy."""
        try:
            given = aggregator_pb2.Contribution.FromString(plaintext)  # type: ignore[arg-type]  # any buffer
        except DecodeError:
            raise ContributionRefused(Refusal.MALFORMED) from None
        task, model, payload = given.task_sha256, given.model_sha256, given.payload
        hashes = (task, model, given.contribution_id, given.pseudonym)
        if any(len(value) != HASH_BYTES for value in hashes) or len(payload) != self.query.payload_bytes:
            raise ContributionRefused(Refusal.MALFORMED)
        if len(given.token) != self._admission.token_bytes:
            raise ContributionRefused(Refusal.MALFORMED)
        if task != self.task_sha256:
            raise ContributionRefused(Refusal.WRONG_TASK)
        if given.round != self.number:
            raise ContributionRefused(Refusal.WRONG_ROUND)
        if model != self.model_sha256:
            raise ContributionRefused(Refusal.WRONG_MODEL)
        if not self._admission.admits(given):
            raise ContributionRefused(Refusal.NO_TOKEN)
        return given, payload

    def _keep(self, judged: Judged) -> Refusal | None:
        contribution, payload, mark = judged
        contribution_id, digest = contribution.contribution_id, hashlib.sha256(payload).digest()
        with self._lock:
            if self._frozen:
                return Refusal.ROUND_CLOSED
            if len(self._seen) >= self._most:
                held = self._seen.holds(contribution_id, contribution.pseudonym)
                return Refusal.ALREADY_CONTRIBUTED if held else Refusal.ROUND_CLOSED
            if self.halves is not None and self.halves.holds(payload):
                held = self._seen.holds(contribution_id, contribution.pseudonym)
                return Refusal.ALREADY_CONTRIBUTED if held else Refusal.MALFORMED
            if not self._seen.add(contribution_id, contribution.pseudonym, digest):
                return Refusal.ALREADY_CONTRIBUTED
            if self.halves is not None:
                self.halves.add(payload)
            self.marks += mark
            self._waiting.append(payload if self._draw is None else self._draw.counted(contribution_id, payload))
            if len(self._waiting) >= self._block:
                self._add_waiting()
        return None

    def _add_waiting(self) -> None:
        # Taken off first: after an error half-way, the count does not match the set and nothing is released.
        block, self._waiting = self._waiting, []
        if block:
            if self._sum is None:
                self._sum = self.query.new_sum(oblivious=self._oblivious)
            self._sum.add(block)


def contribution_bytes(round: int, payload_bytes: int, token_bytes: int = 0) -> int:
    """Length of the plaintext of every contribution of a round."""
    filled = bytes(HASH_BYTES)
    return aggregator_pb2.Contribution(
        task_sha256=filled, round=round, model_sha256=filled, contribution_id=filled, pseudonym=filled,
        payload=bytes(payload_bytes), token=bytes(token_bytes),
    ).ByteSize()  # fmt: skip


def _add(release: DeclaredRelease, total: Int64Array, noise: Int64Array) -> Int64Array:
    if total.shape != release.shape or noise.shape != release.shape:
        raise StateError(f"release {release.name!r} has another shape than declared")
    for values in (total, noise):
        if values.size and (int(values.max()) >= _LARGEST_INTEGER or int(values.min()) <= -_LARGEST_INTEGER):
            raise StateError(f"release {release.name!r} does not fit 64-bit integers")
    return total + noise
