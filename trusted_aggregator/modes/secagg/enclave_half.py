"""The enclave's half of a round of SecAgg+: no vectors and no noise, but a charge before anything is unmasked.

The devices add the noise, each a share of it, and the host unmasks their sum: what the enclave guarantees of such a
round is its ledger. The host names the survivors that can be unmasked; the enclave charges for exactly these once, and
signs one release, of the sum that comes under that name. The signature says that the round was charged; that the sum is
the devices' rests on the host, and that it is noisy on the devices.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import numpy as np

from odp import _validate
from odp.algorithms.declared import DeclaredRelease
from odp.algorithms.seam import Query, StreamQuery
from odp.crypto.secure_aggregation.masked import DIGEST_BYTES
from odp.errors import ConfigurationError, PrivacyError, Refusal, StateError
from odp.numerics.arrays import Int64Array
from odp.privacy.matrix.encoding import Encoder
from odp.privacy.mechanisms import IntegerNoise
from trusted_aggregator.boundary.interface import HostSum
from trusted_aggregator.rounds.enclave_half import Judged, Round, dense
from trusted_aggregator.state.sealed_state import HASH_BYTES, RoundNoise

_NUMBER = np.dtype("<i8")
# As the enclave's own sums.
_LARGEST_INTEGER = 2**62


class SecAggRound(Round):
    """A round whose contributions go to sessions of clients at the host; the enclave refuses contributions."""

    # Its devices add the noise, and its host can unmask their sum.
    can_be_void = False
    # The newest session's survivors, as announced.
    _clients = 0
    _survivors_sha256 = b""

    @classmethod
    def require(cls, query: Query) -> None:
        dense(query, aggregation="secagg+")
        if isinstance(query, StreamQuery):
            raise ConfigurationError(
                "Expected aggregation='enclave' or 'masked' of a stream: noise of its devices would be on each sum, "
                "and has to be on the encoded one"
            )

    @classmethod
    def noised(cls, query: Query) -> tuple[DeclaredRelease, ...]:
        """No releases: the devices add the noise."""
        return ()

    @classmethod
    def draw_noise(cls, query: Query, noise: IntegerNoise) -> RoundNoise:
        """Only a name."""
        return RoundNoise(os.urandom(HASH_BYTES), {})

    @property
    def contributions(self) -> int:
        """Number of clients whose vectors the host can unmask."""
        return self._clients

    def judge(self, sealed: Sequence[bytes], *, host_sha256: Sequence[bytes] | None = None) -> list[Judged | Refusal]:
        """MALFORMED for each."""
        return [Refusal.MALFORMED] * len(sealed)

    def keep(self, judged: Sequence[Judged | Refusal]) -> list[Refusal | None]:
        """The refusals of ``judge``."""
        return [Refusal.MALFORMED] * len(judged)

    def resubmit(self, stored: Iterable[bytes]) -> None:
        """Does nothing: such a round accepts no contribution."""

    def announce(self, clients: int, set_sha256: bytes) -> None:
        """See ``Round``; a later announcement replaces an earlier one."""
        with self._lock:
            if self._frozen:
                raise StateError(f"round {self.number} accepts no survivors now")
            _validate.integer(low=0, high=self._most, clients=clients)
            if len(set_sha256) != DIGEST_BYTES:
                raise ConfigurationError(f"Expected set_sha256 to be {DIGEST_BYTES} bytes, got {len(set_sha256)}")
            self._clients, self._survivors_sha256 = clients, set_sha256

    def restore_charge(self, contributions: int, set_sha256: bytes) -> None:
        """The survivors are those of the ledger, which no host can roll back: no other set is ever signed."""
        self.announce(contributions, set_sha256)

    def _set_sha256(self) -> bytes:
        return self._survivors_sha256

    def _noisy_sums(
        self, noise: RoundNoise, host_sum: HostSum | None, encoder: Encoder | None
    ) -> dict[str, Int64Array]:
        """The host's sum over the announced survivors, with their noise."""
        (release,) = self.query.releases
        if host_sum is None:
            raise StateError(f"round {self.number} is of SecAgg+: its release needs the host's sum")
        if host_sum.set_sha256 != self._survivors_sha256:
            raise PrivacyError(
                f"the host unmasked other clients than those that round {self.number} was charged for: nothing is "
                "released"
            )
        if len(host_sum.sum) != _NUMBER.itemsize * release.coordinates:
            raise ConfigurationError(
                f"Expected a sum of {_NUMBER.itemsize * release.coordinates} bytes, got {len(host_sum.sum)}"
            )
        total = np.frombuffer(host_sum.sum, dtype=_NUMBER).astype(np.int64).reshape(release.shape)
        if int(total.max()) >= _LARGEST_INTEGER or int(total.min()) <= -_LARGEST_INTEGER:
            raise ConfigurationError("Expected a sum within 62 bits")
        return {release.name: total}

    def _erase(self) -> None:
        """Does nothing: a count and a name are public."""
