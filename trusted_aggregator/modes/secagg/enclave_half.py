"""The enclave's part in a round of SecAgg+: no vector, no noise, and the charge before anything is unmasked.

The devices add the noise, each a share of it, and the host unmasks their sum: what the enclave guarantees of such a
round is its ledger. It is told which survivors can be unmasked, charges for exactly these once, and signs one release,
of the sum that comes under that name. The signature says that the round was charged; that the sum is the devices' is
the host's word, and that it is noisy is the devices'.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from odp.algorithms.dense.query import DenseQuery
from odp.algorithms.seam import DeclaredRelease, Int64Array, Sum
from odp.crypto.secure_aggregation.masked import DIGEST_BYTES, MaskedSum
from odp.errors import ConfigurationError, ContributionRefused, PrivacyError, Refusal, StateError

_NUMBER = np.dtype("<i8")
# As the enclave's own sums.
_LARGEST_INTEGER = 2**62


class AnnouncedQuery:
    """``odp.algorithms.seam.Query`` of the same release as ``dense``, to which nobody contributes at the enclave."""

    payload_bytes = 1

    def __init__(self, dense: DenseQuery) -> None:
        self.releases: tuple[DeclaredRelease, ...] = dense.releases
        self.maximum = dense.maximum

    def check(self, payload: bytes) -> None:
        """Raises ContributionRefused (MALFORMED): contributions go to a session of clients."""
        raise ContributionRefused(Refusal.MALFORMED)

    def refusals(self, payloads: Sequence[bytes]) -> list[Refusal | None]:
        """``check`` of each."""
        return [Refusal.MALFORMED] * len(payloads)

    def new_sum(self, *, oblivious: bool = False) -> Sum:
        """Raises StateError: the enclave sums nothing."""
        raise StateError("a round of SecAgg+ is summed by its host alone")


def enclave_draws(query: object) -> bool:
    """Whether the enclave adds the noise of a query's releases."""
    return not isinstance(query, AnnouncedQuery)


class Announced:
    """Which survivors the host can unmask in one round. Not thread-safe: its owner calls it under a lock."""

    def __init__(self, round: int) -> None:
        self._round = round
        self.clients = 0
        self.set_sha256 = b""

    def set(self, clients: int, set_sha256: bytes) -> None:
        """Takes the newest session's survivors. Raises ConfigurationError for a hash of another length."""
        if len(set_sha256) != DIGEST_BYTES:
            raise ConfigurationError(f"Expected set_sha256 to be {DIGEST_BYTES} bytes, got {len(set_sha256)}")
        self.clients, self.set_sha256 = clients, set_sha256

    def sums(self, releases: Sequence[DeclaredRelease], given: MaskedSum | None) -> dict[str, Int64Array]:
        """The integers of the release: the host's sum over the announced survivors, their noise in it.

        Raises:
            StateError: the host handed in nothing.
            PrivacyError: the sum is over other survivors.
            ConfigurationError: the sum has another length, or numbers beyond what a sum can have.
        """
        (release,) = releases
        if given is None:
            raise StateError(f"round {self._round} is of SecAgg+: its release needs the host's sum")
        if given.set_sha256 != self.set_sha256:
            raise PrivacyError(
                f"the host unmasked other clients than those that round {self._round} was charged for: nothing is "
                "released"
            )
        if len(given.sum) != _NUMBER.itemsize * release.coordinates:
            raise ConfigurationError(
                f"Expected a sum of {_NUMBER.itemsize * release.coordinates} bytes, got {len(given.sum)}"
            )
        total = np.frombuffer(given.sum, dtype=_NUMBER).astype(np.int64).reshape(release.shape)
        if int(total.max()) >= _LARGEST_INTEGER or int(total.min()) <= -_LARGEST_INTEGER:
            raise ConfigurationError("Expected a sum within 62 bits")
        return {release.name: total}
