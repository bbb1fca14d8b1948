"""The client of implicit feedback for many users at once: the same arithmetic on padded batches of similar users."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from odp.algorithms.factorization.codec import Contributions
from odp.algorithms.implicit import userside
from odp.algorithms.implicit.query import ImplicitSum
from odp.algorithms.implicit.terms import COUNTS_ROUND, FACTOR_COLUMNS, Terms
from odp.algorithms.seam import LocalRows
from odp.crypto.keyed_hash import round_hashes
from odp.errors import DataError
from odp.numerics.arrays import Float64Array, Int64Array, require_seeds
from odp.protocol.wire.model import ModelVersion
from odp.v1 import common_pb2

if TYPE_CHECKING:
    from odp.datasets.ratings import Ratings

_CELLS = 2**16  # padded entries per batch: some 20 MB at rank 32


class ImplicitPopulation:
    """``odp.algorithms.seam.Population`` of one task, and what rankings need: item rows and users' rows.

    Raises:
      ConfigurationError: the definition is no valid task on implicit data.
    """

    def __init__(self, definition: common_pb2.TaskDefinition) -> None:
        self._terms = Terms.of(definition)
        self._confidence = userside.confidence_of(definition)

    def contribute(
        self,
        broadcast: ModelVersion,
        ratings: Ratings,
        *,
        round: int,
        seeds: npt.NDArray[np.uint64],
        progress: Callable[[int], None] | None = None,
    ) -> Mapping[str, Int64Array]:
        """The exact sums of every user's contribution to ``round``, in grid units, by release name.

        ``progress`` is called after each batch with the number of users that are done.

        Raises:
          DataError: sizes do not fit the task.
        """
        total = ImplicitSum(self._terms, round)
        for _, contributions in self.contributions(broadcast, ratings, round=round, seeds=seeds):
            total.add_decoded(contributions)
            if progress is not None:
                progress(total.count)
        return total.totals()

    def contributions(
        self, broadcast: ModelVersion, ratings: Ratings, *, round: int, seeds: npt.NDArray[np.uint64]
    ) -> Iterator[tuple[Int64Array, Contributions]]:
        """(users int64 [n], what they send) in batches; every user is in one of them.

        Raises:
          DataError: sizes do not fit the task.
        """
        self._check(ratings)
        require_seeds(seeds, users=ratings.n_users)
        counting = round == COUNTS_ROUND
        size = np.minimum(ratings.counts(), self._terms.max_items if counting else self._terms.slices_per_device)
        ordered = _in_order_of_use(ratings, seeds.astype(np.uint64), round)
        for users, batch in self._batches(ordered, ratings.offsets[:-1], size, broadcast):
            if counting:
                yield users, userside.counted(self._terms, batch.items, batch.mask)
            else:
                yield users, userside.contributions(self._terms, batch, userside.user_rows(batch))

    def user_rows(self, broadcast: ModelVersion, history: Ratings) -> Float64Array:
        """Rows float64 [n_users, rank] that score items: each the sum over all of its user's history.

        A user without history has the row of popularity, as ``userside.scoring_rows`` says.

        Raises:
          DataError: sizes do not fit the task.
        """
        self._check(history)
        rows = np.zeros((history.n_users, self._terms.rank))
        held = LocalRows(history.items.astype(np.int64), history.values.astype(np.float64))
        for users, batch in self._batches(held, history.offsets[:-1], history.counts(), broadcast):
            rows[users] = userside.scoring_rows(self._terms, batch, version=broadcast.version)
        return rows

    def predict(self, broadcast: ModelVersion, history: Ratings, targets: Ratings) -> Float64Array:
        """Scores float64 [targets.n_ratings], personalised on all of ``history``.

        Raises:
          DataError: sizes do not fit the task, or the two data sets have different users.
        """
        self._check(targets)
        if history.n_users != targets.n_users:
            raise DataError(f"Expected as many users in history as in targets: {history.n_users} and {targets.n_users}")
        rows = self.user_rows(broadcast, history)
        table, users = userside.usable_rows(broadcast.keyed.rows).astype(np.float64), targets.users()
        popular = userside.popularity(self._terms, table, version=broadcast.version)
        scores = np.einsum("kd,kd->k", rows[users], table[targets.items, FACTOR_COLUMNS:])
        return np.where(np.any(rows[users], axis=1), scores, popular[targets.items])

    def _batches(
        self, entries: LocalRows, first: Int64Array, size: Int64Array, broadcast: ModelVersion
    ) -> Iterator[tuple[Int64Array, userside.Batch]]:
        """Users sorted by size, so that padding is small, in batches of bounded memory.

        User ``i`` owns ``entries[first[i] : first[i] + size[i]]``.
        """
        table = userside.usable_rows(broadcast.keyed.rows)
        by_size = np.argsort(size, kind="stable")
        start = 0
        while start < len(by_size):
            # The last user of a batch is its longest: grow the batch while the padded size fits.
            reach = np.arange(1, len(by_size) - start + 1) * np.maximum(size[by_size[start:]], 1)
            end = start + max(int(np.searchsorted(reach, _CELLS, side="right")), 1)
            users = by_size[start:end]
            place = np.arange(int(size[users[-1]]))
            mask = place < size[users][:, None]
            index = np.where(mask, first[users][:, None] + place, 0)
            items, confidence = np.zeros_like(index), None
            if len(entries.items):
                items = np.where(mask, entries.items[index], 0)
                confidence = userside.confidences(entries.values[index], self._confidence)
            yield users, userside.Batch(items, mask, table[items].astype(np.float64), confidence)
            start = end

    def _check(self, ratings: Ratings) -> None:
        if ratings.n_items != self._terms.items:
            where = f"data set {ratings.name!r}"
            raise DataError(f"Expected {self._terms.items} items in {where}, as in the model (got {ratings.n_items})")


def item_rows(broadcast: ModelVersion) -> Float64Array:
    """Item rows float64 [m, rank] of a model."""
    return userside.usable_rows(broadcast.keyed.rows)[:, FACTOR_COLUMNS:].astype(np.float64)


def _in_order_of_use(ratings: Ratings, seeds: npt.NDArray[np.uint64], round: int) -> LocalRows:
    """Each user's items sorted by hash."""
    user = ratings.users()
    hashes = round_hashes(seeds[user], round, ratings.items.astype(np.int64))
    order = np.lexsort((hashes, user))
    return LocalRows(ratings.items[order].astype(np.int64), ratings.values[order].astype(np.float64))
