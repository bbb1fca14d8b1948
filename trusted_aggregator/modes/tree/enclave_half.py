"""The enclaves' halves of a round of a tree: at a leaf, at the root, and the sealed sum between them.

A leaf takes the contributions of its own devices, and gives their sum to the root alone: segments of 1 MiB under a key
that both derive from the round's.

::

    piece = leaf (4 bytes) || salt (32) || number (4) || AES-256-GCM(segment)

Segment 0 is a PartHeader, those after it are the sums of all releases, int64 little-endian, one after the other. The
key is HKDF of the round's secrets under a fresh salt, and so is of one sum alone: who opens a piece knows that a leaf's
enclave made it, for this round and this number of the leaf, and the additional data names its place.

Guarantee of the root's round, besides that of ``EnclaveRound``: of each leaf one sum counts, the first that came whole.
The sets of two leaves have no device in common, since a leaf's enclave takes only those whose pseudonym says so. The
name of the set is over the names of the leaves' sets. So whatever copies of a leaf a host runs, and whatever it brings
back to them, the charge is for one set of distinct devices, and only sums of that very set are ever noised under it.

Sources: RFC 5869 (key), NIST SP 800-38D (segments).
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from google.protobuf.message import DecodeError

from odp.algorithms.declared import DeclaredRelease
from odp.crypto import domains
from odp.crypto.leaves import leaf_of
from odp.crypto.segments import SEGMENT_BYTES
from odp.errors import ContributionRefused, Refusal, StateError
from odp.numerics.arrays import Int64Array
from odp.privacy.matrix.encoding import Encoder
from odp.v1 import aggregator_pb2, leaf_pb2
from trusted_aggregator.boundary.interface import HostSum
from trusted_aggregator.modes.enclave.enclave_half import EnclaveRound
from trusted_aggregator.rounds.enclave_half import Judged
from trusted_aggregator.state.sealed_state import HASH_BYTES, RoundNoise, RoundRecord

_HEAD = struct.Struct("!I32sI")
_TAG_BYTES = 16
_ITEM_BYTES = 8
_KEY_BYTES = 32
_MEMBER = struct.Struct("!II")


class PartSecret(NamedTuple):
    """What the keys of the sums of one leaf's part of a round are derived from."""

    secret: bytes
    info: bytes

    @classmethod
    def of(cls, record: RoundRecord, task_sha256: bytes, round: int, leaf: int) -> PartSecret:
        """Of the round's record and the number of the leaf."""
        return cls(record.hpke_key + record.draw_seed, domains.part_info(task_sha256, round, leaf))

    def cipher(self, salt: bytes) -> AESGCM:
        """The cipher of one sum."""
        return AESGCM(HKDF(hashes.SHA256(), length=_KEY_BYTES, salt=salt, info=self.info).derive(self.secret))


class Piece(NamedTuple):
    """A sealed piece, as it is read; nothing in it is verified."""

    leaf: int
    salt: bytes
    number: int
    sealed: bytes

    @classmethod
    def read(cls, data: bytes) -> Piece:
        """Raises StateError where it is too short."""
        if len(data) <= _HEAD.size + _TAG_BYTES:
            raise StateError("a piece of a leaf's sum is cut: close the round again")
        leaf, salt, number = _HEAD.unpack_from(data)
        return cls(leaf, salt, number, data[_HEAD.size :])


def pieces_of(releases: Sequence[DeclaredRelease]) -> int:
    """The number of pieces of every sum of these releases."""
    return 1 + -(-_sum_bytes(releases) // SEGMENT_BYTES)


def _sum_bytes(releases: Sequence[DeclaredRelease]) -> int:
    return _ITEM_BYTES * sum(release.coordinates for release in releases)


class SealedPart:
    """The sum of a leaf, sealed piece by piece; each piece is the same at each call.

    Args:
        leaf: its number.
        secret: of the leaf's part of the round.
        header: what it comes to.
        sums: int64 by release name, of the declared shapes.
        releases: in the order of the sums.

    Raises:
        StateError: a sum has another shape than declared.
    """

    def __init__(
        self, leaf: int, secret: PartSecret, header: leaf_pb2.PartHeader, sums: Mapping[str, Int64Array],
        releases: Sequence[DeclaredRelease],
    ) -> None:  # fmt: skip
        for release in releases:
            if sums[release.name].shape != release.shape:
                raise StateError(f"release {release.name!r} has another shape than declared")
        self._leaf = leaf
        # One sum under one salt: so the nonces may be numbers.
        self._salt = os.urandom(HASH_BYTES)
        self._cipher = secret.cipher(self._salt)
        self._header = header.SerializeToString(deterministic=True)
        self._sums = b"".join(np.ascontiguousarray(sums[release.name], dtype="<i8").tobytes() for release in releases)
        self.contributions = header.contributions
        self.pieces = pieces_of(releases)

    def piece(self, number: int) -> bytes:
        """Piece ``number``. Raises StateError where there is none."""
        if not 0 <= number < self.pieces:
            raise StateError(f"a leaf's sum has {self.pieces} pieces, and no piece {number}")
        start = (number - 1) * SEGMENT_BYTES
        plaintext = self._sums[start : start + SEGMENT_BYTES] if number else self._header
        aad = domains.part_aad(self._salt, number, number == self.pieces - 1)
        return _HEAD.pack(self._leaf, self._salt, number) + self._cipher.encrypt(_nonce(number), plaintext, aad)


@dataclass(frozen=True)
class Part:
    """The opened sum of a leaf; ``sums`` are int64, one after the other."""

    header: leaf_pb2.PartHeader
    sums: Int64Array


class OpeningPart:
    """The pieces of one sum so far. Not thread-safe."""

    def __init__(self, secret: PartSecret, releases: Sequence[DeclaredRelease], salt: bytes) -> None:
        self.salt = salt
        self._cipher = secret.cipher(salt)
        self._pieces = pieces_of(releases)
        self._size = _sum_bytes(releases)
        self._next = 0
        self._header = leaf_pb2.PartHeader()
        self._sums = bytearray()

    def add(self, piece: Piece) -> Part | None:
        """Takes the next piece; the part with the last one.

        Raises StateError where it does not open as the next piece of this sum.
        """
        number = self._next
        if piece.number != number:
            raise StateError(f"piece {piece.number} of a leaf's sum came instead of {number}: close the round again")
        last = number == self._pieces - 1
        try:
            plaintext = self._cipher.decrypt(_nonce(number), piece.sealed, domains.part_aad(self.salt, number, last))
        except InvalidTag:
            raise StateError(f"piece {number} of a leaf's sum was changed, or is of another round or leaf") from None
        if number:
            self._sums += plaintext
        else:
            self._header = _header(plaintext)
        self._next += 1
        if not last:
            return None
        if len(self._sums) != self._size:
            raise StateError(f"a leaf's sum has {len(self._sums)} bytes instead of {self._size}")
        return Part(self._header, np.frombuffer(bytes(self._sums), dtype="<i8").astype(np.int64, copy=False))


def _header(plaintext: bytes) -> leaf_pb2.PartHeader:
    try:
        header = leaf_pb2.PartHeader.FromString(plaintext)
    except DecodeError:
        raise StateError("the header of a leaf's sum cannot be read") from None
    if len(header.set_sha256) != HASH_BYTES or header.drawn > header.contributions:
        raise StateError("the header of a leaf's sum is malformed")
    return header


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "big")


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
            if (part := self._opened(piece)) is None:
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
