"""The reports of many simulated users, counted: the same reports as of devices with the same words."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from odp.algorithms.dense.population import records_by_name
from odp.algorithms.local_seam import HashedWords
from odp.algorithms.local_statistics.terms import ReportTerms
from odp.datasets.ratings import Ratings
from odp.numerics.arrays import Int64Array, require_seeds

_USERS = 2**16  # users per block: bounds memory


def counts_of(
    terms: ReportTerms,
    ratings: Ratings,
    *,
    seeds: npt.NDArray[np.uint64],
    progress: Callable[[int], None] | None = None,
) -> Int64Array:
    """How many users report each cell, int64 [cells]; all local tables hold a user's ratings.

    Raises:
      DataError: there is not one seed per user.
    """
    require_seeds(seeds, users=ratings.n_users)
    total = np.zeros(terms.cells, dtype=np.int64)
    for start in range(0, ratings.n_users, _USERS):
        users = min(_USERS, ratings.n_users - start)
        records = records_by_name(terms.reads, ratings, start, users)
        cells = terms.reports(records, HashedWords(seeds[start : start + users]), users=users)
        total += np.bincount(cells, minlength=terms.cells)
        if progress is not None:
            progress(start + users)
    return total
