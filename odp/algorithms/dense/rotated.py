"""Vectors in 8 to 16 bits per number: a public rotation, stochastic rounding, and an exact bound on what is sent.

A dense vector of norm at most ``clip`` is rotated, divided by ``step`` and rounded to a whole number up or down at
random, without bias. After a rotation no number is much larger than ``clip / sqrt(size)``, so the range of ``width``
bits is a few of those, and the step is small.

Guarantee: whatever a device sends, a payload that ``RotatedQuery.check`` accepts has whole numbers within ``largest``
whose squares sum to at most ``limit``: it moves the sum, in data units, by at most ``sensitivity = step sqrt(limit)``
in L2, exactly, and so it moves the sum that is rotated back, since a rotation keeps norms. Noise is added to the
rotated sum, on its grid (rule P18); rotated back, it has the same standard deviation on every number.

======================  ============================================================================================
number                  chosen so that
======================  ============================================================================================
``step``                one number of any honest vector in a thousand vectors is out of range and cut, at most
``limit``               rounding makes an honest vector too long with probability 1e-6 at most; it is then shortened
``sensitivity``         above ``clip`` by the rounding's growth: .05 % at 8 bits and a million numbers
======================  ============================================================================================

Edge cases: a zero vector stays zero; NaN and infinities are refused before they are rounded, and have no encoding.

Sources: Suresh et al. 2017; Kairouz, Liu, Steinke 2021, "The distributed discrete Gaussian mechanism for federated
learning with secure aggregation", proposition 26 (growth of a norm by rounding); privacy rules P16 to P18.

Randomised Hadamard rotations: orthogonal, in O(n log n), of vectors of any length, without padding.

A rotation spreads a vector evenly over its numbers, so that few bits per number are enough. Let P be the largest power
of two that is at most the size n. The first P numbers get random signs and the transform H / sqrt(P); where P < n, the
last P of the result then get signs of their own and the transform again. Each step is orthogonal, so norms stay.

Every rotated number is a sum of a vector's numbers with random signs, and is sub-Gaussian: it is beyond
``t |x| / sqrt(P)`` with probability at most 2 exp(-t^2 / 2) (Hoeffding), whatever the vector.

Sources: Ailon and Chazelle 2009 (randomised Hadamard transforms); Suresh et al. 2017, "Distributed mean estimation with
limited communication" (rotation before quantisation).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.algorithms.dense.grid import round_at_random
from odp.crypto.keyed_hash import key_of, keyed_hash
from odp.errors import ConfigurationError, DataError
from odp.numerics.arrays import Float32Array, Float64Array, Int64Array
from odp.numerics.packed_bits import pack, packed_bytes
from odp.protocol.aggregation import mode_of

if TYPE_CHECKING:
    from odp.v1 import common_pb2, federated_pb2

MOST_SIZE = 2**26

# Numbers that one product with a small Hadamard matrix mixes: BLAS beats additions up to about this.
_BASE_BITS = 5
_WORD = 64

_Floats = TypeVar("_Floats", npt.NDArray[np.float32], npt.NDArray[np.float64])


def largest_power(size: int) -> int:
    """The largest power of two that is at most ``size``. Raises ConfigurationError for a size out of range."""
    _validate.integer(low=1, high=MOST_SIZE, size=size)
    return 1 << (size.bit_length() - 1)


def transform(vectors: _Floats) -> _Floats:
    """The Walsh-Hadamard transform of each row of ``vectors`` [rows, 2^k], not normalised, as a new array.

    By products with Kronecker factors: H of 2^(a + b) is the product of H of 2^a and H of 2^b, on an axis each.

    Raises:
        DataError: the rows are not as long as a power of two.
    """
    rows, size = vectors.shape
    if size < 1 or size & (size - 1):
        raise DataError(f"Expected rows of a power of two numbers (got {size})")
    left, inner, result = size.bit_length() - 1, 1, vectors
    while left:
        bits = min(left, _BASE_BITS)
        small = _matrix(bits).astype(vectors.dtype, copy=False)
        outer = size // (inner << bits)
        # [rows, outer, 2^bits, inner]: the small matrix mixes the third axis.
        result = (
            result.reshape(rows * outer, 1 << bits) @ small
            if inner == 1
            else np.matmul(small, result.reshape(rows * outer, 1 << bits, inner))
        ).reshape(rows, size)
        left, inner = left - bits, inner << bits
    return result.copy() if result is vectors else result


class Rotation:
    """The rotation of vectors of one size that a public seed gives: the same for everybody in a round.

    The signs are public, and the guarantee of a release does not rest on them: they bound how often a number is out of
    range, of vectors that were chosen before the seed.

    Args:
        size: numbers of a vector.
        seed: public numbers, such as the task's own and the round.
    """

    def __init__(self, size: int, *seed: int) -> None:
        self.size = size
        self.power = largest_power(size)
        key = key_of("rotation", *seed)
        self._starts = [0] if self.power == size else [0, size - self.power]
        self._signs = [_signs(key, number, self.power) for number in range(len(self._starts))]

    def apply(self, vectors: _Floats) -> _Floats:
        """Rotated rows of ``vectors`` float32 or float64 [rows, size], of the same type."""
        result = vectors.copy()
        self.rotate(result)
        return result

    def rotate(self, vectors: _Floats) -> None:
        """``apply`` in place, for vectors that fill the memory."""
        self._require(vectors)
        for start, signs in zip(self._starts, self._signs, strict=True):
            part = vectors[:, start : start + self.power]
            part *= signs
            part[...] = self._mixed(part)

    def undo(self, vectors: _Floats) -> _Floats:
        """The rows that ``apply`` rotated, up to float rounding."""
        self._require(vectors)
        result = vectors.copy()
        for start, signs in zip(reversed(self._starts), reversed(self._signs), strict=True):
            part = result[:, start : start + self.power]
            part[...] = self._mixed(part)
            part *= signs
        return result

    def _mixed(self, part: _Floats) -> _Floats:
        mixed = transform(part)
        mixed *= mixed.dtype.type(self.power**-0.5)
        return mixed

    def _require(self, vectors: npt.NDArray[np.generic]) -> None:
        if vectors.ndim != 2 or vectors.shape[1] != self.size:
            raise DataError(f"Expected vectors of {self.size} numbers (got shape {list(vectors.shape)})")


@functools.cache
def _matrix(bits: int) -> npt.NDArray[np.float64]:
    matrix = np.ones((1, 1))
    for _ in range(bits):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def _signs(key: np.uint64, number: int, count: int) -> npt.NDArray[np.float32]:
    """``count`` signs +1 or -1, float32: the bits of hashes."""
    words = np.arange(-(-count // _WORD), dtype=np.int64)
    hashes = keyed_hash(key, np.full(len(words), number, dtype=np.int64), words)
    bits = np.unpackbits(hashes.astype("<u8").view(np.uint8), count=count)
    return np.where(bits == 1, np.float32(-1.0), np.float32(1.0))


LEAST_WIDTH = 8
LARGEST_WIDTH = 16

_OUT_OF_RANGE = 1e-3
_TOO_LONG = 1e-6
_STEPS_PER_DEVIATION = 64.0
_NOISE_DEVIATIONS = 14.0
# Sums of whole numbers below it are exact in doubles, too.
_RANGE = 2**53
_CHUNK = 2**16  # numbers per pass: their wider copies stay in the processor's cache


@dataclass(frozen=True, kw_only=True)
class RotatedGrid:
    """How vectors of ``size`` numbers become whole numbers of ``width`` bits, and how much noise their sum gets.

    Attributes:
      size: numbers of one vector.
      clip: L2 bound of one vector before rounding, data units.
      width: bits of one number, sign included.
      noise_multiplier: standard deviation of the noise on each number of the sum, over ``sensitivity``.
      maximum: largest number of contributions.

    Raises:
      ConfigurationError: a number is out of range, the noise is below 64 steps (rule P16: take more bits), or sums
        would not be exact.
    """

    size: int
    clip: float
    width: int
    noise_multiplier: float
    maximum: int

    def __post_init__(self) -> None:
        _validate.integer(size=self.size, low=1, high=MOST_SIZE)
        _validate.positive(clip=self.clip, noise_multiplier=self.noise_multiplier)
        _validate.integer(upload_bits=self.width, low=LEAST_WIDTH, high=LARGEST_WIDTH)
        _validate.integer(maximum=self.maximum, low=1, high=2**28)
        if not self.noise_ratio >= _STEPS_PER_DEVIATION:
            raise ConfigurationError(
                f"Expected the noise to be at least {_STEPS_PER_DEVIATION:.0f} steps of the grid (got "
                f"{self.noise_ratio:.3g} at upload_bits={self.width}): take more bits"
            )
        if not self.maximum * self.largest + _NOISE_DEVIATIONS * self.noise_ratio < _RANGE:
            raise ConfigurationError(
                f"Expected sums of maximum={self.maximum} vectors at upload_bits={self.width} to be below 2^53, noise "
                "included: lower maximum, or take fewer bits"
            )

    @classmethod
    def of(cls, terms: federated_pb2.RotatedTerms, cohort: common_pb2.CohortTerms, *, size: int) -> RotatedGrid:
        """The grid of a task definition.

        Raises:
          ConfigurationError: as the class and ``require_unmasked``.
        """
        require_unmasked(cohort, upload_bits=terms.upload_bits)
        return cls(
            size=size, clip=terms.clip, width=terms.upload_bits, noise_multiplier=terms.noise_multiplier,
            maximum=terms.maximum,
        )  # fmt: skip

    def to_proto(self) -> federated_pb2.RotatedTerms:
        """Its numbers in a task definition."""
        from odp.v1 import federated_pb2

        return federated_pb2.RotatedTerms(
            clip=self.clip, upload_bits=self.width, noise_multiplier=self.noise_multiplier, maximum=self.maximum
        )

    @property
    def largest(self) -> int:
        """The largest absolute value of a number."""
        return (1 << (self.width - 1)) - 1

    @property
    def reach(self) -> float:
        """Range of a rotated number in units of clip / sqrt(P), P the rotation's power of two."""
        return min(math.sqrt(2.0 * math.log(2.0 * self.size / _OUT_OF_RANGE)), math.sqrt(largest_power(self.size)))

    @property
    def step(self) -> float:
        """One step of the grid, data units."""
        return self.clip * self.reach / math.sqrt(largest_power(self.size)) / self.largest

    @property
    def limit(self) -> int:
        """The largest sum of squares, in steps: that of an honest vector after rounding, but for one in a million."""
        radius, size = self.clip / self.step, float(self.size)
        spread = math.sqrt(2.0 * math.log(1.0 / _TOO_LONG))
        return math.floor(radius**2 + 0.25 * size + spread * (radius + 0.5 * math.sqrt(size)))

    @property
    def sensitivity(self) -> float:
        """The most that one contribution moves the sum, L2, data units; rounded upwards."""
        return self.step * math.sqrt(self.limit) * (1.0 + 2.0**-50)

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each number of the sum, data units."""
        return self.noise_multiplier * self.sensitivity

    @property
    def noise_ratio(self) -> float:
        """The same in steps: what the sampler takes."""
        return self.noise_std / self.step

    @property
    def payload_bytes(self) -> int:
        """Length of a payload."""
        return packed_bytes(self.size, self.width)

    def rotation(self, *seed: int) -> Rotation:
        """The rotation of a round, from public numbers."""
        return Rotation(self.size, *seed)


def require_unmasked(cohort: common_pb2.CohortTerms, *, upload_bits: int) -> None:
    """Returns if contributions of a cohort may have fewer than 32 bits per number.

    Raises:
      ConfigurationError: its aggregation hides each number under a mask of 32 bits.
    """
    mode = mode_of(cohort)
    if mode.dense_only:
        raise ConfigurationError(
            f"Expected upload_bits={upload_bits} to be left out with aggregation={mode.name!r}: under a mask, a number "
            "has 32 bits; or take aggregation='enclave'"
        )


def quantise(
    grid: RotatedGrid,
    rows: Float32Array | Float64Array,
    *,
    rotation: Rotation,
    round: int,
    seeds: npt.NDArray[np.uint64],
) -> Float64Array:
    """Rotated and rounded ``rows`` [users, size] as whole numbers float64 [users, size], each row within the bounds.

    User ``i`` rounds by ``seeds[i]``: by a hash of (seed, round, place), in the same way whoever computes it. A vector
    that is longer than ``clip`` is scaled down to it before; one that rounding made too long is shortened after.

    Raises:
      DataError: a value is not finite, or a vector is longer than the largest double; nothing of it is shown.
    """
    values = rows.astype(np.float64)
    with np.errstate(over="ignore"):
        lengths = np.sqrt(np.einsum("up,up->u", values, values))
    if not np.isfinite(lengths).all():
        raise DataError("numbers of a contribution are not finite or too large; correct the device's data")
    values *= (np.minimum(1.0, grid.clip / np.maximum(lengths, grid.clip)) / grid.step)[:, None]
    rotation.rotate(values)
    round_at_random(values, round=round, seeds=seeds)
    np.clip(values, -grid.largest, grid.largest, out=values)
    squares = squared_norms(values)
    beyond = squares > grid.limit
    if beyond.any():
        factor = np.sqrt(grid.limit / squares[beyond]) * (1.0 - 2.0**-50)
        values[beyond] = np.trunc(values[beyond] * factor[:, None])
    return values


def encode(grid: RotatedGrid, numbers: Float64Array | Int64Array) -> bytes:
    """The payload of one user's whole numbers [size]: ``width`` bits each, most significant first, offset by half.

    Raises:
      DataError: a number is beyond ``largest``, or there are others than ``size``.
    """
    if numbers.shape != (grid.size,) or not -grid.largest <= numbers.min() <= numbers.max() <= grid.largest:
        raise DataError(f"Expected {grid.size} numbers within {grid.largest}")
    offset = (numbers + (grid.largest + 1)).astype(np.uint16)
    return pack(offset[None], grid.width).tobytes()


def to_values(grid: RotatedGrid, released: Float64Array, *, rotation: Rotation) -> Float64Array:
    """A released sum float64 [size], in data units, rotated back: post-processing."""
    values: Float64Array = rotation.undo(released[None])[0]
    return values


def squared_norms(numbers: npt.NDArray[np.number]) -> Int64Array:
    """The exact sum of squares of each row of whole numbers within 2^15, int64 [rows].

    Each chunk's sum stays below 2^53, where doubles add and multiply whole numbers without rounding, in any order.
    """
    total = np.zeros(len(numbers), dtype=np.int64)
    for start in range(0, numbers.shape[1], _CHUNK):
        wide = numbers[:, start : start + _CHUNK].astype(np.float64)
        total += np.einsum("up,up->u", wide, wide).astype(np.int64)
    return total
