"""``VectorClient`` for many users at once: the sums of their payloads, without the payloads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from odp.algorithms.dense.grid import quantise
from odp.algorithms.dense.records import Records, VectorTerms, check_round
from odp.errors import DataError
from odp.identity import LabelledItems
from odp.numerics.arrays import Int64Array, require_seeds
from odp.protocol.wire.model import ModelVersion

if TYPE_CHECKING:
    from odp.datasets.ratings import Ratings

_USERS = 2**14  # users per block: bounds memory


def require_values(ratings: Ratings, question: str) -> None:
    """Raises DataError unless the rows of ``ratings`` have values, which ``question`` is about."""
    if ratings.implicit:
        guessed = ", as was guessed" if "scale" in ratings.inferred else ""
        raise DataError(
            f"{question} is about values, and rows of data set {ratings.name!r} only say 'seen'{guessed}: load the "
            "table with as_written=True and without implicit, and name the column of values with value=.. (--value) if "
            "none is recognised"
        )


def records_by_name(
    reads: Mapping[str, tuple[str, ...]], ratings: Ratings, start: int, users: int
) -> dict[str, Records]:
    """The rows of some users for each of the local tables that ``reads`` declares, as ``VectorTerms`` has it."""
    of_labels = {labels: records_of(ratings, start, users, labels=labels) for labels in set(reads.values())}
    return {name: of_labels[labels] for name, labels in reads.items()}


def items_of(ratings: Ratings, labels: Sequence[str]) -> Int64Array:
    """The item of a question that each item of a data set is, int64 [n_items], as on devices; -1 for none.

    It is the whole number that is its id, or the place of its id among ``labels``.
    """
    if not labels:
        return ratings.item_numbers
    ids = range(ratings.n_items) if ratings.item_ids is None else ratings.item_ids.tolist()
    return LabelledItems(labels).places([str(key) for key in ids])


def records_of(ratings: Ratings, start: int, users: int, *, labels: tuple[str, ...] = ()) -> Records:
    """The rows of ``users`` users from number ``start`` on; items are those of ``items_of``."""
    rows = slice(int(ratings.offsets[start]), int(ratings.offsets[start + users]))
    return Records(
        np.repeat(np.arange(users, dtype=np.int64), np.diff(ratings.offsets[start : start + users + 1])),
        items_of(ratings, labels)[ratings.items[rows]],
        ratings.values[rows].astype(np.float64),
        users,
    )


class VectorPopulation:
    """``odp.algorithms.seam.Population`` of one task; all its local tables hold a user's ratings.

    Args:
      name: of the release.
      terms: of the task.
    """

    def __init__(self, name: str, terms: VectorTerms) -> None:
        self._name = name
        self._terms = terms

    def contribute(
        self,
        broadcast: ModelVersion,
        ratings: Ratings,
        *,
        round: int,
        seeds: npt.NDArray[np.uint64],
        progress: Callable[[int], None] | None = None,
    ) -> Mapping[str, Int64Array]:
        """The sum of every user's payload, int64 [size].

        Raises:
          DataError: there is not one seed per user.
        """
        check_round(round)
        require_seeds(seeds, users=ratings.n_users)
        grid = self._terms.grid
        total = np.zeros(grid.size, dtype=np.int64)
        for start in range(0, ratings.n_users, _USERS):
            users = min(_USERS, ratings.n_users - start)
            records = records_by_name(self._terms.reads, ratings, start, users)
            entries = quantise(grid, self._terms.vectors(records), round=round, seeds=seeds[start : start + users])
            # Exact: at most 2^14 numbers of at most 2^20 per place, far below 2^53.
            total += np.bincount(entries.place, weights=entries.value, minlength=grid.size).astype(np.int64)
            if progress is not None:
                progress(start + users)
        return {self._name: total}
