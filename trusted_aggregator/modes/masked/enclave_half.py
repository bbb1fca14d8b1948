"""The enclave's half of a masked round: seeds in place of vectors, over the same set that the host sums.

Guarantee: with the masked sum of another set than the enclave's, the masks do not cancel, and what comes out is
uniformly random to whoever lacks a seed of the difference. Naming the set by its hash turns that into a refusal, so
that honest mistakes are found before anything is released.

The mask of a seed protects one vector. A seed, or a masked vector, that comes twice is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from odp.algorithms.declared import DeclaredRelease
from odp.algorithms.dense.query import DenseQuery
from odp.algorithms.seam import Query, StreamQuery, refusals_one_by_one
from odp.crypto import domains
from odp.crypto.secure_aggregation.masked import (
    DIGEST_BYTES,
    SECRET_BYTES,
    SEED_BYTES,
    MaskSum,
    set_sha256,
    unmasked,
    wrapped,
)
from odp.errors import ContributionRefused, PrivacyError, Refusal, StateError
from odp.numerics.arrays import Int64Array
from odp.privacy.events import Sampling
from odp.privacy.matrix.encoding import Encoder
from odp.trust.enclave.policy import EnclavePolicy
from odp.v1 import aggregator_pb2
from trusted_aggregator.boundary.interface import HostSum, Status
from trusted_aggregator.modes.enclave.enclave_half import EnclaveRound
from trusted_aggregator.rounds.enclave_half import dense, encoded
from trusted_aggregator.state.sealed_state import RoundNoise, RoundRecord

#: So many digests travel in one message.
PAGE = 2**15


class MaskedQuery:
    """``odp.algorithms.seam.Query`` of the same release as ``dense``, over seeds.

    The bound of a vector cannot be checked: it holds for every device that keeps to the protocol, and protects that
    device. One that does not can spoil the sum, whose release stays private for all others.
    """

    payload_bytes = SECRET_BYTES

    def __init__(self, dense: DenseQuery, *, info: bytes) -> None:
        self.releases: tuple[DeclaredRelease, ...] = dense.releases
        self.maximum = dense.maximum
        #: Length of each masked vector.
        self.vector_bytes = dense.payload_bytes
        self._size = dense.grid.size
        self._info = info

    def check(self, payload: bytes) -> None:
        """Raises ContributionRefused (MALFORMED) unless ``payload`` is a seed and a digest."""
        if len(payload) != SECRET_BYTES:
            raise ContributionRefused(Refusal.MALFORMED)

    def refusals(self, payloads: Sequence[bytes]) -> list[Refusal | None]:
        """``check`` of each."""
        return refusals_one_by_one(self.check, payloads)

    def new_sum(self, *, oblivious: bool = False) -> MaskSum:
        """An empty sum of masks; oblivious either way."""
        return MaskSum(self.releases[0].name, self._size, info=self._info)


class MaskedRound(EnclaveRound):
    """A round of seeds: the enclave sums their masks, the host the masked vectors.

    Of a stream, the sum of a round is opened in the enclave, modulo 2^32, and encoded there.
    """

    wraps = True

    def __init__(
        self, *, task_sha256: bytes, order: aggregator_pb2.RoundOrder, record: RoundRecord, query: Query,
        policy: EnclavePolicy, sampling: Sampling | None = None, most: int,
    ) -> None:  # fmt: skip
        masked = MaskedQuery(
            dense(query, aggregation="masked"), info=domains.masked_vector_info(task_sha256, order.round)
        )
        self.host_part_bytes = masked.vector_bytes
        self._halves = HalfSet(task_sha256, order.round)
        super().__init__(
            task_sha256=task_sha256, order=order, record=record, query=masked, policy=policy, sampling=sampling,
            most=most,
        )  # fmt: skip

    @classmethod
    def require(cls, query: Query) -> None:
        dense(query, aggregation="masked")
        if isinstance(query, StreamQuery):
            query.encoder(wrapped=True)

    def host_parts(self, start: int) -> bytes:
        if self.status is not Status.CHARGED:
            raise StateError(f"round {self.number} does not wait for a masked sum; close it first")
        return self._halves.page(start)

    def _resubmit(self, stored: Sequence[bytes]) -> None:
        sealed, host_sha256 = zip(*((row[:-DIGEST_BYTES], row[-DIGEST_BYTES:]) for row in stored), strict=True)
        self.submit(sealed, host_sha256=host_sha256)

    def _host_sha256(self, payload: bytes) -> bytes:
        return payload[SEED_BYTES:]

    def _repeats(self, payload: bytes) -> bool:
        return self._halves.holds(payload)

    def _note(self, payload: bytes) -> None:
        self._halves.add(payload)

    def _noised(
        self, totals: dict[str, Int64Array], noise: RoundNoise, host_sum: HostSum | None, encoder: Encoder | None
    ) -> dict[str, Int64Array]:
        if host_sum is None:
            raise StateError(f"round {self.number} is masked: its release needs the host's sum")
        self._halves.require(host_sum)
        if encoder is None:
            return {name: unmasked(host_sum.sum, masks, noise=noise.arrays[name]) for name, masks in totals.items()}
        sums = {name: unmasked(host_sum.sum, masks, noise=np.zeros_like(masks)) for name, masks in totals.items()}
        return {name: wrapped(total + noise.arrays[name]) for name, total in encoded(sums, encoder).items()}

    def _erase(self) -> None:
        super()._erase()
        self._halves = HalfSet(self.task_sha256, self.number)


class HalfSet:
    """The enclave's halves of one round. Not thread-safe: its owner calls it under a lock."""

    def __init__(self, task_sha256: bytes, round: int) -> None:
        self._task_sha256, self._round = task_sha256, round
        self._seeds: set[bytes] = set()
        self._digests: set[bytes] = set()
        self._sorted: list[bytes] = []

    def holds(self, payload: bytes) -> bool:
        """Whether the seed or the digest of ``payload`` is in the set."""
        return payload[:SEED_BYTES] in self._seeds or payload[SEED_BYTES:] in self._digests

    def add(self, payload: bytes) -> None:
        """Adds a checked payload."""
        self._seeds.add(payload[:SEED_BYTES])
        self._digests.add(payload[SEED_BYTES:])

    def page(self, start: int) -> bytes:
        """Digests from number ``start`` on, ascending, at most a page of them."""
        return b"".join(self._ascending()[start : start + PAGE])

    def require(self, host_sum: HostSum) -> None:
        """Raises PrivacyError unless ``given`` is over this set."""
        if host_sum.set_sha256 != set_sha256(self._task_sha256, self._round, self._ascending()):
            raise PrivacyError(
                f"the host's set of masked vectors differs from the enclave's in round {self._round}: nothing is "
                "released; sum exactly the vectors that the enclave names"
            )

    def _ascending(self) -> list[bytes]:
        if len(self._sorted) != len(self._digests):
            self._sorted = sorted(self._digests)
        return self._sorted
