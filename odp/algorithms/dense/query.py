"""The declared query of a round of dense contributions: what the enclave checks, sums, noises and charges.

Guarantee: whatever a device sends, a payload that ``DenseQuery.check`` accepts moves the sum by at most ``grid.clip``
in L2, exactly: the test is in integers, and the sum is a sum of those integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from odp.algorithms.declared import DeclaredRelease, GaussianSum, SharedNoiseSum
from odp.algorithms.dense.grid import NUMBER, Grid
from odp.algorithms.seam import refusals_one_by_one
from odp.errors import ContributionRefused, Refusal
from odp.numerics.arrays import Int64Array

# Numbers whose squares are summed at once, at most: their wider copies stay in the processor's cache.
_CHUNK = 2**16
# Below this length, adding many payloads as one matrix is faster than one after the other.
_SHORT = 2**12


class DenseQuery:
    """``odp.algorithms.seam.Query`` of one release ``name``, float64 [grid.size]."""

    def __init__(self, name: str, grid: Grid) -> None:
        self.grid = grid
        self.payload_bytes = grid.payload_bytes
        self.maximum = grid.maximum
        terms = name, (grid.size,), grid.step, grid.clip, grid.noise_std
        self.releases: tuple[DeclaredRelease, ...] = (
            SharedNoiseSum(*terms, grid.sharers) if grid.sharers else GaussianSum(*terms),
        )

    def check(self, payload: bytes) -> None:
        """Accepts a payload within the bound, in integer arithmetic.

        Raises:
          ContributionRefused: MALFORMED for a wrong length, OUT_OF_BOUNDS where a number or the norm is too large.
        """
        if len(payload) != self.payload_bytes:
            raise ContributionRefused(Refusal.MALFORMED)
        numbers = np.frombuffer(payload, dtype=NUMBER)
        units = self.grid.units
        # First the single numbers: the sum of squares is exact for numbers within the bound.
        if (
            int(numbers.max()) > units
            or int(numbers.min()) < -units
            or _squares(numbers, self.grid.bits) > self.grid.limit
        ):
            raise ContributionRefused(Refusal.OUT_OF_BOUNDS)

    def refusals(self, payloads: Sequence[bytes]) -> list[Refusal | None]:
        """``check`` of each."""
        return refusals_one_by_one(self.check, payloads)

    def new_sum(self, *, oblivious: bool = False) -> DenseSum:
        """An empty exact sum. Dense payloads are added place by place, so it is oblivious either way."""
        return DenseSum(self.releases[0].name, self.grid.size, largest=self.grid.units, read=self._read)

    def _read(self, payloads: Sequence[bytes]) -> npt.NDArray[np.int32]:
        data = payloads[0] if len(payloads) == 1 else b"".join(payloads)  # a long one is not copied
        return np.frombuffer(data, dtype=NUMBER).reshape(len(payloads), self.grid.size)


class SampledDenseQuery(DenseQuery):
    """``odp.algorithms.seam.SampledQuery`` of one release."""

    @property
    def empty_payload(self) -> bytes:
        """Zeros."""
        return bytes(self.payload_bytes)


class DenseSum:
    """A running sum, exact: 32-bit additions into one buffer, which is emptied into 64 bits before it could wrap.

    ``add`` trusts that its input was checked.

    Args:
      name: of the release.
      size: numbers of a vector.
      largest: absolute value that a number of a checked payload has at most, below 2^31.
      read: the numbers of checked payloads, int32 [payloads, size].
    """

    def __init__(
        self, name: str, size: int, *, largest: int, read: Callable[[Sequence[bytes]], npt.NDArray[np.int32]]
    ) -> None:
        self.count = 0
        self._name = name
        self._size = size
        self._read = read
        self._narrow = np.zeros(size, dtype=np.int32)
        self._held = 0
        self._most_held = (2**31 - 1) // largest
        self._wide: Int64Array | None = None

    def add(self, payloads: Sequence[bytes]) -> None:
        """Adds checked payloads."""
        at_once = self._most_held if self._size < _SHORT else 1
        for start in range(0, len(payloads), at_once):
            rows = self._read(payloads[start : start + at_once])
            self._add(rows[0] if len(rows) == 1 else rows.sum(axis=0, dtype=np.int32), len(rows))
        self.count += len(payloads)

    def totals(self) -> dict[str, Int64Array]:
        """The sums so far, int64 [size], in steps."""
        total = self._narrow.astype(np.int64)
        if self._wide is not None:
            total += self._wide
        return {self._name: total}

    def _add(self, numbers: npt.NDArray[np.int32], contributions: int) -> None:
        if self._held + contributions > self._most_held:
            self._wide = self.totals()[self._name]
            self._narrow[:] = 0
            self._held = 0
        np.add(self._narrow, numbers, out=self._narrow)
        self._held += contributions


def _squares(numbers: npt.NDArray[np.int32], bits: int) -> int:
    """The exact sum of squares of numbers of at most 2^bits in absolute value.

    Each chunk's sum stays below 2^53, where float64 adds and multiplies whole numbers without rounding, in any order.
    """
    chunk = min(_CHUNK, 1 << (53 - 2 * bits))
    total = 0
    for start in range(0, len(numbers), chunk):
        wide = numbers[start : start + chunk].astype(np.float64)
        total += int(wide @ wide)
    return total
