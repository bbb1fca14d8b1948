"""Vectors in 8 to 16 bits per number: a public rotation, stochastic rounding, and an exact bound on what is sent.

A dense vector of norm at most ``clip`` is rotated, divided by ``step`` and rounded to a whole number up or down at
random, without bias. After a rotation no number is much larger than ``clip / sqrt(size)``, so the range of ``width``
bits is a few of those, and the step is small.

Guarantee: whatever a device sends, a payload that ``check`` accepts has whole numbers within ``largest`` whose squares
sum to at most ``limit``: it moves the sum, in data units, by at most ``sensitivity = step sqrt(limit)`` in L2, exactly,
and so it moves the sum that is rotated back, since a rotation keeps norms. Noise is added to the rotated sum, on its
grid (rule P18); rotated back, it has the same standard deviation on every number.

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
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.algorithms.dense.rotation import MOST_SIZE, Rotation, largest_power
from odp.crypto.keyed_hash import round_hashes
from odp.errors import ConfigurationError, ContributionRefused, DataError, Refusal
from odp.numerics.arrays import Float64Array, Int64Array

LEAST_WIDTH = 8
LARGEST_WIDTH = 16

_OUT_OF_RANGE = 1e-3
_TOO_LONG = 1e-6
_STEPS_PER_DEVIATION = 64.0
_NOISE_DEVIATIONS = 14.0
_RANGE = 2**31
_CHUNK = 2**16  # numbers per pass, a multiple of 8: a chunk of numbers fills whole bytes at any width


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
      ConfigurationError: a number is out of range, the noise is below 64 steps (rule P16: take a larger width), or
        sums could leave 32 bits.
    """

    size: int
    clip: float
    width: int
    noise_multiplier: float
    maximum: int

    def __post_init__(self) -> None:
        _validate.integer(size=self.size, low=1, high=MOST_SIZE)
        _validate.positive(clip=self.clip, noise_multiplier=self.noise_multiplier)
        _validate.integer(width=self.width, low=LEAST_WIDTH, high=LARGEST_WIDTH)
        _validate.integer(maximum=self.maximum, low=1, high=2**28)
        if not self.noise_ratio >= _STEPS_PER_DEVIATION:
            raise ConfigurationError(
                f"Expected the noise to be at least {_STEPS_PER_DEVIATION:.0f} steps of the grid (got "
                f"{self.noise_ratio:.3g} at width={self.width}): take a larger width"
            )
        if not self.maximum * self.largest + _NOISE_DEVIATIONS * self.noise_ratio < _RANGE:
            raise ConfigurationError(
                f"Expected sums of maximum={self.maximum} vectors of width={self.width} bits to fit 32 bits: lower "
                "maximum, width or noise_multiplier"
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
        return -(-self.size * self.width // 8)

    def rotation(self, *seed: int) -> Rotation:
        """The rotation of a round, from public numbers."""
        return Rotation(self.size, *seed)


def quantise(
    grid: RotatedGrid, vectors: Float64Array, *, rotation: Rotation, round: int, seeds: npt.NDArray[np.uint64]
) -> Int64Array:
    """Rotated and rounded rows of ``vectors`` float64 [users, size], int64 [users, size], each within the bounds.

    User ``i`` rounds by ``seeds[i]``: by a hash of (seed, round, place), in the same way whoever computes it. A vector
    that is longer than ``clip`` is scaled down to it before; one that rounding made too long is shortened after.

    Raises:
      DataError: a value is not finite; nothing of it is shown.
    """
    wrong = int(np.count_nonzero(~np.isfinite(vectors)))
    if wrong:
        raise DataError(f"{wrong} numbers of a contribution are not finite; correct the device's data")
    with np.errstate(over="ignore"):
        length = np.sqrt(np.square(vectors).sum(axis=1))
    if not np.isfinite(length).all():  # squares beyond the largest double: divide by the largest number first
        tallest = np.abs(vectors).max(axis=1)
        length = tallest * np.sqrt(np.square(vectors / np.where(tallest > 0.0, tallest, 1.0)[:, None]).sum(axis=1))
    shrink = grid.clip / np.maximum(length, grid.clip)
    rotated = rotation.apply(vectors * shrink[:, None])
    places = np.arange(grid.size, dtype=np.int64)
    numbers = np.empty(rotated.shape, dtype=np.int64)
    for user, seed in enumerate(seeds):
        for start in range(0, grid.size, _CHUNK):
            part = slice(start, start + _CHUNK)
            uniform = (round_hashes(np.asarray(seed), round, places[part]) >> np.uint64(11)) * 2.0**-53
            steps = np.floor(rotated[user, part] / grid.step + uniform)
            numbers[user, part] = np.clip(steps, -grid.largest, grid.largest)
    for user in np.flatnonzero([_squares(row) > grid.limit for row in numbers]).tolist():
        row = numbers[user]
        numbers[user] = np.trunc(row * (math.sqrt(grid.limit / _squares(row)) * (1.0 - 2.0**-50)))
    return numbers


def encode(grid: RotatedGrid, numbers: Int64Array) -> bytes:
    """The payload of one user's numbers int64 [size]: ``width`` bits each, most significant bit first, offset by half.

    Raises:
      DataError: a number is beyond ``largest``, or there are others than ``size``.
    """
    if numbers.shape != (grid.size,) or int(np.abs(numbers).max()) > grid.largest:
        raise DataError(f"Expected {grid.size} numbers within {grid.largest}")
    parts = []
    for start in range(0, grid.size, _CHUNK):
        offset = (numbers[start : start + _CHUNK] + (grid.largest + 1)).astype(">u2")
        bits = np.unpackbits(offset.view(np.uint8).reshape(-1, 2), axis=1)[:, 16 - grid.width :]
        parts.append(np.packbits(bits.ravel()).tobytes())
    return b"".join(parts)


def decode(grid: RotatedGrid, payload: bytes) -> Int64Array:
    """The numbers of a payload, int64 [size], within the bound: what an enclave sums.

    Raises:
      ContributionRefused: MALFORMED for a wrong length or bits after the last number, OUT_OF_BOUNDS where a number or
        the norm is too large.
    """
    if len(payload) != grid.payload_bytes:
        raise ContributionRefused(Refusal.MALFORMED)
    data, numbers = np.frombuffer(payload, dtype=np.uint8), np.empty(grid.size, dtype=np.int64)
    weights = (1 << np.arange(grid.width - 1, -1, -1)).astype(np.uint16)
    for start in range(0, grid.size, _CHUNK):
        count = min(_CHUNK, grid.size - start)
        first, last = start * grid.width // 8, -(-(start + count) * grid.width // 8)
        bits = np.unpackbits(data[first:last])
        if bits[count * grid.width :].any():
            raise ContributionRefused(Refusal.MALFORMED)
        values = bits[: count * grid.width].reshape(count, grid.width) @ weights
        numbers[start : start + count] = values.astype(np.int64) - (grid.largest + 1)
    if int(numbers.min()) < -grid.largest or _squares(numbers) > grid.limit:
        raise ContributionRefused(Refusal.OUT_OF_BOUNDS)
    return numbers


def to_values(grid: RotatedGrid, total: npt.NDArray[np.number], *, rotation: Rotation) -> Float64Array:
    """A sum of numbers, noise included, rotated back, float64 [size] in data units: post-processing."""
    values: Float64Array = rotation.undo((total.astype(np.float64) * grid.step)[None, :])[0]
    return values


def _squares(numbers: Int64Array) -> int:
    """The exact sum of squares of numbers within 2^15: each chunk's stays below 2^53, where doubles are exact."""
    total = 0
    for start in range(0, len(numbers), _CHUNK):
        wide = numbers[start : start + _CHUNK].astype(np.float64)
        total += int(wide @ wide)
    return total
