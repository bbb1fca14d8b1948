"""``ReportsClient`` for many simulated users at once, with coins from their seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from odp.algorithms.dense.records import check_round
from odp.algorithms.local_statistics.population import counts_of
from odp.algorithms.shuffled_statistics.terms import RELEASE, Terms
from odp.datasets.ratings import Ratings
from odp.numerics.arrays import Int64Array
from odp.protocol.wire.model import ModelVersion


class ReportsPopulation:
    """``odp.algorithms.seam.Population`` of one task; all its local tables hold a user's ratings."""

    def __init__(self, terms: Terms) -> None:
        self._reports = terms.reports

    def contribute(
        self,
        broadcast: ModelVersion,
        ratings: Ratings,
        *,
        round: int,
        seeds: npt.NDArray[np.uint64],
        progress: Callable[[int], None] | None = None,
    ) -> Mapping[str, Int64Array]:
        """Reports per cell, int64 [cells]. Raises DataError where there is not one seed per user."""
        check_round(round)
        return {RELEASE: counts_of(self._reports, ratings, seeds=seeds, progress=progress)}
