"""The client of gradients of an item table for many users at once: the same arithmetic, in blocks of users."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from odp.algorithms.dpam import userside as reading
from odp.algorithms.dpam.codec import Contributions
from odp.algorithms.dpam.population import DpamPopulation
from odp.algorithms.item_gradients import userside
from odp.algorithms.item_gradients.query import ItemGradientSum
from odp.algorithms.item_gradients.terms import MASSES_ROUND, Terms, as_read
from odp.crypto.keyed_hash import round_hashes
from odp.numerics import parallel
from odp.numerics.arrays import Float64Array, Int64Array
from odp.protocol.wire.model import ModelVersion
from odp.v1 import common_pb2

if TYPE_CHECKING:
    from odp.datasets.ratings import Ratings

_NUMBERS = 2**23  # held per block: of the entries' outer products, or of the places of contributions


class ItemGradientPopulation(DpamPopulation):
    """``odp.algorithms.seam.Population`` of one task.

    Raises:
      ConfigurationError: the definition is no valid task of this kind.
    """

    def __init__(self, definition: common_pb2.TaskDefinition) -> None:
        self._gradients = Terms.of(definition)
        super().__init__(as_read(definition))

    def target_bounds(self, sizes: Int64Array) -> tuple[float, Float64Array]:
        """As of DPAM: of all targets together alone, and of rows that add nothing to it."""
        return math.inf, self._gradients.clip * self._gradients.unit / np.sqrt(np.maximum(sizes, 1))

    def contribute(
        self,
        broadcast: ModelVersion,
        ratings: Ratings,
        *,
        round: int,
        seeds: npt.NDArray[np.uint64],
        progress: Callable[[int], None] | None = None,
    ) -> Mapping[str, Int64Array]:
        total = ItemGradientSum(self._gradients, round)
        for _, sent in self.contributions(broadcast, ratings, round=round, seeds=seeds):
            total.add_decoded(sent)
            if progress is not None:
                progress(total.count)
        return total.totals()

    def contributions(
        self, broadcast: ModelVersion, ratings: Ratings, *, round: int, seeds: npt.NDArray[np.uint64]
    ) -> Iterator[tuple[Int64Array, Contributions]]:
        """(users int64 [n], what they send) in blocks of users.

        Raises:
          DataError: sizes do not fit the task.
        """
        self._check(ratings, seeds)
        model = self._gradients.model
        usable = reading.usable(model, broadcast)
        ridges = reading.ridges(model, usable.dense)
        fetched = model.max_items if round == MASSES_ROUND else model.slices_per_device
        least = 1 + (1 + model.rank) * (2 + model.rank) // 2
        # As if every user had some entries more, for the places of its contribution.
        cost = ratings.offsets * least + np.arange(len(ratings.offsets)) * model.max_items
        for start, end in parallel.ranges(cost, _NUMBERS):
            block = self._block_of(ratings, start, end)
            user = np.repeat(np.arange(block.n_users), np.diff(block.offsets))
            items = block.items.astype(np.int64)
            order = np.lexsort((round_hashes(seeds[block.users].astype(np.uint64)[user], round, items), user))
            within = np.arange(len(user)) - block.offsets[user] < fetched
            order = order[within]
            entries = userside.Entries(
                block.n_users,
                user[order],
                items[order],
                block.values[order].astype(np.float64),
                usable.keyed.rows[items[order]].astype(np.float64),
            )
            yield (
                np.arange(start, end),
                userside.contributions(self._gradients, entries, ridges, round=round)[0],
            )
