"""How the vectors of a round travel: as they are, 32 bits per number, or rotated, with 8 to 16.

Devices and simulation make whole numbers and payloads by one of these, the enclave has its query, and the server reads
the released values.

The declared query of a round of rotated vectors: what the enclave checks, sums, noises and charges.

Guarantee: whatever a device sends, a payload that ``RotatedQuery.check`` accepts moves the sum by at most
``grid.sensitivity`` in L2, exactly: the test is in integers, and the sum is a sum of those integers. The enclave needs
no rotation: it sums and noises rotated numbers, and the server rotates the release back.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from odp.algorithms.declared import DeclaredRelease, GaussianSum
from odp.algorithms.dense import rotated
from odp.algorithms.dense.grid import NUMBER, Grid, quantise_rows
from odp.algorithms.dense.query import DenseSum, SampledDenseQuery
from odp.algorithms.dense.rotated import RotatedGrid, Rotation, encode, squared_norms
from odp.algorithms.seam import SampledQuery
from odp.errors import ContributionRefused, Refusal
from odp.numerics.arrays import Float32Array, Float64Array
from odp.numerics.packed_bits import spare_bits, unpack

# Numbers that are unpacked at once, at most, but for one payload: bounds memory.
_NUMBERS = 2**20


class RotatedQuery:
    """``odp.algorithms.seam.SampledQuery`` of one release ``name``, float64 [grid.size], rotated."""

    def __init__(self, name: str, grid: RotatedGrid) -> None:
        self.grid = grid
        self.payload_bytes = grid.payload_bytes
        self.maximum = grid.maximum
        self.releases: tuple[DeclaredRelease, ...] = (
            GaussianSum(name, (grid.size,), grid.step, grid.sensitivity, grid.noise_std),
        )

    @property
    def empty_payload(self) -> bytes:
        """Zeros."""
        return encode(self.grid, np.zeros(self.grid.size))

    def check(self, payload: bytes) -> None:
        """Accepts a payload within the bound, in integer arithmetic.

        Raises:
          ContributionRefused: MALFORMED for a wrong length or a bit after the last number, OUT_OF_BOUNDS where a number
            or the norm is too large.
        """
        if (refusal := self.refusals([payload])[0]) is not None:
            raise ContributionRefused(refusal)

    def refusals(self, payloads: Sequence[bytes]) -> list[Refusal | None]:
        """``check`` of each."""
        answers: list[Refusal | None] = [
            None if len(payload) == self.payload_bytes else Refusal.MALFORMED for payload in payloads
        ]
        whole = [number for number, answer in enumerate(answers) if answer is None]
        at_once = max(1, _NUMBERS // self.grid.size)
        for start in range(0, len(whole), at_once):
            block = whole[start : start + at_once]
            packed = self._packed([payloads[number] for number in block])
            numbers = self._unpacked(packed)
            malformed = spare_bits(packed, self.grid.size, self.grid.width)
            beyond = (numbers.min(axis=1) < -self.grid.largest) | (squared_norms(numbers) > self.grid.limit)
            for place, number in enumerate(block):
                if malformed[place]:
                    answers[number] = Refusal.MALFORMED
                elif beyond[place]:
                    answers[number] = Refusal.OUT_OF_BOUNDS
        return answers

    def new_sum(self, *, oblivious: bool = False) -> DenseSum:
        """An empty exact sum. Payloads are added place by place, so it is oblivious either way."""
        return DenseSum(
            self.releases[0].name,
            self.grid.size,
            largest=self.grid.largest,
            read=lambda payloads: self._unpacked(self._packed(payloads)),
        )

    def _packed(self, payloads: Sequence[bytes]) -> npt.NDArray[np.uint8]:
        return np.frombuffer(b"".join(payloads), dtype=np.uint8).reshape(len(payloads), self.payload_bytes)

    def _unpacked(self, packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
        numbers = unpack(packed, self.grid.size, self.grid.width).astype(np.int32)
        numbers -= self.grid.largest + 1
        return numbers


class Upload(Protocol):
    """The vectors of one round; ``size`` numbers each."""

    @property
    def size(self) -> int:
        """Numbers of one vector."""

    def numbers(self, rows: Float32Array | Float64Array, *, seeds: npt.NDArray[np.uint64]) -> Float64Array:
        """Vectors [users, size] as whole numbers within the bound, float64 [users, size]; user ``i`` rounds by
        ``seeds[i]``.

        Raises:
          DataError: a value is not finite; nothing of it is shown.
        """

    def payload(self, numbers: Float64Array) -> bytes:
        """The payload of one user's whole numbers [size]."""

    def query(self, name: str) -> SampledQuery:
        """The declared query of the round, whose release has this name."""

    def values(self, released: Float64Array) -> Float64Array:
        """The noisy sum of vectors in a release, both float64 [size] in data units: post-processing."""


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
        return quantise_rows(self.grid, rows, round=self.round, seeds=seeds)

    def payload(self, numbers: Float64Array) -> bytes:
        return numbers.astype(NUMBER).tobytes()

    def query(self, name: str) -> SampledQuery:
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
