"""What devices, simulations and servers do with the whole vectors of ``whole_vectors.py``; enclaves need none of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from odp.algorithms.dense.grid import Entries, encode, quantise
from odp.algorithms.factorization.whole_vectors import RELEASE, WholeVector
from odp.algorithms.seam import NoisyTensors
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float64Array, Int64Array


@dataclass(frozen=True)
class Placed:
    """Integers of many users in a release: ``users``, flat ``places`` and ``integers``, int64 [entries] each."""

    users: Int64Array
    places: Int64Array
    integers: Int64Array


def payload(vector: WholeVector, placed: Iterable[Placed], *, round: int, seed: int) -> bytes:
    """A device's vector, of what it has in each release in their order."""
    seeds = np.array([seed], dtype=np.uint64)
    return encode(vector.grid, quantise(vector.grid, _entries(vector, placed), round=round, seeds=seeds))


def add(
    vector: WholeVector,
    total: Int64Array,
    placed: Iterable[Placed],
    *,
    round: int,
    seeds: npt.NDArray[np.uint64],
) -> None:
    """Adds the vectors of users, of what each has in each release in their order, to ``total`` int64 [size]."""
    steps = quantise(vector.grid, _entries(vector, placed), round=round, seeds=seeds)
    np.add.at(total, steps.place, steps.value)


def tensors(vector: WholeVector, release: NoisyTensors) -> NoisyTensors:
    """A noisy sum of vectors as the releases that it stands for.

    Raises:
      ConfigurationError: the release is another one.
    """
    numbers = release.tensors.get(RELEASE)
    if numbers is None or numbers.shape != (vector.grid.size,):
        raise ConfigurationError(f"Expected release {RELEASE!r} of {vector.grid.size} numbers in round {release.round}")
    parts = np.split(numbers, _starts(vector)[1:])
    named = {
        declared.name: part.reshape(declared.shape) * declared.column_std
        for declared, part in zip(vector.releases, parts, strict=True)
    }
    return NoisyTensors(release.round, named, release.contributions)


def _starts(vector: WholeVector) -> Int64Array:
    return np.cumsum([0, *(release.coordinates for release in vector.releases[:-1])])


def _entries(vector: WholeVector, placed: Iterable[Placed]) -> Entries:
    parts = []
    for release, start, part in zip(vector.releases, _starts(vector), placed, strict=True):
        scale: Float64Array = release.step / release.column_std
        parts.append((part.users, start + part.places, part.integers * scale[part.places % len(scale)]))
    users, places, values = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Entries(users, places, values)


def placed_items(items: Int64Array, values: npt.NDArray[np.integer], width: int = 1) -> Placed:
    """What users [n] have of their places' items [n, K]: integers [n, K] or [n, K, width], without those that are 0."""
    numbers = values.reshape(*items.shape, width)
    user, place, column = np.nonzero(numbers)
    return Placed(user, items[user, place] * width + column, numbers[user, place, column].astype(np.int64))


def placed_vectors(values: npt.NDArray[np.integer]) -> Placed:
    """What users have of a vector, integers [n, size]."""
    user, place = np.nonzero(values)
    return Placed(user, place, values[user, place].astype(np.int64))
