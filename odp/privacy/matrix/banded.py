"""Banded and Toeplitz encoder matrices: a round's encoded sum mixes that of the last few rounds.

C[t, t - j] = ``diagonals[t, j]`` / 2^bits for j = 0 .. bands - 1. A Toeplitz matrix has equal rows; a full one has as
many bands as rounds, and then the encoder has to keep every past sum.

Rounding is toward zero, entry by entry: no column grows, and what did not rise still does not.

Sources: Choquette-Choo et al. 2023, section 4 (BandMF); Fichtenberger, Henzinger, Upadhyay 2023, "Constant matters"
(Toeplitz); Choquette-Choo et al. 2024, arXiv 2405.13763.
"""

from __future__ import annotations

import functools
import itertools
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float64Array, Int64Array
from odp.privacy.matrix import encoding, sensitivity
from odp.privacy.matrix.sensitivity import MOST_ROUNDS, Participation

DEFAULT_BITS = 10

_CHUNK = 2**14  # numbers per pass: a chunk of every array in use stays in the processor's cache
_MOST_DENSE = 4096


class BandedMatrix:
    """``odp.privacy.matrix.encoding.EncoderMatrix`` with few diagonals.

    Args:
        diagonals: int64 [rounds, bands]; entries before the first column (j > t) are not used, and taken as 0.
        bits: entries are over 2^bits.

    Raises:
        ConfigurationError: shapes or numbers out of range, or a number on the main diagonal that is not positive.
    """

    rounding = 0.0

    def __init__(self, diagonals: Int64Array, bits: int) -> None:
        _validate.integer(low=0, high=encoding.MOST_BITS, bits=bits)
        if diagonals.ndim != 2 or not 1 <= diagonals.shape[1] <= diagonals.shape[0] <= MOST_ROUNDS:
            raise ConfigurationError(
                f"Expected diagonals of shape [rounds, bands], bands <= rounds (got {list(diagonals.shape)})"
            )
        #: The rows that memory holds: one of a Toeplitz matrix.
        self.distinct = diagonals[:1] if diagonals.strides[0] == 0 else diagonals
        if not (self.distinct[:, 0] > 0).all() or np.abs(self.distinct).max() >= 2**50:
            raise ConfigurationError("Expected a positive main diagonal, and entries below 2^50: take other bits")
        self.diagonals = diagonals
        self.bits = bits
        self.rounds, self.bands = diagonals.shape
        self._toeplitz = diagonals.strides[0] == 0 or bool((diagonals == diagonals[-1]).all())

    def __repr__(self) -> str:
        kind = "Toeplitz" if self._toeplitz else "banded"
        return f"BandedMatrix({kind}, rounds={self.rounds}, bands={self.bands}, bits={self.bits})"

    @classmethod
    def toeplitz(cls, coefficients: Float64Array, *, rounds: int, bits: int = DEFAULT_BITS) -> BandedMatrix:
        """The Toeplitz matrix with this first column, float64 [bands], rounded toward zero; 0 after it."""
        numbers = _rounded(coefficients[:rounds], bits)
        return cls(np.broadcast_to(numbers, (rounds, len(numbers))), bits)

    @classmethod
    def of(cls, diagonals: Float64Array, *, bits: int = DEFAULT_BITS) -> BandedMatrix:
        """The matrix with these diagonals, float64 [rounds, bands], rounded toward zero."""
        return cls(_rounded(diagonals, bits), bits)

    @functools.cached_property
    def digest(self) -> bytes:
        """SHA-256 of the diagonals."""
        return encoding.digest_of("banded", self.bits, [self.diagonals])

    def integers(self) -> Int64Array:
        """C times 2^bits, int64 [rounds, rounds]. Raises ConfigurationError above 4,096 rounds."""
        _validate.integer(low=1, high=_MOST_DENSE, rounds=self.rounds)
        dense = np.zeros((self.rounds, self.rounds), dtype=np.int64)
        for band in range(self.bands):
            places = np.arange(band, self.rounds)
            dense[places, places - band] = self.diagonals[band:, band]
        return dense

    def matrix(self) -> Float64Array:
        """C, float64 [rounds, rounds]."""
        return np.ldexp(self.integers().astype(np.float64), -self.bits)

    def squared_sensitivity(self, allowed: Participation) -> Fraction:
        """Exact where the separation is at least the bands, or for falling Toeplitz matrices; else an upper bound.

        Raises:
            ConfigurationError: the participation is of another number of rounds.
            PrivacyError: bands reach farther than the separation, and an entry is negative.
        """
        _validate.integer(low=self.rounds, high=self.rounds, rounds=allowed.rounds)
        first = [int(value) for value in self.diagonals[-1]]
        falling = self._toeplitz and first[-1] >= 0 and all(b <= a for a, b in itertools.pairwise(first))
        if falling:
            square = sensitivity.of_toeplitz(first, allowed)
        elif self.bands <= allowed.separation:
            square = sensitivity.of_disjoint_columns(self._column_squares(), allowed)
        else:
            square = sensitivity.upper_bound(self.integers(), allowed)
        return Fraction(square, 4**self.bits)

    def sensitivity(self, allowed: Participation) -> float:
        """The root of ``squared_sensitivity``, rounded upwards."""
        return sensitivity.root_upwards(self.squared_sensitivity(allowed))

    def encoder(self, size: int, *, limit: int, state: bytes | None = None) -> BandedEncoder:
        return BandedEncoder(self, size, limit, state)

    def decoder(self, size: int, *, state: bytes | None = None) -> BandedDecoder:
        return BandedDecoder(self, size, state)

    def _column_squares(self) -> list[int]:
        total = [0] * self.rounds
        for band in range(self.bands):
            for row, value in enumerate(self.diagonals[band:, band].tolist()):
                total[row] += value * value
        return total


class BandedEncoder:
    """``Encoder`` that keeps the sums of the last ``bands - 1`` rounds, in 32 bits each where ``limit`` allows it."""

    def __init__(self, matrix: BandedMatrix, size: int, limit: int, state: bytes | None = None) -> None:
        encoding.require_size(size)
        encoding.require_limit(limit, int(np.abs(matrix.distinct).sum(axis=1).max()))
        self._matrix, self._size, self._limit = matrix, size, limit
        self._digest = matrix.digest
        self._past = np.zeros((matrix.bands - 1, size), dtype=np.int32 if limit < 2**31 else np.int64)
        self.round = 0
        if state is not None:
            self.round = encoding.unpacked(b"BAND", self._digest, size, [self._past], state, rounds=matrix.rounds)

    def step(self, total: Int64Array) -> Int64Array:
        matrix, round, window = self._matrix, self.round, len(self._past)
        encoding.checked(total, size=self._size, round=round, rounds=matrix.rounds, limit=self._limit)
        weights = matrix.diagonals[round]
        encoded = np.empty(self._size, dtype=np.int64)
        for start in range(0, self._size, _CHUNK):
            part = slice(start, start + _CHUNK)
            np.multiply(total[part], weights[0], out=encoded[part])
            for back in range(1, min(window, round) + 1):
                encoded[part] += self._past[(round - back) % window, part] * weights[back]
        if window:
            self._past[round % window] = total  # over the sum that no later round needs
        self.round += 1
        return encoded

    def to_bytes(self) -> bytes:
        """The state."""
        return encoding.packed(b"BAND", self._digest, self.round, self._size, [self._past])

    @property
    def state_bytes(self) -> int:
        return encoding.packed_bytes([self._past])


class BandedDecoder:
    """``Decoder`` that solves C X = Y as rows come: it keeps the last ``bands - 1`` rows of X, and their sum."""

    def __init__(self, matrix: BandedMatrix, size: int, state: bytes | None = None) -> None:
        encoding.require_size(size)
        self._matrix, self._size = matrix, size
        self._digest = matrix.digest
        self._past = np.zeros((matrix.bands - 1, size))
        self._sum = np.zeros(size)
        self.round = 0
        if state is not None:
            arrays = [self._past, self._sum]
            self.round = encoding.unpacked(b"BDEC", self._digest, size, arrays, state, rounds=matrix.rounds)

    def step(self, release: npt.NDArray[np.number]) -> Float64Array:
        matrix, round, window = self._matrix, self.round, len(self._past)
        encoding.checked(release, size=self._size, round=round, rounds=matrix.rounds)
        weights = matrix.diagonals[round].astype(np.float64)
        row = release.astype(np.float64)
        for start in range(0, self._size, _CHUNK):
            part = slice(start, start + _CHUNK)
            for back in range(1, min(window, round) + 1):
                row[part] -= self._past[(round - back) % window, part] * weights[back]
            row[part] /= weights[0]
        self._sum += row
        if window:
            self._past[round % window] = row
        self.round += 1
        return self._sum.copy()

    def to_bytes(self) -> bytes:
        """The state."""
        return encoding.packed(b"BDEC", self._digest, self.round, self._size, [self._past, self._sum])


def _rounded(values: Float64Array, bits: int) -> Int64Array:
    _validate.integer(low=0, high=encoding.MOST_BITS, bits=bits)
    if not np.isfinite(values).all():
        raise ConfigurationError("Expected finite entries of the encoder matrix")
    return np.trunc(np.ldexp(values, bits)).astype(np.int64)
