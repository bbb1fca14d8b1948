"""The sealed sum of a leaf, on its way to the root: segments of 1 MiB under a key that both derive from the round's.

::

    piece = leaf (4 bytes) || salt (32) || number (4) || AES-256-GCM(segment)

Segment 0 is a PartHeader, those after it are the sums of all releases, int64 little-endian, one after the other. The
key is HKDF of the round's secrets under a fresh salt, and so is of one sum alone: who opens a piece knows that a leaf's
enclave made it, for this round and this number of the leaf, and the additional data names its place.

Sources: RFC 5869 (key), NIST SP 800-38D (segments).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
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
from odp.crypto.segments import SEGMENT_BYTES
from odp.errors import StateError
from odp.numerics.arrays import Int64Array
from odp.v1 import leaf_pb2
from trusted_aggregator.state.sealed_state import HASH_BYTES, RoundRecord

_HEAD = struct.Struct("!I32sI")
_TAG_BYTES = 16
_ITEM_BYTES = 8
_KEY_BYTES = 32


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
