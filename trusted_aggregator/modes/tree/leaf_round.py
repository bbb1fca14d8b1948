"""A leaf's part of a round: it takes the contributions of its own devices, and gives their sum to the root alone."""

from __future__ import annotations

import dataclasses

from odp.crypto.leaves import leaf_of
from odp.errors import ContributionRefused, Refusal, StateError
from odp.v1 import aggregator_pb2, leaf_pb2
from trusted_aggregator.modes.enclave.enclave_half import EnclaveRound
from trusted_aggregator.modes.tree.parts import PartSecret, SealedPart


class LeafRound(EnclaveRound):
    """One leaf's part, under the policy of its root. ``leaf`` is set before the first contribution."""

    # Another leaf takes what this one refuses, and another copy of this one may take what this set does not have.
    signs_refusals = False
    leaf = 0
    _part: SealedPart | None = None

    def close(self) -> SealedPart:
        """Closes the part, and drops the round's private key; the same sum at each call.

        Raises StateError where contributions were lost in memory.
        """
        self.freeze()
        with self._lock:
            if self._part is None:
                self._part = self._sealed()
                self._key = None
                self.record = dataclasses.replace(self.record, draw_seed=b"", hpke_key=b"")
            return self._part

    def _sealed(self) -> SealedPart:
        secret = PartSecret.of(self.record, self.task_sha256, self.number, self.leaf)
        header = leaf_pb2.PartHeader(
            contributions=self.contributions, drawn=self._draw.drawn, set_sha256=self._set_sha256()
        )
        return SealedPart(self.leaf, secret, header, self._exact_sums(), self.query.releases)

    def _parse(self, plaintext: bytes | bytearray) -> tuple[aggregator_pb2.Contribution, bytes]:
        contribution, payload = super()._parse(plaintext)
        if leaf_of(self.task_sha256, self.number, contribution.pseudonym, self._policy.leaves) != self.leaf:
            raise ContributionRefused(Refusal.WRONG_LEAF)
        return contribution, payload

    def _erase(self) -> None:
        super()._erase()
        self._part = None

    def thaw(self) -> None:
        """Raises StateError: what a leaf handed in, it cannot add to."""
        raise StateError("a leaf's part of a round stays closed")
