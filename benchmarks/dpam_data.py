"""Data sets of known shape for the DPAM benchmark, and the plain loop that it is compared with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from odp.datasets.ratings import Ratings
from odp.numerics import parallel
from odp.numerics.arrays import Float64Array

Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

_ENTRIES = 2**21


@dataclass(frozen=True)
class Shape:
    """Sizes of a data set and of the model that is trained on it."""

    name: str
    users: int
    items: int
    ratings: int
    rank: int


SMALL = Shape("small", 1_000, 800, 60_000, 16)
ML_1M = Shape("ML-1M", 6_040, 3_706, 1_000_209, 32)
ML_20M = Shape("ML-20M", 138_493, 26_744, 20_000_000, 64)

#: Ratings per user grow with the user's activity up to this, which is also the most that one user contributes.
MOST = 2_048


def made(shape: Shape, *, ratings: int | None = None, seed: int = 1) -> Ratings:
    """Synthetic ratings: log-normal activity of users, popularity of items as rank ** -.8, four planted factors.

    ``ratings`` replaces the shape's number of ratings; the same arguments give the same data.
    """
    blocks = list(_blocks(shape, shape.ratings if ratings is None else ratings, seed))
    counts, items, values = (np.concatenate(arrays) for arrays in zip(*blocks, strict=True))
    return _ratings(shape, counts, items, values)


def made_in_folder(shape: Shape, folder: Path, *, ratings: int | None = None, seed: int = 1) -> None:
    """The same data in the form of ``Ratings.save_folder``, written block by block."""
    wanted = shape.ratings if ratings is None else ratings
    _ratings(shape, np.zeros(shape.users, np.int64), np.empty(0, np.int32), np.empty(0, np.float32)).save_folder(folder)
    items = np.lib.format.open_memmap(folder / "items.npy", "w+", np.dtype(np.int32), (wanted,))
    values = np.lib.format.open_memmap(folder / "values.npy", "w+", np.dtype(np.float32), (wanted,))
    sizes, start = [], 0
    for counts, some_items, some_values in _blocks(shape, wanted, seed):
        here = slice(start, start + len(some_items))
        items[here], values[here] = some_items, some_values
        sizes.append(counts)
        start = here.stop
    np.save(folder / "offsets.npy", np.concatenate(([0], np.cumsum(np.concatenate(sizes)))))
    items.flush()
    values.flush()


def _ratings(shape: Shape, counts: Longs, items: Ints, values: Floats) -> Ratings:
    offsets = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    return Ratings(shape.name, offsets, items, values, n_items=shape.items, low=1.0, high=5.0)


def _blocks(shape: Shape, wanted: int, seed: int) -> Iterator[tuple[Longs, Ints, Floats]]:
    """(ratings per user, items, values) of consecutive users; exactly ``wanted`` ratings in all."""
    generator = np.random.Generator(np.random.PCG64([seed, wanted]))
    activity = np.minimum(generator.lognormal(0.0, 1.1, shape.users), 30.0)
    size = np.rint(activity * (wanted / activity.sum())).astype(np.int64)
    size = np.clip(size, 1, min(MOST, shape.items // 3))
    # What rounding and the bound took or gave goes to users one by one, round robin.
    while (short := wanted - int(size.sum())) != 0:
        room = np.flatnonzero(size < min(MOST, shape.items // 3) if short > 0 else size > 1)[: abs(short)]
        size[room] += 1 if short > 0 else -1
    popularity = np.cumsum((np.arange(shape.items) + 10.0) ** -0.8)
    trait, item_bias = 0.25 * generator.normal(size=(shape.items, 4)), 0.4 * generator.normal(size=shape.items)
    bounds = np.concatenate(([0], np.cumsum(size)))
    for first, last in parallel.ranges(bounds, _ENTRIES):
        counts = size[first:last]
        pairs = _distinct(counts, popularity, generator)
        users, items = np.divmod(pairs, shape.items)
        taste, user_bias = generator.normal(size=(len(counts), 4)), 0.4 * generator.normal(size=len(counts))
        values = 3.5 + user_bias[users] + item_bias[items] + 0.8 * generator.standard_normal(len(pairs))
        values += np.einsum("kd,kd->k", taste[users], trait[items])
        yield counts, items.astype(np.int32), np.clip(np.rint(values), 1, 5).astype(np.float32)


def _distinct(counts: Longs, popularity: Float64Array, generator: np.random.Generator) -> Longs:
    """user * m + item, ascending: ``counts`` distinct items of each user, likely ones first."""
    n_items = len(popularity)
    pairs = np.empty(0, dtype=np.int64)
    while len(pairs) < counts.sum():
        have = np.bincount(pairs // n_items, minlength=len(counts))
        missing = counts - have
        users = np.repeat(np.arange(len(counts)), np.where(missing > 0, missing + missing // 2 + 1, 0))
        items = np.searchsorted(popularity, generator.random(len(users)) * popularity[-1])
        drawn = np.setdiff1d(users * n_items + items, pairs)
        # Of those drawn, a random choice of as many as are missing.
        order = np.lexsort((generator.random(len(drawn)), drawn // n_items))
        owner = drawn[order] // n_items
        place = np.arange(len(drawn)) - np.searchsorted(owner, owner)
        pairs = np.sort(np.concatenate((pairs, drawn[order][place < missing[owner]])))
    return pairs


def plain_sums(ratings: Ratings, factors: Float64Array, *, ridge: float) -> tuple[Float64Array, Float64Array]:
    """What a person writes first: a loop over users that solves each and adds to the items' sums.

    Without privacy: no sampling, clip or grid. Factors float64 [m, d]; returns Gram matrices [m, d, d] and targets.
    """
    rank = factors.shape[1]
    grams, targets = np.zeros((ratings.n_items, rank, rank)), np.zeros((ratings.n_items, rank))
    for user in range(ratings.n_users):
        items, values = ratings.user(user)
        mine, off = factors[items], values - 3.5
        row = np.linalg.solve(mine.T @ mine + ridge * np.eye(rank), mine.T @ off)
        grams[items] += np.outer(row, row)
        targets[items] += np.outer(off, row)
    return grams, targets


def plain_items(grams: Float64Array, targets: Float64Array, *, noise: float, ridge: float) -> Float64Array:
    """The second half of a plain sweep: numpy normals on the sums, and a loop over items that projects and solves.

    Grams [m, d, d] and targets [m, d] as ``plain_sums`` gives them; returns rows [m, d]. No prior and no exact noise.
    """
    generator = np.random.Generator(np.random.PCG64(3))  # the yardstick; nothing is released
    rank = targets.shape[1]
    noisy = grams + noise * generator.standard_normal(grams.shape)
    right = targets + noise * generator.standard_normal(targets.shape)
    rows = np.empty_like(targets)
    for item in range(len(rows)):
        values, vectors = np.linalg.eigh((noisy[item] + noisy[item].T) / 2)
        projected = (vectors * np.maximum(values, 0.0)) @ vectors.T
        rows[item] = np.linalg.solve(projected + ridge * np.eye(rank), right[item])
    return rows
