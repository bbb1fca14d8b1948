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

One DP-FTRL stream: its numbers, its grid, its sensitivity, and what it costs.

Guarantee: all releases of the stream together are mu-GDP with ``mu = sensitivity / noise_std``, exactly, with no
assumption about sampling, if every contribution has norm at most ``clip`` on the grid of step ``step`` (rule P17) and
users take part as ``allowed`` says (``sensitivity.ParticipationRecord``). The whole stream is one event, charged
before its first release: later releases add nothing. A stream that ends early has spent it all.

Neighbours: all contributions of one user in the stream are zero in one of them; nothing else differs. Where nothing
that is released depends on how many contribute, the same holds for a user that is absent.

Source: Denisov et al. 2022 (adaptive streams); Choquette-Choo et al. 2023, theorem 2.1; the grid is rule P18.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.errors import ConfigurationError, DataError, StateError
from odp.numerics.arrays import Float64Array, Int64Array
from odp.privacy.accounting import mu_for
from odp.privacy.adjacency import Adjacency
from odp.privacy.events import StreamRelease
from odp.privacy.matrix.sensitivity import Participation
from odp.privacy.mechanisms.rounded_gaussian import MAX_RATIO, MIN_RATIO

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

    def step(self, total: Int64Array) -> Int64Array:
        """The encoded sum of this round, int64 [size], in steps of the grid divided by 2^bits.

        Raises:
            DataError: another size, a number beyond the limit, or the stream had all its rounds; nothing has changed.
        """

    def to_bytes(self) -> bytes:
        """The state; its length depends on the matrix and the size alone."""

    @property
    def state_bytes(self) -> int:
        """The length of ``to_bytes``, which is not made for it: it may be half a gigabyte."""


class Decoder(Protocol):
    """The server's half: encoded sums with noise in, estimates of the prefix sums out. Costs no privacy."""

    @property
    def round(self) -> int:
        """The round whose release comes next, from 0."""

    def step(self, release: npt.NDArray[np.number]) -> Float64Array:
        """The estimated sum of all rounds so far, float64 [size], in steps of the grid of the sums.

        ``release`` is an encoded sum with its noise, on the encoded grid.

        Raises:
            DataError: as ``Encoder.step``.
        """

    def to_bytes(self) -> bytes:
        """The state."""


class EncoderMatrix(Protocol):
    """A lower triangular matrix C of ``rounds`` rows and columns whose entries are multiples of 2^-bits."""

    @property
    def rounds(self) -> int:
        """Rounds of the stream."""

    @property
    def bits(self) -> int:
        """An encoded sum is on a grid 2^bits times finer than the sum."""

    @property
    def rounding(self) -> float:
        """How far an encoded number can be from C G, in steps of the grid of G; 0 where encoding is exact."""

    @property
    def digest(self) -> bytes:
        """SHA-256 of all numbers of the matrix."""

    def matrix(self) -> Float64Array:
        """C, float64 [rounds, rounds]."""

    def sensitivity(self, allowed: Participation) -> float:
        """The most that vectors of norm 1 of one user move C G, never too small."""

    def encoder(self, size: int, *, limit: int, state: bytes | None = None) -> Encoder:
        """A new encoder for sums of ``size`` numbers within ``limit`` steps, or the one that wrote ``state``.

        ``limit`` has to hold whatever devices send (the most contributions times the largest number of one): a refusal
        of a round must not depend on data.

        Raises:
            ConfigurationError: encoded numbers could leave 62 bits.
            StateError: the state is of another stream, or was cut.
        """

    def decoder(self, size: int, *, state: bytes | None = None) -> Decoder:
        """A new decoder, or the one that wrote ``state``. Raises StateError as ``encoder``."""


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


@dataclass(frozen=True, kw_only=True)
class Stream:
    """The public numbers of a stream.

    Attributes:
        matrix: the encoder matrix.
        allowed: how users take part.
        size: numbers of one round's sum.
        clip: L2 bound of one contribution, data units.
        step: of the grid that contributions are on, data units.
        noise_std: standard deviation of the noise on every encoded number, data units.

    Raises:
        ConfigurationError: a number is out of range, or matrix and participation are of different numbers of rounds.
    """

    matrix: EncoderMatrix
    allowed: Participation
    size: int
    clip: float
    step: float
    noise_std: float

    def __post_init__(self) -> None:
        require_size(self.size)
        _validate.positive(clip=self.clip, step=self.step, noise_std=self.noise_std)
        _validate.integer(low=self.matrix.rounds, high=self.matrix.rounds, rounds=self.allowed.rounds)
        if not self.step <= self.clip:
            raise ConfigurationError(f"Expected step={self.step!r} to be at most clip={self.clip!r}")
        if not MIN_RATIO <= self.noise_ratio <= MAX_RATIO:
            raise ConfigurationError(
                f"Expected noise_std={self.noise_std!r} to be {MIN_RATIO:g} to {MAX_RATIO:g} steps of the encoded grid "
                f"(step={self.step!r} / 2^{self.matrix.bits})"
            )

    @classmethod
    def within_budget(
        cls, *, matrix: EncoderMatrix, allowed: Participation, size: int, clip: float, step: float,
        epsilon: float, delta: float,
    ) -> Self:  # fmt: skip
        """The stream with the least noise that makes all of it (epsilon, delta)-DP.

        Raises:
            ConfigurationError: as the class.
            PrivacyError: too many numbers are noised: sampling the noise alone uses up delta.
        """
        require_size(size)
        _validate.positive(clip=clip, step=step)
        largest_mu = mu_for(epsilon=epsilon, delta=delta, coordinates=size * matrix.rounds)
        moved = _moved(matrix, allowed, size=size, clip=clip, step=step)
        return cls(matrix=matrix, allowed=allowed, size=size, clip=clip, step=step, noise_std=moved / largest_mu)

    @property
    def encoded_step(self) -> float:
        """Step of the grid of encoded sums and of the noise, data units."""
        return math.ldexp(self.step, -self.matrix.bits)

    @property
    def noise_ratio(self) -> float:
        """Standard deviation of the noise in steps of the encoded grid: what the sampler takes."""
        return self.noise_std / self.encoded_step

    @property
    def sensitivity(self) -> float:
        """The most that one user moves all encoded sums together, L2, data units."""
        return _moved(self.matrix, self.allowed, size=self.size, clip=self.clip, step=self.step)

    def event(self, name: str, *, adjacency: Adjacency = Adjacency.ZERO_OUT_USER) -> StreamRelease:
        """What a ledger is charged for all rounds, before the first release."""
        return StreamRelease(
            name=name,
            sensitivity=self.sensitivity,
            noise_std=self.noise_std,
            coordinates=self.size * self.matrix.rounds,
            adjacency=adjacency,
            rounds=self.allowed.rounds,
            most=self.allowed.most,
            separation=self.allowed.separation,
            matrix_sha256=self.matrix.digest,
        )


def _moved(matrix: EncoderMatrix, allowed: Participation, *, size: int, clip: float, step: float) -> float:
    """``clip`` times the sensitivity of the matrix, and what the rounding of encoded sums can add."""
    moved = clip * matrix.sensitivity(allowed)
    if matrix.rounding:
        moved += 2.0 * matrix.rounding * math.sqrt(float(size) * matrix.rounds) * step
    return moved * (1.0 + 2.0**-50)  # above the rounding of this line's own arithmetic
