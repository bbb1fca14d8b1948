"""Real vectors as integers on a grid: the same bound for device, enclave and accountant, without a float tolerance.

The step is ``clip / 2^bits``, so that the L2 bound in steps is a whole number, 2^bits, and the test of a vector is
``sum of n^2 <= 4^bits`` in 64-bit integers. A payload is those integers modulo 2^32, so payloads can be added with or
without masks; ``maximum`` is the number of contributions whose sum, noise included, surely stays within 32 bits.

========================  =============================================================================================
rule                      what holds
========================  =============================================================================================
P16 grid                  step <= noise_std / 64, and step <= clip / (5 sqrt(size)): rounding moves little
P17 clip after rounding   a rounded vector beyond the bound is scaled down and truncated, so what is sent keeps it
P17 range                 (maximum + 14 noise_std / clip) 2^bits < 2^31
P21 noise in shares       a share's std is 4 steps at least, and maximum (2^bits + 14 of it) < 2^31
========================  =============================================================================================

With ``sharers``, devices add the noise themselves, in discrete Gaussian shares that are cut at 14 standard deviations:
no sum of ``maximum`` noisy vectors wraps around, whatever is drawn. The cut moves a share with probability below 1e-42.

Edge cases: a zero vector stays zero; NaN and infinities are refused before they are rounded, and have no encoding.

Source: privacy rules P16 to P18.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.crypto.keyed_hash import fraction_of, round_hashes
from odp.errors import ConfigurationError, DataError
from odp.numerics.arrays import Float32Array, Float64Array, Int64Array
from odp.numerics.row_squares import row_squares
from odp.privacy.mechanisms.discrete_gaussian import LARGEST_STD, SMALLEST_STD, TAIL, largest
from odp.protocol.aggregation import noise_sharers

if TYPE_CHECKING:
    from odp.v1 import common_pb2, statistics_pb2

MAX_BITS = 20
#: Numbers of one vector.
MAX_SIZE = 2**25
MAX_CONTRIBUTIONS = 2**28

NUMBER = np.dtype("<i4")
_RANGE = 2**31
_NOISE_DEVIATIONS = 14.0
_STEPS_PER_DEVIATION = 64.0
# Of one share: finer serves nothing, and takes a longer table to draw from.
_STEPS_PER_SHARE = 1024.0
# Contributions that a round takes, over its goal: those that arrive before it closes are not refused.
_ROOM = 2
# Numbers that are rounded at once: their hashes stay in the processor's cache.
_HASHES = 2**16


@dataclass(frozen=True, kw_only=True)
class Grid:
    """How vectors of ``size`` numbers become integers, and how much noise their sum gets.

    Attributes:
      size: numbers of one vector.
      clip: L2 bound of one vector, in data units.
      bits: the step is ``clip / 2^bits``.
      noise_std: standard deviation of the noise on each number of the sum, in data units.
      maximum: largest number of contributions.
      sharers: 0 where the enclave draws the noise; else the least number of honest devices that share it.

    Raises:
      ConfigurationError: a number is out of range, or breaks a rule of this module's table.
    """

    size: int
    clip: float
    bits: int
    noise_std: float
    maximum: int
    sharers: int = 0

    def __post_init__(self) -> None:
        _validate.integer(size=self.size, low=1, high=MAX_SIZE)
        _validate.positive(clip=self.clip, noise_std=self.noise_std)
        _validate.integer(grid_bits=self.bits, low=1, high=MAX_BITS)
        _validate.integer(maximum=self.maximum, low=1, high=MAX_CONTRIBUTIONS)
        if not self.noise_std / self.step >= _STEPS_PER_DEVIATION:
            raise ConfigurationError(
                f"Expected noise_std={self.noise_std!r} to be at least {_STEPS_PER_DEVIATION:.0f} steps of the grid "
                f"(step={self.step!r}): raise grid_bits={self.bits}"
            )
        if self.units < 5.0 * math.sqrt(self.size):
            raise ConfigurationError(
                f"Expected 2^grid_bits={self.units} to be at least 5 sqrt(size={self.size}): "
                f"raise grid_bits={self.bits}"
            )
        _validate.integer(sharers=self.sharers, low=0, high=self.maximum)
        if self.sharers and not SMALLEST_STD <= self.share_std <= LARGEST_STD:
            raise ConfigurationError(
                f"Expected noise_std={self.noise_std!r} of sharers={self.sharers} to be {SMALLEST_STD:g} to "
                f"{LARGEST_STD:g} steps for each share (grid_bits={self.bits})"
            )
        if not _fits(self.bits, self.maximum, self.noise_std / self.clip, self.sharers):
            raise ConfigurationError(
                f"Expected sums of maximum={self.maximum} vectors at grid_bits={self.bits} to fit 32 bits: "
                "lower maximum or grid_bits"
            )

    @classmethod
    def chosen(cls, *, size: int, clip: float, noise_std: float, maximum: int, sharers: int = 0) -> Grid:
        """The finest grid whose sums fit 32 bits; with ``sharers``, one that gives each some 1,024 steps of noise.

        Raises:
          ConfigurationError: a number is out of range, or no grid is fine enough for the size and the noise and coarse
            enough for ``maximum`` contributions.
        """
        _validate.positive(clip=clip, noise_std=noise_std)
        _validate.integer(size=size, low=1, high=MAX_SIZE)
        fitting = [bits for bits in range(1, MAX_BITS + 1) if _fits(bits, maximum, noise_std / clip, sharers)]
        needed = max(_STEPS_PER_DEVIATION * clip / noise_std, 5.0 * math.sqrt(size))
        if sharers:
            return cls._shared(
                fitting, needed, size=size, clip=clip, noise_std=noise_std, maximum=maximum, sharers=sharers
            )
        if not fitting or 2.0 ** fitting[-1] < needed:
            raise ConfigurationError(
                f"Expected sums of maximum={maximum} vectors of size={size} to fit 32 bits: lower the cohort's goal, "
                "or release fewer numbers"
            )
        return cls(size=size, clip=clip, bits=fitting[-1], noise_std=noise_std, maximum=maximum)

    @classmethod
    def _shared(
        cls, fitting: list[int], needed: float, *, size: int, clip: float, noise_std: float, maximum: int, sharers: int
    ) -> Grid:
        share = noise_std / clip / math.sqrt(sharers)
        usable = [bits for bits in fitting if 2.0**bits >= needed and SMALLEST_STD <= share * 2.0**bits <= LARGEST_STD]
        if not usable:
            raise ConfigurationError(
                f"Expected sums of maximum={maximum} vectors of size={size} to fit 32 bits, with noise of "
                f"{SMALLEST_STD:g} to {LARGEST_STD:g} steps from each of sharers={sharers}: lower the cohort's goal, "
                "ask for a smaller epsilon, or release fewer numbers"
            )
        fine = [bits for bits in usable if share * 2.0**bits >= _STEPS_PER_SHARE]
        bits = fine[0] if fine else usable[-1]
        return cls(size=size, clip=clip, bits=bits, noise_std=noise_std, maximum=maximum, sharers=sharers)

    @classmethod
    def of(cls, terms: statistics_pb2.DenseTerms, cohort: common_pb2.CohortTerms, *, size: int) -> Grid:
        """The grid of a task definition.

        Raises:
          ConfigurationError: as the class, or a sum could have more contributions than its noise is shared out for.
        """
        grid = cls(
            size=size, clip=terms.clip, bits=terms.grid_bits, noise_std=terms.noise_std, maximum=terms.maximum,
            sharers=noise_sharers(cohort),
        )  # fmt: skip
        if grid.sharers and grid.maximum > cohort.goal:
            raise ConfigurationError(
                f"Expected maximum={grid.maximum} contributions of a task of secure aggregation to be at most its "
                f"goal={cohort.goal}: its noise is shared out for sessions of no more devices"
            )
        return grid

    @classmethod
    def within_budget(cls, *, size: int, epsilon: float, delta: float, cohort: common_pb2.CohortTerms) -> Grid:
        """The grid of vectors of norm 1 with the noise that makes their one joint release (epsilon, delta)-DP.

        The round takes up to twice its goal of contributions; the grid is the finest that sums them in 32 bits. With
        sharers, at least that many honest devices add the noise in shares, and the round takes at most its goal.

        Raises:
          ConfigurationError: no grid fits the numbers of contributions and of values.
          PrivacyError: too many numbers get noise: the sampler alone uses up delta.
        """
        from odp.crypto.secure_aggregation.parameters import graph_delta
        from odp.privacy.accounting import mu_for, mu_for_shares

        sharers = noise_sharers(cohort)
        budget = {"epsilon": epsilon, "delta": delta}
        largest_mu = (
            mu_for_shares(**budget, coordinates=size, graph_delta=graph_delta())
            if sharers
            else mu_for(**budget, coordinates=size)
        )
        maximum = min(cohort.goal if sharers else _ROOM * cohort.goal, MAX_CONTRIBUTIONS)
        return cls.chosen(size=size, clip=1.0, noise_std=1.0 / largest_mu, maximum=maximum, sharers=sharers)

    def to_proto(self) -> statistics_pb2.DenseTerms:
        """Its numbers in a task definition."""
        from odp.v1 import statistics_pb2

        return statistics_pb2.DenseTerms(
            clip=self.clip, grid_bits=self.bits, noise_std=self.noise_std, maximum=self.maximum
        )

    @property
    def units(self) -> int:
        """The L2 bound in steps, 2^bits."""
        return 1 << self.bits

    @property
    def limit(self) -> int:
        """The largest sum of squares in steps, 4^bits."""
        return 1 << (2 * self.bits)

    @property
    def step(self) -> float:
        """One step in data units."""
        return self.clip / self.units

    @property
    def share_std(self) -> float:
        """Standard deviation of one device's share of the noise, in steps; the sum of ``sharers`` has ``noise_std``."""
        return self.noise_std / self.step / math.sqrt(self.sharers) if self.sharers else 0.0

    @property
    def bound(self) -> int:
        """The largest absolute value of a number that a device sends, its share of the noise included."""
        return self.units + (largest(self.share_std) if self.sharers else 0)

    def std_of(self, contributions: int) -> float:
        """Standard deviation of the noise on each number of a sum; with sharers, each contribution adds a share."""
        extra = math.sqrt(max(1.0, contributions / self.sharers)) if self.sharers else 1.0
        return self.noise_std * extra

    @property
    def payload_bytes(self) -> int:
        """Length of a payload."""
        return NUMBER.itemsize * self.size


@dataclass(frozen=True)
class Entries:
    """The numbers other than zero of many users' vectors, flat [entries]: each (user, place) at most once.

    ``user`` and ``place`` are int64, ``value`` float64 in data units.
    """

    user: Int64Array
    place: Int64Array
    value: Float64Array


@dataclass(frozen=True)
class Steps:
    """``Entries`` in steps of a grid: ``value`` is int64."""

    user: Int64Array
    place: Int64Array
    value: Int64Array


def quantise(grid: Grid, entries: Entries, *, round: int, seeds: npt.NDArray[np.uint64]) -> Steps:
    """The entries in steps, every user's within the bound; user ``i`` rounds by ``seeds[i]``.

    A number is rounded to one of its two neighbours on the grid, without bias, by a hash of (seed, round, place): the
    same user rounds in the same way whoever computes it. A vector that is longer than the bound is scaled down to it
    before; one that rounding made longer is scaled and truncated after.

    Raises:
      DataError: a value is not finite; nothing of it is shown.
    """
    if wrong := int(np.count_nonzero(~np.isfinite(entries.value))):
        raise DataError(f"{wrong} numbers of a contribution are not finite; correct the device's data")
    users = len(seeds)
    with np.errstate(over="ignore"):
        length = np.sqrt(np.bincount(entries.user, weights=np.square(entries.value), minlength=users))
    shrink = np.minimum(1.0, grid.clip / np.maximum(length, grid.clip))[entries.user]
    uniform = fraction_of(round_hashes(seeds[entries.user], round, entries.place))
    steps = np.floor(entries.value * shrink / grid.step + uniform)
    # Sums of integers below 2^53 are exact in float64, in any order.
    squares = np.bincount(entries.user, weights=np.square(steps), minlength=users)
    beyond = squares > grid.limit
    if beyond.any():
        factor = np.where(beyond, grid.units / np.sqrt(np.maximum(squares, 1.0)), 1.0)[entries.user]
        steps = np.trunc(steps * factor)
    return Steps(entries.user, entries.place, steps.astype(np.int64))


def quantise_rows(
    grid: Grid, rows: Float32Array | Float64Array, *, round: int, seeds: npt.NDArray[np.uint64]
) -> Float64Array:
    """``quantise`` of whole vectors [users, size], as whole numbers float64 [users, size].

    Raises:
      DataError: a value is not finite; nothing of it is shown.
    """
    values = rows.astype(np.float64)
    with np.errstate(over="ignore"):
        lengths = np.sqrt(row_squares(values))
    if not np.isfinite(lengths).all():
        raise DataError("numbers of a contribution are not finite or too large; correct the device's data")
    values *= (np.minimum(1.0, grid.clip / np.maximum(lengths, grid.clip)) / grid.step)[:, None]
    round_at_random(values, round=round, seeds=seeds)
    squares = np.einsum("up,up->u", values, values)  # of whole numbers below 2^53: exact
    beyond = squares > grid.limit
    if beyond.any():
        values[beyond] = np.trunc(values[beyond] * (grid.units / np.sqrt(squares[beyond]))[:, None])
    return values


def round_at_random(values: Float64Array, *, round: int, seeds: npt.NDArray[np.uint64]) -> None:
    """Rounds ``values`` [users, size] in place to whole numbers, up or down, without bias; user ``i`` by ``seeds[i]``.

    By a hash of (seed, round, place): the same user rounds in the same way whoever computes it.
    """
    at_once = max(1, _HASHES // max(1, len(values)))
    for start in range(0, values.shape[1], at_once):
        part = values[:, start : start + at_once]
        places = np.arange(start, start + part.shape[1], dtype=np.int64)
        part += fraction_of(round_hashes(seeds[:, None], round, places[None]))
        np.floor(part, out=part)


def encode(grid: Grid, steps: Steps) -> bytes:
    """The payload of one user's numbers."""
    numbers = np.zeros(grid.size, dtype=NUMBER)
    numbers[steps.place] = steps.value
    return numbers.tobytes()


def _fits(bits: int, maximum: int, noise_multiplier: float, sharers: int = 0) -> bool:
    if sharers:
        return maximum * (1.0 + TAIL * noise_multiplier / math.sqrt(sharers)) * 2.0**bits < _RANGE
    return (maximum + _NOISE_DEVIATIONS * noise_multiplier) * 2.0**bits < _RANGE
