"""The client of gradients of an item table for many users at once: the same arithmetic, in blocks of users."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from odp.algorithms.dpam import userside as reading
from odp.algorithms.dpam.population import DpamPopulation
from odp.algorithms.item_gradients import userside
from odp.algorithms.item_gradients.codec import Contributions
from odp.algorithms.item_gradients.query import ItemGradientSum
from odp.algorithms.item_gradients.terms import MASSES_ROUND, Terms, as_read, terms_of
from odp.crypto.keyed_hash import round_hashes
from odp.numerics import parallel
from odp.numerics.arrays import Float64Array, Int64Array, require_seeds
from odp.protocol.wire.model import ModelVersion
from odp.v1 import common_pb2

if TYPE_CHECKING:
    from odp.datasets.ratings import Ratings

_NUMBERS = 2**23  # held per block: of the entries, and of the places of contributions


class GradientPopulation(abc.ABC):
    """What populations of gradients do alike; the model's own population gives the rest."""

    _trained: Terms[Any]

    @abc.abstractmethod
    def _begun(
        self, broadcast: ModelVersion, ratings: Ratings
    ) -> tuple[npt.NDArray[np.float32], Callable[[userside.Entries], Contributions]]:
        """(rows of the items, what users send of their entries in a round of gradients). Raises DataError."""

    def contribute(
        self,
        broadcast: ModelVersion,
        ratings: Ratings,
        *,
        round: int,
        seeds: npt.NDArray[np.uint64],
        progress: Callable[[int], None] | None = None,
    ) -> Mapping[str, Int64Array]:
        """The exact sums of contributions, by release name; ``progress`` is called with the number of users so far."""
        total = ItemGradientSum(self._trained, round)
        for _, contributions in self.contributions(broadcast, ratings, round=round, seeds=seeds):
            total.add_decoded(contributions)
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
        require_seeds(seeds, users=ratings.n_users)
        table, gradients = self._begun(broadcast, ratings)
        for users, entries in blocks(self._trained, ratings, table, round=round, seeds=seeds):
            yield users, userside.masses(self._trained, entries) if round == MASSES_ROUND else gradients(entries)


class ItemGradientPopulation(GradientPopulation, DpamPopulation):
    """``odp.algorithms.seam.Population`` of one task.

    Raises:
      ConfigurationError: the definition is no valid task of this kind.
    """

    def __init__(self, definition: common_pb2.TaskDefinition) -> None:
        self._trained = terms_of(definition)
        super().__init__(as_read(definition))

    def target_bounds(self, sizes: Int64Array) -> tuple[float, Float64Array]:
        """As of DPAM: of all targets together alone, and of rows that add nothing to it."""
        return math.inf, self._trained.clip * self._trained.unit / np.sqrt(np.maximum(sizes, 1))

    def _begun(
        self, broadcast: ModelVersion, ratings: Ratings
    ) -> tuple[npt.NDArray[np.float32], Callable[[userside.Entries], Contributions]]:
        self._check(ratings)
        usable = reading.usable(self._trained.model, broadcast)
        ridges = reading.ridges(self._trained.model, usable.dense)
        return usable.keyed.rows, lambda entries: userside.contributions(self._trained, entries, ridges)[0]


def blocks(
    terms: Terms[Any],
    ratings: Ratings,
    table: npt.NDArray[np.float32],
    *,
    round: int,
    seeds: npt.NDArray[np.uint64] | None,
) -> Iterator[tuple[Int64Array, userside.Entries]]:
    """(users int64 [n], their entries in the order of use, as many as devices have slices) with rows of ``table``.

    Without ``seeds``, all entries, in ascending order of the items.
    """
    model = terms.model
    fetched = model.max_items if round == MASSES_ROUND else model.slices_per_device
    cost = ratings.offsets * (4 + model.rank) + np.arange(len(ratings.offsets)) * model.max_items
    for start, end in parallel.ranges(cost, _NUMBERS):
        offsets = ratings.offsets[start : end + 1]
        here = slice(int(offsets[0]), int(offsets[-1]))
        items = np.asarray(ratings.items[here]).astype(np.int64)
        values = np.asarray(ratings.values[here]).astype(np.float64)
        user = np.repeat(np.arange(end - start), np.diff(offsets))
        order = np.arange(len(user))
        if seeds is not None:
            order = np.lexsort((round_hashes(seeds[start:end].astype(np.uint64)[user], round, items), user))
            order = order[np.arange(len(user)) - (offsets - offsets[0])[user] < fetched]
        rows = table[items[order]].astype(np.float64)
        yield np.arange(start, end), userside.Entries(end - start, user[order], items[order], values[order], rows)
