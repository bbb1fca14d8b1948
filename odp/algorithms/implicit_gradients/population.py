"""The client of gradients from implicit feedback for many users at once: the same arithmetic, in blocks of users."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from odp.algorithms.implicit.population import ImplicitPopulation
from odp.algorithms.implicit.userside import usable_rows
from odp.algorithms.implicit_gradients import userside
from odp.algorithms.implicit_gradients.terms import as_read, terms_of
from odp.algorithms.item_gradients.codec import Contributions
from odp.algorithms.item_gradients.population import GradientPopulation, blocks
from odp.algorithms.item_gradients.userside import Entries
from odp.numerics.arrays import Float64Array
from odp.protocol.wire.model import ModelVersion
from odp.v1 import common_pb2

if TYPE_CHECKING:
    from odp.datasets.ratings import Ratings


class ImplicitGradientPopulation(GradientPopulation, ImplicitPopulation):
    """``odp.algorithms.seam.Population`` of one task, and what rankings need: users' rows.

    Raises:
      ConfigurationError: the definition is no valid task of this kind.
    """

    def __init__(self, definition: common_pb2.TaskDefinition) -> None:
        self._trained = terms_of(definition)
        super().__init__(as_read(definition))

    def _begun(
        self, broadcast: ModelVersion, ratings: Ratings
    ) -> tuple[npt.NDArray[np.float32], Callable[[Entries], Contributions]]:
        self._check(ratings)
        common = userside.common_part(self._trained, broadcast.dense)
        table = usable_rows(broadcast.keyed.rows)
        return table, lambda entries: userside.contributions(self._trained, entries, common)[0]

    def user_rows(self, broadcast: ModelVersion, history: Ratings) -> Float64Array:
        """Rows float64 [n_users, 1 + rank] that score items; that of popularity for users without history.

        Raises:
          DataError: sizes do not fit the task.
        """
        self._check(history)
        common = userside.common_part(self._trained, broadcast.dense)
        table = usable_rows(broadcast.keyed.rows)
        every = blocks(self._trained, history, table, round=broadcast.version, seeds=None)
        return np.concatenate([userside.scoring_rows(entries, common) for _, entries in every])
