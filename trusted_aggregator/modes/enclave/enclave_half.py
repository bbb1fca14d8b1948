"""Rounds that the enclave sums itself: every contribution is opened, checked, counted once, and noised here.

Guarantee: what ``EnclaveRound.noisy_sums`` gives is the exact integer sum over pairwise distinct contributions, each of
which the declared query accepted, plus noise that was drawn before the first of them was opened. Where the task
samples, the sum is over the secret draw of ``sampling.py``; everything else, and every number that leaves, is as
without it.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterable, Sequence
from typing import cast

from google.protobuf.message import DecodeError

from odp.algorithms.declared import DeclaredRelease
from odp.algorithms.release import draw_noise
from odp.algorithms.seam import Query, SampledQuery, Sum
from odp.crypto import domains, segments
from odp.crypto.hpke import OVERHEAD, DecryptionError, HpkeKey
from odp.errors import ContributionRefused, Refusal, StateError
from odp.numerics.arrays import Int64Array
from odp.privacy.events import Sampling
from odp.privacy.matrix.encoding import Encoder
from odp.privacy.mechanisms import IntegerNoise
from odp.protocol.wire.long_fields import split_field
from odp.trust.enclave.policy import EnclavePolicy
from odp.v1 import aggregator_pb2
from trusted_aggregator.boundary.interface import HostSum
from trusted_aggregator.modes.enclave.accepted_set import AcceptedSet
from trusted_aggregator.modes.enclave.sampling import Draw, FullParticipation
from trusted_aggregator.rounds.enclave_half import MARK_BYTES, Admission, Judged, Round, encoded
from trusted_aggregator.state.sealed_state import HASH_BYTES, RoundNoise, RoundRecord

#: Number of accepted payloads that are summed at once: enough for one matrix product, little memory.
BLOCK = 512
BLOCK_BYTES = 2**23
# Sums and noise stay below this, so that adding them cannot wrap around in 64 bits.
_LARGEST_INTEGER = 2**62


def draw_round_noise(query: Query, noise: IntegerNoise) -> RoundNoise:
    """All noise of one round, under a new random name.

    Raises:
        PrivacyError: a declared release has less noise in a column than what its charge covers.
    """
    arrays = {release.name: draw_noise(release, noise) for release in query.releases}
    return RoundNoise(noise_id=os.urandom(HASH_BYTES), arrays=arrays)


class EnclaveRound(Round):
    """A round whose contributions the enclave opens; a subclass changes how it uses their payloads."""

    def __init__(
        self, *, task_sha256: bytes, order: aggregator_pb2.RoundOrder, record: RoundRecord, query: Query,
        policy: EnclavePolicy, sampling: Sampling | None = None, most: int,
    ) -> None:  # fmt: skip
        super().__init__(
            task_sha256=task_sha256, order=order, record=record, query=query, policy=policy, sampling=sampling,
            most=most,
        )  # fmt: skip
        self._draw: Draw | FullParticipation = FullParticipation()
        if sampling is not None and isinstance(query, SampledQuery):
            self._draw = Draw(record.draw_seed, sampling, empty=query.empty_payload)
        self._key: HpkeKey | None = HpkeKey.from_bytes(record.hpke_key)
        self._large = segments.is_large(query.payload_bytes)
        info = domains.large_contribution_info if self._large else domains.contribution_info
        self._info = info(task_sha256, order.round, order.model_sha256, policy.sha256)
        self._admission = Admission(record.token_key)
        plaintext_bytes = contribution_bytes(order.round, query.payload_bytes, self._admission.token_bytes)
        self.sealed_bytes = segments.sealed_bytes(plaintext_bytes) if self._large else plaintext_bytes + OVERHEAD
        self._block = min(BLOCK, max(1, BLOCK_BYTES // max(query.payload_bytes, self.host_part_bytes)))
        self._accepted_set = AcceptedSet()
        self._pseudonyms: list[bytes] = []
        self._waiting: list[bytes] = []
        self._sum: Sum | None = None  # made with the first block: it is large, and most rounds that are held are over

    @classmethod
    def require(cls, query: Query) -> None:
        """Accepts every query."""

    @classmethod
    def noised(cls, query: Query) -> tuple[DeclaredRelease, ...]:
        """All releases: see ``Round``."""
        return query.releases

    @classmethod
    def draw_noise(cls, query: Query, noise: IntegerNoise) -> RoundNoise:
        return draw_round_noise(query, noise)

    @property
    def contributions(self) -> int:
        """The number of accepted contributions."""
        return len(self._accepted_set)

    def judge(self, sealed: Sequence[bytes], *, host_sha256: Sequence[bytes] | None = None) -> list[Judged | Refusal]:
        judged: list[Judged | Refusal] = [Refusal.MALFORMED] * len(sealed)
        opened: list[tuple[int, Judged]] = []
        for number, ciphertext in enumerate(sealed):
            try:
                opened.append((number, Judged(*self._parse(self._open(ciphertext)), ciphertext[:MARK_BYTES])))
            except DecryptionError:
                continue
            except ContributionRefused as refused:
                judged[number] = refused.refusal
        host_parts = [b""] * len(sealed) if host_sha256 is None else host_sha256
        checked = self.query.refusals([judged.payload for _, judged in opened])
        for (number, contribution), refusal in zip(opened, checked, strict=True):
            if refusal is None and self._host_sha256(contribution.payload) != host_parts[number]:
                refusal = Refusal.MALFORMED
            if refusal is None and not self._is_due(contribution.contribution.pseudonym):
                refusal = Refusal.NOT_DUE
            judged[number] = contribution if refusal is None else refusal
        return judged

    def keep(self, judged: Sequence[Judged | Refusal]) -> list[Refusal | None]:
        return [verdict if isinstance(verdict, Refusal) else self._keep(verdict) for verdict in judged]

    def resubmit(self, stored: Iterable[bytes]) -> None:
        remaining = iter(stored)
        while block := list(itertools.islice(remaining, self._block)):
            self._resubmit(block)

    def participants(self) -> Sequence[bytes]:
        return tuple(self._pseudonyms)

    def _is_due(self, pseudonym: bytes) -> bool:
        return self.participation is None or self.participation.admits(pseudonym, self.number)

    def _resubmit(self, stored: Sequence[bytes]) -> None:
        self.submit(stored)

    def _host_sha256(self, payload: bytes) -> bytes:
        """The digest in a checked payload of the part at the host; empty if there is none."""
        return b""

    def _repeats(self, payload: bytes) -> bool:
        """Whether a part of a checked payload that must be unique came before."""
        return False

    def _note(self, payload: bytes) -> None:
        """Records the values that ``_repeats`` looks for."""

    def _set_sha256(self) -> bytes:
        # Over the payloads' hashes, too: the host may hold two contributions of one device under one id, of which the
        # first counted. After a restart with the second, the same noise would reveal their difference.
        return self._accepted_set.sha256()

    def _noisy_sums(
        self, noise: RoundNoise, host_sum: HostSum | None, encoder: Encoder | None
    ) -> dict[str, Int64Array]:
        return self._noised(self._draw.within_cap(self._exact_sums()), noise, host_sum, encoder)

    def _exact_sums(self) -> dict[str, Int64Array]:
        """The sums over the set, of those that were drawn, by release name."""
        self._add_waiting()
        total = self._new_sum() if self._sum is None else self._sum
        if total.count != len(self._accepted_set):
            raise StateError(f"round {self.number} lost contributions in memory; start the program again")
        return total.totals()

    def _noised(
        self, totals: dict[str, Int64Array], noise: RoundNoise, host_sum: HostSum | None, encoder: Encoder | None
    ) -> dict[str, Int64Array]:
        released = encoded(totals, encoder)
        return {
            release.name: _add(release, released[release.name], noise.arrays[release.name])
            for release in self.query.releases
        }

    def _erase(self) -> None:
        self._key = None
        self._accepted_set, self._pseudonyms, self._waiting = AcceptedSet(), [], []
        self.participation = None
        self._sum, self._draw = None, FullParticipation()

    def _open(self, sealed: bytes) -> bytes | bytearray:
        # The exact length leaves no room for unknown or repeated fields, nor for numbers written longer than needed.
        if len(sealed) != self.sealed_bytes:
            raise ContributionRefused(Refusal.MALFORMED)
        if (key := self._key) is None:  # closed in between
            raise ContributionRefused(Refusal.ROUND_CLOSED)
        return segments.open_segments(key, sealed, self._info) if self._large else key.open(sealed, self._info)

    def _parse(self, plaintext: bytes | bytearray) -> tuple[aggregator_pb2.Contribution, bytes]:
        """The contribution and its payload, read once: each access to that field copies it."""
        try:
            if self._large:
                rest, long = split_field(memoryview(plaintext), aggregator_pb2.Contribution.PAYLOAD_FIELD_NUMBER)
                contribution, payload = aggregator_pb2.Contribution.FromString(rest), cast(bytes, long)  # as a buffer
            else:
                contribution = aggregator_pb2.Contribution.FromString(plaintext)  # type: ignore[arg-type]  # any buffer
                payload = contribution.payload
        except DecodeError:
            raise ContributionRefused(Refusal.MALFORMED) from None
        task, model = contribution.task_sha256, contribution.model_sha256
        hashes = (task, model, contribution.contribution_id, contribution.pseudonym)
        if any(len(value) != HASH_BYTES for value in hashes) or len(payload) != self.query.payload_bytes:
            raise ContributionRefused(Refusal.MALFORMED)
        if len(contribution.token) != self._admission.token_bytes:
            raise ContributionRefused(Refusal.MALFORMED)
        if task != self.task_sha256:
            raise ContributionRefused(Refusal.WRONG_TASK)
        if contribution.round != self.number:
            raise ContributionRefused(Refusal.WRONG_ROUND)
        if model != self.model_sha256:
            raise ContributionRefused(Refusal.WRONG_MODEL)
        if not self._admission.admits(contribution):
            raise ContributionRefused(Refusal.NO_TOKEN)
        return contribution, payload

    def _keep(self, judged: Judged) -> Refusal | None:
        contribution, payload, mark = judged
        contribution_id, digest = contribution.contribution_id, hashlib.sha256(payload).digest()
        with self._lock:
            if self._frozen:
                return Refusal.ROUND_CLOSED
            if len(self._accepted_set) >= self._most:
                held = self._accepted_set.holds(contribution_id, contribution.pseudonym)
                return Refusal.ALREADY_CONTRIBUTED if held else Refusal.ROUND_CLOSED
            if self._repeats(payload):
                held = self._accepted_set.holds(contribution_id, contribution.pseudonym)
                return Refusal.ALREADY_CONTRIBUTED if held else Refusal.MALFORMED
            if not self._accepted_set.add(contribution_id, contribution.pseudonym, digest):
                return Refusal.ALREADY_CONTRIBUTED
            self._note(payload)
            if self.participation is not None:
                self._pseudonyms.append(contribution.pseudonym)
            self.marks += mark
            self._waiting.append(self._draw.counted(contribution_id, payload))
            if len(self._waiting) >= self._block:
                self._add_waiting()
        return None

    def _add_waiting(self) -> None:
        # Taken off first: after an error half-way, the count does not match the set and nothing is released.
        block, self._waiting = self._waiting, []
        if block:
            if self._sum is None:
                self._sum = self._new_sum()
            self._sum.add(block)

    def _new_sum(self) -> Sum:
        return self.query.new_sum(oblivious=self._policy.accumulation == "oblivious")


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
