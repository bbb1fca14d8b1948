"""DPAM's client for many users at once: the same arithmetic on padded batches of users of similar size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from odp.algorithms.dpam import userside
from odp.algorithms.dpam.accumulate import Accumulator
from odp.algorithms.dpam.codec import Contributions
from odp.algorithms.dpam.query import count_units
from odp.algorithms.dpam.subset import places
from odp.algorithms.dpam.terms import COUNTS_ROUND, FIRST_FACTOR_ROUND, GLOBALS_TABLE, Terms
from odp.algorithms.seam import Broadcast, Float64Array, Int64Array
from odp.errors import DataError
from odp.v1 import common_pb2

if TYPE_CHECKING:
    from odp.datasets.ratings import Ratings

_CELLS = 2**18  # padded entries per batch: some 20 MB at rank 8


@dataclass(frozen=True)
class _Entries:
    """Ratings of all users in the order of use: user ``i`` owns ``first[i] : first[i] + size[i]``."""

    items: Int64Array
    values: Float64Array
    first: Int64Array
    size: Int64Array


class DpamPopulation:
    """``odp.algorithms.seam.Population`` of one task.

    Raises:
      ConfigurationError: the definition is no valid DPAM task.
    """

    def __init__(self, definition: common_pb2.TaskDefinition) -> None:
        self._terms = Terms.of(definition)

    def contribute(
        self, broadcast: Broadcast, ratings: Ratings, *, round: int, seeds: npt.NDArray[np.uint64]
    ) -> Mapping[str, Int64Array]:
        """The exact sums of every user's contribution to ``round``, in grid units, by release name.

        Raises:
          DataError: sizes do not fit the task.
        """
        total = Accumulator(self._terms, round, count_units=count_units(self._terms))
        for _, contributions in self.contributions(broadcast, ratings, round=round, seeds=seeds):
            total.add_decoded(contributions)
        return total.totals()

    def contributions(
        self, broadcast: Broadcast, ratings: Ratings, *, round: int, seeds: npt.NDArray[np.uint64]
    ) -> Iterator[tuple[Int64Array, Contributions]]:
        """(users int64 [n], what they send) in batches; every user is in one of them.

        Raises:
          DataError: sizes do not fit the task.
        """
        self._check(ratings)
        if len(seeds) != ratings.n_users:
            raise DataError(f"Expected one seed per user, {ratings.n_users} (got {len(seeds)})")
        limit = self._terms.max_items if round == COUNTS_ROUND else self._terms.slices_per_device
        entries = _in_order_of_use(ratings, seeds.astype(np.uint64), round, limit)
        for users, batch in _batches(entries, broadcast):
            if round == COUNTS_ROUND:
                yield users, userside.counted(self._terms, batch.items, batch.mask)
                continue
            ridges = broadcast.dense[GLOBALS_TABLE][0].astype(np.float64)
            local = userside.solve(self._terms, batch, ridges, rank=self._terms.rank_of(round))
            yield users, userside.contributions(self._terms, batch, local, round=round)

    def predict(self, broadcast: Broadcast, history: Ratings, targets: Ratings) -> Float64Array:
        """Predictions float64 [targets.n_ratings], personalised on all of ``history``; not clamped.

        Raises:
          DataError: sizes do not fit the task, or the two data sets have different users.
        """
        self._check(history)
        self._check(targets)
        if history.n_users != targets.n_users:
            raise DataError(f"Expected as many users in history as in targets: {history.n_users} and {targets.n_users}")
        rank = self._terms.rank if broadcast.version >= FIRST_FACTOR_ROUND else 0
        bias, row = np.zeros(history.n_users), np.zeros((history.n_users, rank))
        entries = _Entries(
            history.items.astype(np.int64),
            history.values.astype(np.float64),
            history.offsets[:-1],
            np.diff(history.offsets),
        )
        ridges = broadcast.dense[GLOBALS_TABLE][0].astype(np.float64)
        for users, batch in _batches(entries, broadcast):
            local = userside.solve(self._terms, batch, ridges, rank=rank)
            bias[users], row[users] = local.bias, local.row
        everyone = userside.LocalParameters(bias=bias, row=row)
        rows = broadcast.keyed.rows[targets.items].astype(np.float64)
        return userside.predict(self._terms, everyone, targets.users(), rows)

    def _check(self, ratings: Ratings) -> None:
        if ratings.n_items != self._terms.items:
            where = f"data set {ratings.name!r}"
            raise DataError(f"Expected {self._terms.items} items in {where}, as in the model (got {ratings.n_items})")


def _in_order_of_use(ratings: Ratings, seeds: npt.NDArray[np.uint64], round: int, limit: int) -> _Entries:
    """Each user's entries sorted by hash, cut to the first ``limit``."""
    size = np.diff(ratings.offsets)
    user = np.repeat(np.arange(ratings.n_users), size)
    hashes = places(seeds[user], round, ratings.items.astype(np.int64))
    order = np.lexsort((hashes, user))
    return _Entries(
        items=ratings.items[order].astype(np.int64),
        values=ratings.values[order].astype(np.float64),
        first=ratings.offsets[:-1],
        size=np.minimum(size, limit),
    )


def _batches(entries: _Entries, broadcast: Broadcast) -> Iterator[tuple[Int64Array, userside.Batch]]:
    """Users sorted by size, so that padding is small, in batches of bounded memory."""
    table = broadcast.keyed.rows
    by_size = np.argsort(entries.size, kind="stable")
    start = 0
    while start < len(by_size):
        end = start + 1
        # The last user of a batch is its longest: grow the batch while the padded size fits.
        reach = np.arange(1, len(by_size) - start + 1) * np.maximum(entries.size[by_size[start:]], 1)
        end = start + max(int(np.searchsorted(reach, _CELLS, side="right")), 1)
        users = by_size[start:end]
        width = int(entries.size[users[-1]])
        place = np.arange(width)
        mask = place < entries.size[users][:, None]
        index = np.where(mask, entries.first[users][:, None] + place, 0)
        if not len(entries.items):
            items, values = np.zeros_like(index), np.zeros(index.shape)
        else:
            items, values = np.where(mask, entries.items[index], 0), np.where(mask, entries.values[index], 0.0)
        yield users, userside.Batch(items=items, values=values, mask=mask, rows=table[items].astype(np.float64))
        start = end
