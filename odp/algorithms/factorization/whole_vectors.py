"""A round of a factorization as one vector per device: what masks can hide, since nobody opens a contribution.

An enclave that opens contributions expands them itself, and adds noise of a size of its own to each release. Under
masks a device expands its own: it lays all releases of the round side by side, each number divided by the standard
deviation of its noise, and rounds them to one grid. So the whole has noise of 1 in every place, a user moves it by

    clip = sqrt(sum over releases of (sensitivity / noise)^2)

at most, and the charge is that of the releases together. The server multiplies the deviations back. Each honest device
keeps the clip by itself; what one does that is not honest, nobody sees: its numbers can be as large as the ring allows,
which costs accuracy and nobody's privacy (N14 of the threat model).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from odp.algorithms.declared import GaussianSum
from odp.algorithms.dense.grid import MAX_CONTRIBUTIONS, Entries, Grid, encode, quantise
from odp.algorithms.dense.query import DenseQuery
from odp.algorithms.seam import NoisyTensors, Query
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float64Array, Int64Array
from odp.protocol.aggregation import mode_of, noise_sharers
from odp.v1 import common_pb2

RELEASE = "vector"
#: Numbers of one vector: 16 MiB of upload.
MOST_NUMBERS = 2**22
_ROOM = 2  # contributions that a round takes over its goal, where an enclave adds the noise


@dataclass(frozen=True)
class Placed:
    """Integers of many users in a release: ``users``, flat ``places`` and ``integers``, int64 [entries] each."""

    users: Int64Array
    places: Int64Array
    integers: Int64Array


@dataclass(frozen=True)
class WholeVector:
    """The vector of one round.

    Attributes:
      releases: what an enclave that opens contributions releases, in order.
      grid: of the vector, in standard deviations of the noise.
    """

    releases: tuple[GaussianSum, ...]
    grid: Grid

    @classmethod
    def of(cls, query: Query, definition: common_pb2.TaskDefinition) -> WholeVector:
        """That of the round of ``query``.

        Raises:
          ConfigurationError: the vector is larger than a device sends, or its sums do not fit their integers.
        """
        cohort, mode = definition.cohort, mode_of(definition.cohort)
        releases = tuple(release for release in query.releases if isinstance(release, GaussianSum))
        size = sum(release.coordinates for release in releases)
        if size > MOST_NUMBERS:
            raise ConfigurationError(
                f"Expected at most {MOST_NUMBERS:,} numbers of a contribution with aggregation={mode.name!r}, where a "
                f"device sends those of all items (got {size:,}): take fewer items, a lower rank, or "
                "aggregation='enclave'"
            )
        if any(not release.noise_std for release in releases):
            raise ConfigurationError(f"Expected epsilon to be finite with aggregation={mode.name!r}")
        sharers = noise_sharers(cohort)
        clip = math.sqrt(math.fsum((release.sensitivity / release.noise_std) ** 2 for release in releases))
        maximum = min(cohort.goal if sharers else _ROOM * cohort.goal, MAX_CONTRIBUTIONS)
        return cls(releases, Grid.chosen(size=size, clip=clip, noise_std=1.0, maximum=maximum, sharers=sharers))

    @property
    def query(self) -> DenseQuery:
        """What the round declares."""
        return DenseQuery(RELEASE, self.grid)

    def payload(self, query: Query, payload: bytes, *, round: int, seed: int) -> bytes:
        """A device's vector, of the payload that an enclave would open."""
        total = query.new_sum(oblivious=True)
        total.add([payload])
        placed = []
        for number, release in enumerate(self.releases):
            integers = total.totals()[release.name].reshape(-1)
            places = np.flatnonzero(integers)
            placed.append((number, Placed(np.zeros_like(places), places, integers[places])))
        steps = quantise(self.grid, self._entries(placed), round=round, seeds=np.array([seed], dtype=np.uint64))
        return encode(self.grid, steps)

    def add(
        self, total: Int64Array, placed: Iterable[tuple[int, Placed]], *, round: int, seeds: npt.NDArray[np.uint64]
    ) -> None:
        """Adds the vectors of users, of what each has in each release by number, to ``total`` int64 [size]."""
        steps = quantise(self.grid, self._entries(placed), round=round, seeds=seeds)
        np.add.at(total, steps.place, steps.value)

    def tensors(self, release: NoisyTensors) -> NoisyTensors:
        """A noisy sum of vectors as the releases that it stands for.

        Raises:
          ConfigurationError: the release is another one.
        """
        vector = release.tensors.get(RELEASE)
        if vector is None or vector.shape != (self.grid.size,):
            raise ConfigurationError(
                f"Expected release {RELEASE!r} of {self.grid.size} numbers in round {release.round}"
            )
        parts = np.split(vector, self._starts[1:])
        tensors = {
            declared.name: part.reshape(declared.shape) * declared.column_std
            for declared, part in zip(self.releases, parts, strict=True)
        }
        return NoisyTensors(release.round, tensors, release.contributions)

    @property
    def _starts(self) -> Int64Array:
        return np.cumsum([0, *(release.coordinates for release in self.releases[:-1])])

    def _entries(self, placed: Iterable[tuple[int, Placed]]) -> Entries:
        parts, starts = [], self._starts
        for number, part in placed:
            release = self.releases[number]
            scale: Float64Array = release.step / release.column_std
            parts.append((part.users, starts[number] + part.places, part.integers * scale[part.places % len(scale)]))
        users, places, values = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return Entries(users, places, values)


def whole_vector(query: Query, definition: common_pb2.TaskDefinition) -> WholeVector | None:
    """The vector of the round of ``query``; None where an enclave opens contributions. Raises as ``WholeVector.of``."""
    return WholeVector.of(query, definition) if mode_of(definition.cohort).dense_only else None


def placed_items(items: Int64Array, values: npt.NDArray[np.integer], width: int = 1) -> Placed:
    """What users [n] have of their places' items [n, K]: integers [n, K] or [n, K, width], without those that are 0."""
    numbers = values.reshape(*items.shape, width)
    user, place, column = np.nonzero(numbers)
    return Placed(user, items[user, place] * width + column, numbers[user, place, column].astype(np.int64))


def placed_vectors(values: npt.NDArray[np.integer]) -> Placed:
    """What users have of a vector, integers [n, size]."""
    user, place = np.nonzero(values)
    return Placed(user, place, values[user, place].astype(np.int64))
