"""Members of a population by their size, for diagnostics."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from odp.numerics.arrays import Float64Array

_BUCKETS = 5


def fifths(sizes: Float64Array) -> Iterator[npt.NDArray[np.bool_]]:
    """Members cut by size into at most five parts of about the same number, smallest first; equal sizes stay together.

    Each part is a mask bool [len(sizes)]; none is empty.
    """
    edges = np.unique(np.quantile(sizes, np.linspace(0.0, 1.0, _BUCKETS + 1)))
    place = np.searchsorted(edges[1:-1], sizes, side="left")
    for number in np.unique(place):
        yield place == number
