"""``VotingClient`` for many users at once: the sum of their votes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from odp.algorithms.dense.records import check_round
from odp.algorithms.federated.reading import UsableTable
from odp.algorithms.seam import EVENTS
from odp.algorithms.usable_count.terms import RELEASE, SIZE, OfExamples, OfItems, Terms, places_of
from odp.datasets.examples import UsersExamples
from odp.datasets.ratings import Ratings
from odp.errors import DataError
from odp.numerics.arrays import Int64Array, require_seeds
from odp.protocol.wire.model import ModelVersion


class VotingPopulation:
    """``odp.algorithms.seam.Population`` of one task; its users have examples or ratings."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    def contribute(
        self,
        broadcast: ModelVersion,
        users: UsersExamples | Ratings,
        *,
        round: int,
        seeds: npt.NDArray[np.uint64],
        progress: Callable[[int], None] | None = None,
    ) -> Mapping[str, Int64Array]:
        """The sum of every user's vote, int64 [4] in steps of the grid. A whole vote is exact on it.

        Raises:
          DataError: there is not one seed per user, users have data of another kind, or examples have a label that the
            model does not take.
        """
        check_round(round)
        require_seeds(seeds, users=users.n_users)
        reads = self._terms.reads
        if isinstance(reads, OfExamples) and isinstance(users, UsersExamples):
            places = _votes_on_examples(reads, users)
        elif isinstance(reads, OfItems) and isinstance(users, Ratings):
            places = _votes_on_ratings(reads, users)
        else:
            raise DataError(f"Expected users with the data that the task counts, not a {type(users).__name__}")
        if progress is not None:
            progress(users.n_users)
        return {RELEASE: np.bincount(places, minlength=SIZE).astype(np.int64) * self._terms.grid.units}


def _votes_on_examples(reads: OfExamples, users: UsersExamples) -> Int64Array:
    most = reads.work.most_rows
    usable = UsableTable.of(reads.model, reads.examples, users).usable(users, most_rows=most)
    return places_of(np.minimum(np.diff(users.offsets), most), np.diff(usable.offsets))


def _votes_on_ratings(reads: OfItems, users: Ratings) -> Int64Array:
    usable = np.asarray(users.items) < reads.items
    if reads.values is not None:
        usable &= np.isfinite(users.values)
    elif reads.table.table == EVENTS:
        usable &= np.asarray(users.values) > 0
    ends = np.concatenate(([0], np.cumsum(usable)))
    return places_of(np.diff(users.offsets), np.diff(ends[users.offsets]))
