"""A vector of one person, private by itself: its direction and its length, each by a mechanism of its own.

Guarantee: the two answers are independent given the vector, so the report is (epsilon of the direction + epsilon of the
length)-locally private for any two inputs, "no data" included. Reports of privacy show this sum.

With u = r w, |w| = 1, the decoded product Z = Z1 Z2 has the expectation u for every r within the range of the length,
and E |Z|^2 = E |Z1|^2 (r^2 + Var Z2).

=======================  ==============================================================================================
vector                   what happens
=======================  ==============================================================================================
zero                     length 0, and a uniformly random direction: a report like any other
with NaN or infinity     as zero
longer than the range    its length is cut to the largest one, its direction stays
=======================  ==============================================================================================

Source: Bhowmick, Duchi, Freudiger, Kapoor, Rogers 2018, definition 4.1 and section 4.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from odp.errors import ConfigurationError, DataError
from odp.numerics.arrays import Float64Array, Int64Array
from odp.privacy.mechanisms.random_source import RandomSource
from odp.privacy.mechanisms.scalar import GridScalar, ScalarDP, ScalarRelDP


class Direction(Protocol):
    """A mechanism for unit vectors, such as PrivUnit2."""

    @property
    def dimension(self) -> int:
        """d."""

    @property
    def epsilon(self) -> float:
        """Of one answer, exactly."""

    @property
    def scale(self) -> float:
        """The norm of every answer."""

    def randomize(self, units: Float64Array, *, source: RandomSource) -> Float64Array:
        """Answers float64 [n, d] for unit vectors float64 [n, d]; one of zeros counts as a uniform direction."""

    def encode(self, answer: Float64Array) -> bytes:
        """An answer, float64 [d], as it is sent: in as many bytes for every answer."""

    def decode(self, data: bytes) -> Float64Array:
        """The answer that was sent, float64 [d]. Raises DataError where it is none."""


@dataclass(frozen=True)
class VectorReports:
    """What devices send: ``directions`` float64 [n, d] and ``lengths``, int64 [n], the answers of the mechanisms."""

    directions: Float64Array
    lengths: Int64Array

    def __len__(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True, kw_only=True)
class SeparatedVector:
    """The mechanism of one vector.

    Attributes:
      direction: of u / |u|.
      length: of |u|, from 0 on; it declares ``clip``, so that whether a device answers does not depend on its data.

    Raises:
      ConfigurationError: the range of ``length`` does not begin at 0, or it does not declare ``clip``.
    """

    direction: Direction
    length: ScalarDP | ScalarRelDP | GridScalar

    def __post_init__(self) -> None:
        if self.length.points[0] != 0.0:
            raise ConfigurationError(f"Expected lengths from 0 on (got {self.length.points[0]} as the smallest)")
        if not self.length.clip:
            raise ConfigurationError("Expected a mechanism of lengths with clip=True: a device answers whatever it has")

    @property
    def epsilon(self) -> float:
        """Of one report: that of the direction and that of the length together."""
        return self.direction.epsilon + self.length.epsilon

    @property
    def longest(self) -> float:
        """The norm of the longest decoded report that there is: a bound of what one person moves a sum by."""
        return float(np.abs(self.length.values).max()) * self.direction.scale

    def randomize(self, vectors: Float64Array, *, source: RandomSource) -> VectorReports:
        """Private reports of vectors float64 [n, d], one for each, whatever it holds.

        Raises:
          ConfigurationError: the vectors are of another dimension.
        """
        array = np.asarray(vectors, dtype=np.float64)
        if array.ndim != 2 or array.shape[1] != self.direction.dimension:
            raise ConfigurationError(
                f"Expected vectors [n, {self.direction.dimension}] (got shape {list(array.shape)})"
            )
        # Dividing by the largest entry first keeps squares from overflow and underflow.
        largest = np.abs(array).max(axis=1)
        usable = np.isfinite(largest) & (largest > 0.0)
        scaled = np.where(usable[:, None], array, 0.0) / np.where(usable, largest, 1.0)[:, None]
        relative = np.sqrt(np.einsum("nd,nd->n", scaled, scaled))
        with np.errstate(over="ignore"):
            norms = np.where(usable, largest, 0.0) * relative  # infinite beyond every float, and then cut
        scaled /= np.where(usable, relative, 1.0)[:, None]
        return VectorReports(
            self.direction.randomize(scaled, source=source), self.length.randomize(norms, source=source)
        )

    def decode(self, reports: VectorReports) -> Float64Array:
        """Unbiased vectors from reports, float64 [n, d].

        Raises:
          ConfigurationError: an answer is no index of the grid of lengths.
        """
        return reports.directions * self.length.decode(reports.lengths)[:, None]

    def mean_square(self, norms: Float64Array) -> Float64Array:
        """E |Z|^2 for vectors of these norms, float64 [n]: exact for a mechanism of directions that is."""
        cut = np.minimum(norms, self.length.points[-1])
        return np.asarray(self.direction.scale**2 * (cut**2 + self.length.variance(cut)))

    def error(self, norms: Float64Array) -> Float64Array:
        """E |Z - u|^2 for vectors of these norms, float64 [n]; beyond the range the cut is an error as well."""
        cut = np.minimum(norms, self.length.points[-1])
        return np.asarray(self.mean_square(norms) - cut**2 + (norms - cut) ** 2)

    def to_bytes(self, reports: VectorReports) -> list[bytes]:
        """Reports as they are sent, one message each: the length, then the direction."""
        return [
            self.length.to_bytes(reports.lengths[index : index + 1]) + self.direction.encode(reports.directions[index])
            for index in range(len(reports))
        ]

    def from_bytes(self, messages: list[bytes]) -> VectorReports:
        """Reports that were sent.

        Raises:
          DataError: a message is no report.
        """
        size = len(self.length.to_bytes(np.zeros(1, dtype=np.int64)))
        if short := [len(message) for message in messages if len(message) <= size]:
            raise DataError(f"Expected reports of more than {size} bytes (got {short[0]})")
        lengths = self.length.from_bytes(b"".join(message[:size] for message in messages))
        rows = [self.direction.decode(message[size:]) for message in messages]
        return VectorReports(np.array(rows).reshape(len(messages), self.direction.dimension), lengths)
