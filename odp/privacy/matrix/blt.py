"""Buffered linear Toeplitz (BLT) encoder matrices: an infinite memory in a few buffers.

C is Toeplitz with 1 on the diagonal and ``t_i = sum over b of scale_b decay_b^(i - 1)`` below it. With one buffer per
term, ``y = g + sum of scale_b h_b`` and ``h_b <- decay_b h_b + g``; and back, ``x = y - sum of scale_b h_b`` and
``h_b <- decay_b h_b + x``.

Buffers cannot be exact: powers of the decays need ever more bits. They are whole numbers in units of 2^-20 steps of the
grid, rounded to nearest after each multiplication, and so are encoded sums, whose grid is that one (bits = 20). Scales
and decays are whole numbers over 2^20 themselves. So an encoded number is within

    rounding = 2^-21 (1 + sum over b of scale_b / (1 - decay_b))

steps of (C G): a buffer's own errors sum to at most half a unit over (1 - decay_b). What one user moves therefore grows
by at most 2 rounding sqrt(size rounds) steps (``odp.privacy.matrix.encoding``).

Sources: Dvijotham et al. 2024, "Efficient and near-optimal noise generation for streaming differential privacy";
McMahan, Xu, Zhang 2024, "A hassle-free algorithm for private learning in practice".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float64Array, Int64Array
from odp.privacy.matrix import encoding
from odp.privacy.matrix.sensitivity import MOST_ROUNDS, Participation

BITS = 20
MOST_BUFFERS = 8

_UNIT = 1 << BITS
_HALF = 1 << (BITS - 1)
_LOW = _UNIT - 1
_CHUNK = 2**14
_MOST_DENSE = 4096
# Above the rounding of sums of at most 2^20 powers and products in float64.
_MARGIN = 1e-9


class BufferedMatrix:
    """``odp.privacy.matrix.encoding.EncoderMatrix`` of a BLT.

    Args:
        scales: of the buffers, at least 0, at most 1 together; rounded down to whole numbers over 2^20.
        decays: of the buffers, from 0 and below 1; rounded down as well.
        rounds: of the stream.

    Raises:
        ConfigurationError: another number of decays than scales, or numbers out of range.
    """

    bits = BITS

    def __init__(self, scales: Sequence[float], decays: Sequence[float], rounds: int) -> None:
        _validate.integer(low=1, high=MOST_ROUNDS, rounds=rounds)
        _validate.integer(low=1, high=MOST_BUFFERS, buffers=len(scales))
        _validate.integer(low=len(scales), high=len(scales), decays=len(decays))
        _validate.within(low=0.0, high=1.0, **{f"scale_{place}": float(value) for place, value in enumerate(scales)})
        _validate.within(low=0.0, high=1.0, **{f"decay_{place}": float(value) for place, value in enumerate(decays)})
        self.rounds = rounds
        self.scales = tuple(math.floor(float(value) * _UNIT) for value in scales)
        self.decays = tuple(math.floor(float(value) * _UNIT) for value in decays)
        if sum(self.scales) > _UNIT or max(self.decays) >= _UNIT:
            raise ConfigurationError("Expected scales of at most 1 together, and decays below 1 by 2^-20 or more")

    def __repr__(self) -> str:
        return f"BufferedMatrix(buffers={len(self.scales)}, rounds={self.rounds})"

    @property
    def digest(self) -> bytes:
        """SHA-256 of scales, decays and the number of rounds."""
        return encoding.digest_of("blt", BITS, [np.array([*self.scales, *self.decays, self.rounds])])

    @property
    def rounding(self) -> float:
        """As in the module's text."""
        return 0.5 / _UNIT * (1.0 + self._growth) * (1.0 + _MARGIN)

    @property
    def _growth(self) -> float:
        """Upper bound of the sum of all coefficients below the diagonal."""
        return sum(scale / (_UNIT - decay) for scale, decay in zip(self.scales, self.decays, strict=True))

    def coefficients(self) -> Float64Array:
        """The first column of C, float64 [rounds]; non-increasing, and never negative."""
        scales, decays = np.array(self.scales) / _UNIT, np.array(self.decays) / _UNIT
        powers = np.arange(self.rounds - 1)
        return np.concatenate(([1.0], (decays[None, :] ** powers[:, None]) @ scales))

    def matrix(self) -> Float64Array:
        """C, float64 [rounds, rounds]. Raises ConfigurationError above 4,096 rounds."""
        _validate.integer(low=1, high=_MOST_DENSE, rounds=self.rounds)
        column = self.coefficients()
        back = np.arange(self.rounds)[:, None] - np.arange(self.rounds)[None, :]
        return np.where(back >= 0, column[np.abs(back)], 0.0)

    def sensitivity(self, allowed: Participation) -> float:
        """By the closed form of falling Toeplitz matrices in float64, and a part in 1e9 above it."""
        _validate.integer(low=self.rounds, high=self.rounds, rounds=allowed.rounds)
        return toeplitz_sensitivity(self.coefficients(), allowed) * (1.0 + _MARGIN)

    def encoder(self, size: int, *, limit: int, state: bytes | None = None) -> BufferedEncoder:
        return BufferedEncoder(self, size, limit, state)

    def decoder(self, size: int, *, state: bytes | None = None) -> BufferedDecoder:
        return BufferedDecoder(self, size, state)


class BufferedEncoder:
    """``Encoder`` that keeps one int64 per number and buffer, whatever the number of rounds."""

    def __init__(self, matrix: BufferedMatrix, size: int, limit: int, state: bytes | None = None) -> None:
        encoding.require_size(size)
        slowest = _UNIT - max(matrix.decays)
        largest = max(1.0 + matrix._growth, _UNIT / slowest)
        encoding.require_limit(limit, math.ceil(_UNIT * (largest + 2.0)))
        self._matrix, self._size, self._limit = matrix, size, limit
        self._buffers = np.zeros((len(matrix.scales), size), dtype=np.int64)
        self.round = 0
        if state is not None:
            self.round = encoding.unpacked(b"BLTE", matrix.digest, size, [self._buffers], state, rounds=matrix.rounds)

    def step(self, total: Int64Array) -> Int64Array:
        matrix = self._matrix
        encoding.checked(total, size=self._size, round=self.round, rounds=matrix.rounds, limit=self._limit)
        encoded = np.empty(self._size, dtype=np.int64)
        for start in range(0, self._size, _CHUNK):
            part = slice(start, start + _CHUNK)
            now = total[part] << BITS
            mixed, rest = now.copy(), np.full(len(now), _HALF)
            for buffer, scale, decay in zip(self._buffers, matrix.scales, matrix.decays, strict=True):
                # A buffer as high 2^20 + low: no product leaves 64 bits, and the sum of the lows is rounded once.
                high, low = buffer[part] >> BITS, buffer[part] & _LOW
                mixed += scale * high
                rest += scale * low
                buffer[part] = decay * high + ((decay * low + _HALF) >> BITS) + now
            encoded[part] = mixed + (rest >> BITS)
        self.round += 1
        return encoded

    def to_bytes(self) -> bytes:
        """The state."""
        return encoding.packed(b"BLTE", self._matrix.digest, self.round, self._size, [self._buffers])

    @property
    def state_bytes(self) -> int:
        return encoding.packed_bytes([self._buffers])


class BufferedDecoder:
    """``Decoder`` that keeps one float64 per number and buffer, and the sum."""

    def __init__(self, matrix: BufferedMatrix, size: int, state: bytes | None = None) -> None:
        encoding.require_size(size)
        self._matrix, self._size = matrix, size
        self._buffers = np.zeros((len(matrix.scales), size))
        self._sum = np.zeros(size)
        self.round = 0
        if state is not None:
            arrays = [self._buffers, self._sum]
            self.round = encoding.unpacked(b"BLTD", matrix.digest, size, arrays, state, rounds=matrix.rounds)

    def step(self, release: npt.NDArray[np.number]) -> Float64Array:
        matrix = self._matrix
        encoding.checked(release, size=self._size, round=self.round, rounds=matrix.rounds)
        row = release.astype(np.float64) / _UNIT
        for buffer, scale in zip(self._buffers, matrix.scales, strict=True):
            row -= buffer * (scale / _UNIT)
        for buffer, decay in zip(self._buffers, matrix.decays, strict=True):
            buffer *= decay / _UNIT
            buffer += row
        self._sum += row
        self.round += 1
        return self._sum.copy()

    def to_bytes(self) -> bytes:
        """The state."""
        return encoding.packed(b"BLTD", self._matrix.digest, self.round, self._size, [self._buffers, self._sum])


def toeplitz_sensitivity(coefficients: Float64Array, allowed: Participation) -> float:
    """Sensitivity of a falling Toeplitz matrix without negative entries, in float64; first column float64 [rounds]."""
    column = np.zeros(allowed.rounds)
    for start in range(0, allowed.largest * allowed.separation, allowed.separation):
        column[start:] += coefficients[: allowed.rounds - start]
    return float(np.linalg.norm(column))


def inverse_coefficients(scales: Float64Array, decays: Float64Array, count: int) -> Float64Array:
    """First column of the inverse of a BLT matrix, float64 [count]; for positive scales.

    The buffers of the inverse follow ``h <- (diag(decays) - 1 scales') h + 1 y``. Scaled by the roots of the scales,
    that matrix is symmetric, and its powers follow from its eigenvalues.
    """
    roots = np.sqrt(scales)
    eigenvalues, vectors = np.linalg.eigh(np.diag(decays) - np.outer(roots, roots))
    weights = np.square(vectors.T @ roots)
    powers = np.arange(count - 1)
    return np.concatenate(([1.0], -(eigenvalues[None, :] ** powers[:, None]) @ weights))
