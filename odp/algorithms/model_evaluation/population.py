"""``EvaluationClient`` for many users at once: the sums of their payloads, without the payloads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from odp.algorithms.dense.grid import quantise_rows
from odp.algorithms.dense.records import ROUND, check_round
from odp.algorithms.federated.reading import UsableTable
from odp.algorithms.model_evaluation.client import Labelled, vectors_of_users
from odp.algorithms.model_evaluation.terms import RELEASE, Terms
from odp.datasets.examples import UsersExamples
from odp.datasets.ratings import Ratings
from odp.errors import DataError
from odp.models.left_out import LeftOut
from odp.numerics.arrays import Float32Array, Int64Array, UInt64Array, require_seeds
from odp.protocol.wire.model import ModelVersion

if TYPE_CHECKING:
    from odp.models.trained import TrainedModel

_NUMBERS = 2**22  # of a block of vectors, and of the examples of one: bounds memory


class EvaluationPopulation:
    """``odp.algorithms.seam.Population`` of one task.

    Users are ``UsersExamples`` with all tensors side by side, or those of ``Ratings``.

    Memory beside the examples is bounded by a block of users, never by the population.
    """

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
        """The sum of every user's payload, int64 [size].

        Raises:
          DataError: there is not one seed per user, examples have another number of features, or a label is none that
            the model takes.
          ConfigurationError: the parameters are of another model.
        """
        check_round(round)
        require_seeds(seeds, users=users.n_users)
        terms, grid = self._terms, self._terms.grid
        models = terms.vectors(broadcast.dense)
        table, own_users, most_rows = self._table(users)
        usable = table.usable(own_users, most_rows=most_rows)
        total = np.zeros(grid.size)
        examples = max(1, _NUMBERS // terms.numbers)
        users_at_once = 1 if terms.model.tested_alone else max(1, _NUMBERS // grid.size)
        for first, last in _blocks(usable.offsets, users=users_at_once, examples=examples):
            rows = usable.rows[usable.offsets[first] : usable.offsets[last]]
            block_seeds = seeds[first:last]
            values = vectors_of_users(
                terms, models, _Rows(usable, rows), terms.model.tested_here, self._train,
                counts=np.diff(usable.offsets[first : last + 1]), seeds=block_seeds,
            )  # fmt: skip
            # Exact: whole numbers, whose sums stay below 2^53.
            total += quantise_rows(grid, values, round=round, seeds=block_seeds).sum(axis=0)
            if progress is not None:
                progress(last)
        return {RELEASE: total.astype(np.int64)}

    def left_out(self, users: UsersExamples | Ratings) -> LeftOut:
        """What of the users' data is not tested on, and why.

        Raises:
          DataError: a label is none that the model takes, or nothing can be tested on.
        """
        table, own_users, most_rows = self._table(users)
        return table.left_out(own_users, what="examples to test on", most_rows=most_rows)

    def _table(self, users: UsersExamples | Ratings) -> tuple[UsableTable, UsersExamples, int | None]:
        """(what the model can use and the task tests on, its users, the most rows of one that a device reads)."""
        terms = self._terms
        if isinstance(users, Ratings):
            table = UsableTable.of_ratings(terms.model, users)
            return table, table.source, None
        if terms.examples is None:
            raise DataError("Expected odp.data.Ratings with an odp.RatedItems")
        table = UsableTable.of(terms.model, terms.examples, users)
        if terms.ranked:
            table = table.only(terms.testable(table.targets), otherwise="whose item was not chosen")
        return table, users, terms.most_rows

    def _train(
        self,
        start: Float32Array,
        examples: tuple[Float32Array, Float32Array],
        counts: Int64Array,
        seeds: UInt64Array,
        /,
    ) -> Float32Array:
        """``client.Train`` of many users."""
        features, targets = examples
        examples_of_users = UsersExamples(
            features, targets, np.arange(len(targets), dtype=np.int64), np.concatenate(([0], np.cumsum(counts)))
        )
        out = np.empty((len(counts), len(start)), dtype=np.float32)
        model = cast("TrainedModel", self._terms.model)  # ``Terms.of`` lets personal models be of no other
        return model.differences(
            start,
            examples_of_users,
            self._terms.local_training,
            seeds=seeds,
            round=ROUND,
            users=slice(0, len(counts)),
            out=out,
        )


class _Rows:
    """``Gather`` of rows of a table."""

    def __init__(self, users: UsersExamples, rows: Int64Array) -> None:
        self._users = users
        self._rows = rows

    def __call__(self, places: Int64Array, /) -> Labelled:
        rows = self._rows[places]
        features = self._users.features[rows].astype(np.float32)
        if self._users.scale != 1.0:
            features *= np.float32(self._users.scale)
        return features, self._users.targets[rows]


def _blocks(offsets: Int64Array, *, users: int, examples: int) -> list[tuple[int, int]]:
    """Consecutive users as (first, one after the last), of at most ``examples`` unless one user has more."""
    first, blocks = 0, []
    while first < len(offsets) - 1:
        fitting = int(np.searchsorted(offsets, offsets[first] + examples, side="right")) - 1
        last = min(max(fitting, first + 1), first + users, len(offsets) - 1)
        blocks.append((first, last))
        first = last
    return blocks
