"""How the vectors of a round travel: as they are, 32 bits per number, or rotated, with 8 to 16.

Devices and simulation make whole numbers and payloads by one of these, the enclave has its query, and the server reads
the released values.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from odp.algorithms.dense import rotated
from odp.algorithms.dense.grid import NUMBER, Grid, quantise_rows
from odp.algorithms.dense.query import SampledDenseQuery
from odp.algorithms.dense.rotated import RotatedGrid
from odp.algorithms.dense.rotated_query import RotatedQuery
from odp.algorithms.dense.rotation import Rotation
from odp.algorithms.seam import SampledQuery
from odp.numerics.arrays import Float32Array, Float64Array


class Upload(Protocol):
    """The vectors of one round; ``size`` numbers each."""

    @property
    def size(self) -> int:
        """Numbers of one vector."""
        ...

    def numbers(self, rows: Float32Array | Float64Array, *, seeds: npt.NDArray[np.uint64]) -> Float64Array:
        """Vectors [users, size] as whole numbers within the bound, float64 [users, size]; user ``i`` rounds by
        ``seeds[i]``.

        Raises:
          DataError: a value is not finite; nothing of it is shown.
        """
        ...

    def payload(self, numbers: Float64Array) -> bytes:
        """The payload of one user's whole numbers [size]."""
        ...

    def query(self, name: str) -> SampledQuery:
        """The declared query of the round, whose release has this name."""
        ...

    def values(self, released: Float64Array) -> Float64Array:
        """The noisy sum of vectors in a release, both float64 [size] in data units: post-processing."""
        ...


def upload_of(grid: Grid | RotatedGrid, round: int) -> Upload:
    """How vectors on ``grid`` travel in a round."""
    return PlainUpload(grid, round) if isinstance(grid, Grid) else _Rotated(grid, round)


@dataclass(frozen=True)
class PlainUpload:
    """``Upload`` of 32 bits per number, on one grid."""

    grid: Grid
    round: int

    @property
    def size(self) -> int:
        """Numbers of one vector."""
        return self.grid.size

    def numbers(self, rows: Float32Array | Float64Array, *, seeds: npt.NDArray[np.uint64]) -> Float64Array:
        """As ``Upload.numbers``."""
        return quantise_rows(self.grid, rows, round=self.round, seeds=seeds)

    def payload(self, numbers: Float64Array) -> bytes:
        """As ``Upload.payload``."""
        return numbers.astype(NUMBER).tobytes()

    def query(self, name: str) -> SampledQuery:
        """As ``Upload.query``."""
        return SampledDenseQuery(name, self.grid)

    def values(self, released: Float64Array) -> Float64Array:
        """The release itself."""
        return released


@dataclass(frozen=True)
class _Rotated:
    grid: RotatedGrid
    round: int

    @property
    def size(self) -> int:
        return self.grid.size

    @functools.cached_property
    def _rotation(self) -> Rotation:
        return self.grid.rotation(self.round)

    def numbers(self, rows: Float32Array | Float64Array, *, seeds: npt.NDArray[np.uint64]) -> Float64Array:
        return rotated.quantise(self.grid, rows, rotation=self._rotation, round=self.round, seeds=seeds)

    def payload(self, numbers: Float64Array) -> bytes:
        return rotated.encode(self.grid, numbers)

    def query(self, name: str) -> SampledQuery:
        return RotatedQuery(name, self.grid)

    def values(self, released: Float64Array) -> Float64Array:
        return rotated.to_values(self.grid, released, rotation=self._rotation)
