"""The enclave's half of a masked round: seeds in place of vectors, and the one set that host and enclave both sum.

Guarantee: with the masked sum of another set than the enclave's, the masks do not cancel, and what comes out is
uniformly random to whoever lacks a seed of the difference. Naming the set by its hash turns that into a refusal, so
that honest mistakes are found before anything is released.

The mask of a seed protects one vector. A seed, or a masked vector, that comes twice is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from odp.algorithms.dense.query import DenseQuery
from odp.algorithms.seam import DeclaredRelease, Query, refusals_one_by_one
from odp.crypto import domains
from odp.crypto.secure_aggregation.masked import (
    DIGEST_BYTES,
    SECRET_BYTES,
    SEED_BYTES,
    MaskedSum,
    MaskSum,
    set_sha256,
)
from odp.errors import ConfigurationError, ContributionRefused, PrivacyError, Refusal, StateError
from odp.v1 import common_pb2
from trusted_aggregator.modes.secagg.enclave_half import AnnouncedQuery

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


def aggregated(query: Query, definition: common_pb2.TaskDefinition, *, task_sha256: bytes, round: int) -> Query:
    """``query`` as the task's aggregation has it.

    Raises:
        ConfigurationError: the aggregation is masked or SecAgg+, and the contributions are not dense.
    """
    if definition.cohort.aggregation == common_pb2.CohortTerms.AGGREGATION_UNSPECIFIED:
        return query
    if not isinstance(query, DenseQuery):
        raise ConfigurationError("Expected dense contributions for aggregation='masked' or 'secagg+'")
    if definition.cohort.aggregation == common_pb2.CohortTerms.AGGREGATION_SECAGG:
        return AnnouncedQuery(query)
    return MaskedQuery(query, info=domains.masked_vector_info(task_sha256, round))


class HalfSet:
    """The enclave's halves of one round. Not thread-safe: its owner calls it under a lock."""

    def __init__(self, task_sha256: bytes, round: int) -> None:
        self._task_sha256 = task_sha256
        self._round = round
        self._seeds: set[bytes] = set()
        self._digests: set[bytes] = set()
        self._sorted: list[bytes] = []

    def holds(self, payload: bytes) -> bool:
        """Whether the seed or the digest of ``payload`` came before."""
        return payload[:SEED_BYTES] in self._seeds or payload[SEED_BYTES:] in self._digests

    def add(self, payload: bytes) -> None:
        """Takes a checked payload."""
        self._seeds.add(payload[:SEED_BYTES])
        self._digests.add(payload[SEED_BYTES:])

    def page(self, start: int) -> bytes:
        """Digests from number ``start`` on, ascending, at most a page of them."""
        return b"".join(self._ascending()[start : start + PAGE])

    def require(self, given: MaskedSum) -> None:
        """Raises PrivacyError unless ``given`` is over this set."""
        if given.set_sha256 != set_sha256(self._task_sha256, self._round, self._ascending()):
            raise PrivacyError(
                f"the host summed another set of masked vectors than the enclave's in round {self._round}: nothing is "
                "released; sum exactly the vectors that the enclave names"
            )

    def _ascending(self) -> list[bytes]:
        if len(self._sorted) != len(self._digests):
            self._sorted = sorted(self._digests)
        return self._sorted


def split_stored(stored: bytes) -> tuple[bytes, bytes]:
    """(sealed contribution, digest of its masked vector) of what the host kept as one ciphertext."""
    return stored[:-DIGEST_BYTES], stored[-DIGEST_BYTES:]


def require_masked(given: MaskedSum | None, *, round: int) -> MaskedSum:
    """``given``. Raises StateError where the host handed in nothing."""
    if given is None:
        raise StateError(f"round {round} is masked: its release needs the host's sum")
    return given
