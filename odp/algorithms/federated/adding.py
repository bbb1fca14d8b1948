"""What simulated users send of their differences, rounded and added up: in machine code where numba is there."""

from __future__ import annotations

import functools
import importlib.util

import numpy as np
import numpy.typing as npt

from odp.algorithms.dense.uploads import PlainUpload, Upload
from odp.algorithms.federated.terms import Terms
from odp.crypto.keyed_hash import splitmix64
from odp.errors import DataError
from odp.numerics.arrays import Float32Array, Float64Array, UInt64Array


def add_contributions(
    terms: Terms,
    upload: Upload,
    moved: Float32Array,
    *,
    clip: float,
    trained: npt.NDArray[np.bool_],
    seeds: npt.NDArray[np.uint64],
    total: Float64Array,
) -> None:
    """Adds the whole numbers of users with these differences [users, size] to ``total`` float64 [numbers].

    ``trained`` bool [users] are those with a usable example.

    Exact: whole numbers whose sums stay below 2^53. With and without numba they are the same.

    Raises:
      DataError: a difference is not finite; nothing of it is shown.
    """
    if not isinstance(upload, PlainUpload) or not _compiled():
        total += upload.numbers(terms.contributions(moved, clip, trained=trained), seeds=seeds).sum(axis=0)
        return
    from odp.algorithms.dense import grid_kernels

    grid = upload.grid
    half = 0.0 if terms.adaptive is None else terms.adaptive.weight / 2.0
    finite = grid_kernels.add_rounded(
        moved, clip, trained, half, terms.spread, grid.clip, grid.step, float(grid.units), float(grid.limit), seeds,
        upload.round,
        _places(grid.size), total,
    )  # fmt: skip
    if not finite:
        raise DataError("numbers of a contribution are not finite or too large; correct the device's data")


@functools.lru_cache(maxsize=4)
def _places(size: int) -> UInt64Array:
    return splitmix64(np.arange(size, dtype=np.uint64))


@functools.cache
def _compiled() -> bool:
    return importlib.util.find_spec("numba") is not None
