"""A round at the root of a tree: the sealed sums of the leaves take the place of contributions.

Guarantee, besides that of ``EnclaveRound``: of each leaf one sum counts, the first that came whole. The sets of two
leaves have no device in common, since a leaf's enclave takes only those whose pseudonym says so. The name of the set is
over the names of the leaves' sets. So whatever copies of a leaf a host runs, and whatever it brings back to them, the
charge is for one set of distinct devices, and only sums of that very set are ever noised under it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence

import numpy as np

from odp.crypto import domains
from odp.errors import Refusal, StateError
from odp.numerics.arrays import Int64Array
from odp.privacy.matrix.encoding import Encoder
from odp.v1 import leaf_pb2
from trusted_aggregator.boundary.interface import HostSum
from trusted_aggregator.modes.enclave.enclave_half import EnclaveRound
from trusted_aggregator.modes.tree.parts import OpeningPart, Part, PartSecret, Piece
from trusted_aggregator.rounds.enclave_half import Judged
from trusted_aggregator.state.sealed_state import RoundNoise

_MEMBER = struct.Struct("!II")


class RootRound(EnclaveRound):
    """One round of a tree; ``give`` takes the leaves' sums."""

    # Which ciphertexts counted, the leaves alone know.
    signs_refusals = False
    _headers: dict[int, leaf_pb2.PartHeader]
    _opening: dict[int, OpeningPart]
    _total: Int64Array | None = None

    @property
    def contributions(self) -> int:
        """The number of contributions in the sums that came."""
        return sum(header.contributions for header in self._parts_in().values())

    def has(self, leaf: int) -> bool:
        """Whether the sum of a leaf came."""
        return leaf in self._parts_in()

    def give(self, data: bytes) -> bool:
        """Takes the next piece of a leaf's sum; whether the leaf's sum is whole now.

        Piece 0 begins a sum anew. Once a leaf's sum is whole, further pieces of that leaf change nothing.

        Raises StateError: the round is closed, the piece does not open, or there are more contributions than the round
        may have.
        """
        piece = Piece.read(data)
        if piece.leaf >= self._policy.leaves:
            raise StateError(f"the tree has {self._policy.leaves} leaves, and no leaf {piece.leaf}")
        with self._lock:
            if piece.leaf in self._parts_in():
                return True
            if self._frozen:
                raise StateError(f"round {self.number} is closed")
            part = self._opened(piece)
            if part is None:
                return False
            self._add(piece.leaf, part)
            return True

    def judge(self, sealed: Sequence[bytes], *, host_sha256: Sequence[bytes] | None = None) -> list[Judged | Refusal]:
        return [Refusal.WRONG_LEAF] * len(sealed)

    def resubmit(self, stored: Iterable[bytes]) -> None:
        for piece in stored:
            try:
                self.give(piece)
            except StateError:
                # A sum that a death cut off; the charge names what has to be there.
                continue

    def _parts_in(self) -> dict[int, leaf_pb2.PartHeader]:
        # Of a class whose constructor every mode has in common.
        if "_headers" not in vars(self):
            self._headers, self._opening = {}, {}
        return self._headers

    def _opened(self, piece: Piece) -> Part | None:
        opening = self._opening.get(piece.leaf)
        if opening is None or opening.salt != piece.salt or not piece.number:
            secret = PartSecret.of(self.record, self.task_sha256, self.number, piece.leaf)
            opening = OpeningPart(secret, self.query.releases, piece.salt)
        try:
            part = opening.add(piece)
        except StateError:
            self._opening.pop(piece.leaf, None)
            raise
        if part is None:
            self._opening[piece.leaf] = opening
        else:
            self._opening.pop(piece.leaf, None)
        return part

    def _add(self, leaf: int, part: Part) -> None:
        if self.contributions + part.header.contributions > self._most:
            raise StateError(f"round {self.number} may have {self._most} contributions, and leaf {leaf} brings more")
        self._total = part.sums.copy() if self._total is None else self._total + part.sums
        self._headers[leaf] = part.header

    def _set_sha256(self) -> bytes:
        members = [
            _MEMBER.pack(leaf, header.contributions) + header.set_sha256
            for leaf, header in sorted(self._parts_in().items())
        ]
        return hashlib.sha256(b"".join([domains.part_set(self.task_sha256, self.number), *members])).digest()

    def _noisy_sums(
        self, noise: RoundNoise, host_sum: HostSum | None, encoder: Encoder | None
    ) -> dict[str, Int64Array]:
        if self._total is None:
            raise StateError(f"round {self.number} has no sum of a leaf")
        self._draw.drawn = sum(header.drawn for header in self._headers.values())
        totals, start = {}, 0
        for release in self.query.releases:
            end = start + release.coordinates
            totals[release.name] = np.reshape(self._total[start:end], release.shape)
            start = end
        return self._noised(self._draw.within_cap(totals), noise, host_sum, encoder)

    def _erase(self) -> None:
        super()._erase()
        self._parts_in().clear()
        self._opening.clear()
        self._total = None
