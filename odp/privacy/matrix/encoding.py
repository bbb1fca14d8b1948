"""Encode in the enclave, decode at the server: what the matrix mechanisms of DP-FTRL have in common.

A stream of round sums G (rounds x size, whole numbers) is released as Y = C G + Z, with a lower triangular *encoder
matrix* C and independent noise Z. The server wants prefix sums A G (A: ones on and below the diagonal), and computes
A C^-1 Y = A G + (A C^-1) Z: the prefix sums, with correlated noise. The entries of C are whole numbers over 2^bits, so
that C G lies on a grid 2^bits times finer than that of G, exactly, and noise on the same grid makes a release a rounded
Gaussian mechanism (rule P18). The usual form, each sum with correlated noise C^-1 Z, cannot be put on a grid: the
low bits of a round would show old noise.

Adaptive inputs are allowed: later contributions may depend on earlier releases.

Sources: Denisov et al. 2022, "Improved differential privacy for SGD via optimal private linear operators on adaptive
streams"; Kairouz et al. 2021.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.errors import DataError, StateError
from odp.numerics.arrays import Float64Array, Int64Array
from odp.privacy.matrix.sensitivity import Participation

MOST_BITS = 40
MOST_SIZE = 2**26
#: Encoded numbers stay below this: noise can be added without a carry into the sign.
LARGEST = 2**62

_ROWS = 256
_HEADER = struct.Struct("<4s32sQQ")  # kind, matrix, round, size


class Encoder(Protocol):
    """The enclave's half of one stream: raw sums in, encoded sums out, round by round.

    Its state holds raw sums of past rounds, the most secret data of a task: it is sealed, bound to the monotonic
    counter, and numbers that no later round needs are overwritten.
    """

    @property
    def round(self) -> int:
        """The round whose sum comes next, from 0."""
        ...

    def step(self, total: Int64Array) -> Int64Array:
        """The encoded sum of this round, int64 [size], in steps of the grid divided by 2^bits.

        Raises:
            DataError: another size, a number beyond the limit, or the stream had all its rounds; nothing has changed.
        """
        ...

    def to_bytes(self) -> bytes:
        """The state; its length depends on the matrix and the size alone."""
        ...

    @property
    def state_bytes(self) -> int:
        """The length of ``to_bytes``, which is not made for it: it may be half a gigabyte."""
        ...


class Decoder(Protocol):
    """The server's half: encoded sums with noise in, estimates of the prefix sums out. Costs no privacy."""

    @property
    def round(self) -> int:
        """The round whose release comes next, from 0."""
        ...

    def step(self, release: npt.NDArray[np.number]) -> Float64Array:
        """The estimated sum of all rounds so far, float64 [size], in steps of the grid of the sums.

        ``release`` is an encoded sum with its noise, on the encoded grid.

        Raises:
            DataError: as ``Encoder.step``.
        """
        ...

    def to_bytes(self) -> bytes:
        """The state."""
        ...


class EncoderMatrix(Protocol):
    """A lower triangular matrix C of ``rounds`` rows and columns whose entries are multiples of 2^-bits."""

    @property
    def rounds(self) -> int:
        """Rounds of the stream."""
        ...

    @property
    def bits(self) -> int:
        """An encoded sum is on a grid 2^bits times finer than the sum."""
        ...

    @property
    def rounding(self) -> float:
        """How far an encoded number can be from C G, in steps of the grid of G; 0 where encoding is exact."""
        ...

    @property
    def digest(self) -> bytes:
        """SHA-256 of all numbers of the matrix."""
        ...

    def matrix(self) -> Float64Array:
        """C, float64 [rounds, rounds]."""
        ...

    def sensitivity(self, allowed: Participation) -> float:
        """The most that vectors of norm 1 of one user move C G, never too small."""
        ...

    def noise_factors(self) -> Float64Array:
        """Norm of each row of A C^-1, float64 [rounds]: error std of each prefix sum over the std of the noise."""
        ...

    def encoder(self, size: int, *, limit: int, state: bytes | None = None) -> Encoder:
        """A new encoder for sums of ``size`` numbers within ``limit`` steps, or the one that wrote ``state``.

        ``limit`` has to hold whatever devices send (the most contributions times the largest number of one): a refusal
        of a round must not depend on data.

        Raises:
            ConfigurationError: encoded numbers could leave 62 bits.
            StateError: the state is of another stream, or was cut.
        """
        ...

    def decoder(self, size: int, *, state: bytes | None = None) -> Decoder:
        """A new decoder, or the one that wrote ``state``. Raises StateError as ``encoder``."""
        ...


def digest_of(kind: str, bits: int, numbers: Sequence[Int64Array]) -> bytes:
    """SHA-256 of a matrix: its kind, its bits, and the arrays that it is made of."""
    hasher = hashlib.sha256(f"odp encoder matrix {kind} {bits}".encode())
    for array in numbers:
        hasher.update(f" {array.shape} ".encode())
        # In parts: of a matrix with equal rows, memory holds one.
        for start in range(0, len(array), _ROWS):
            hasher.update(np.ascontiguousarray(array[start : start + _ROWS], dtype="<i8").tobytes())
    return hasher.digest()


def require_size(size: int) -> None:
    """Raises ConfigurationError unless sums can have that many numbers."""
    _validate.integer(low=1, high=MOST_SIZE, size=size)


def require_limit(limit: int, growth: int) -> None:
    """Raises ConfigurationError unless numbers up to ``limit``, times ``growth``, stay within 62 bits."""
    _validate.integer(low=1, high=max(1, (LARGEST - 1) // growth), limit=limit)


def checked(total: npt.NDArray[np.number], *, size: int, round: int, rounds: int, limit: int | None = None) -> None:
    """Raises DataError unless ``total`` [size] can be the sum of the next round."""
    if round >= rounds:
        raise DataError(f"The stream has had its {rounds} rounds: start a new one, which is charged on its own")
    if total.shape != (size,):
        raise DataError(f"Expected {size} numbers in a round of the stream (got shape {list(total.shape)})")
    # Not by absolute value: of the least int64 there is none.
    if limit is not None and (int(total.max()) > limit or int(total.min()) < -limit):
        raise DataError(f"Expected the numbers of a round sum to be within {limit} steps")


def packed(kind: bytes, digest: bytes, round: int, size: int, arrays: Sequence[npt.NDArray[np.generic]]) -> bytes:
    """The state of a stream as bytes, little-endian."""
    parts = [_HEADER.pack(kind, digest, round, size)]
    parts += [array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes() for array in arrays]
    return b"".join(parts)


def packed_bytes(arrays: Sequence[npt.NDArray[np.generic]]) -> int:
    """The length of ``packed``."""
    return _HEADER.size + sum(array.nbytes for array in arrays)


def unpacked(
    kind: bytes, digest: bytes, size: int, arrays: Sequence[npt.NDArray[np.generic]], data: bytes, *, rounds: int
) -> int:
    """Fills ``arrays`` with what ``packed`` wrote, and returns the round.

    Raises:
        StateError: the bytes are of another kind, matrix or size, or were cut.
    """
    wanted = packed_bytes(arrays)
    if len(data) != wanted:
        raise StateError(f"Expected a stream's state of {wanted} bytes, got {len(data)}: restore a backup")
    header = _HEADER.unpack_from(data)
    if header[:2] != (kind, digest) or header[3] != size or header[2] > rounds:
        raise StateError("The state is of another stream: its kind, matrix, size or round differ; restore a backup")
    start = _HEADER.size
    for array in arrays:
        numbers = np.frombuffer(data, dtype=array.dtype.newbyteorder("<"), count=array.size, offset=start)
        array[...] = numbers.reshape(array.shape)
        start += array.nbytes
    return int(header[2])
