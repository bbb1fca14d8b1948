"""What the trainings of a matrix factorization are to the platform."""

from __future__ import annotations

import abc

from odp._validate import identifier, integer
from odp.algorithms.capabilities import Recommender
from odp.algorithms.computing_time import reading_cost
from odp.algorithms.declared import DeclaredRelease
from odp.algorithms.factorization.slices import MOST_ITEMS, own_table
from odp.algorithms.factorization.terms import CommonTerms
from odp.algorithms.seam import LocalTable
from odp.errors import ConfigurationError
from odp.models.computing_cost import SORTED_SECONDS, ComputingCost, Product

MOST_RANK = 64
MOST_ITEMS_PER_USER = 4096
# Costs, as of ``odp.models.computing_cost``: of a row of the model; of a number of it, and of the square and the cube
# of their number in a user's system of equations; and of an item that is contributed.
_ROW_SECONDS, _NUMBER_SECONDS, _SQUARE_SECONDS, _CUBE_SECONDS, _ITEM_SECONDS = 3e-7, 3e-8, 4e-10, 2e-9, 1e-6


class Factorization(Recommender):
    """Devices read one table of their own, and ask for rows of items by number."""

    @abc.abstractmethod
    def terms(self) -> CommonTerms:
        """The definition, read and checked."""

    @property
    def index_rank(self) -> int:
        """As of ``odp.algorithms.capabilities.Served``."""
        return self.terms().rank

    @property
    def computing_cost(self) -> ComputingCost:
        terms = self.terms()
        row = _ROW_SECONDS + _NUMBER_SECONDS * terms.rank + _SQUARE_SECONDS * (1 + terms.rank) ** 2
        return reading_cost(self.local_data, row_seconds=SORTED_SECONDS).plus(
            Product(row, "slices_per_device"),
            Product(_ITEM_SECONDS, "max_items_per_user"),
            Product(_CUBE_SECONDS * (1 + terms.rank) ** 3),
            caps={"slices_per_device": terms.slices_per_device, "max_items_per_user": terms.max_items},
        )

    @property
    def local_data(self) -> tuple[LocalTable, ...]:
        return (own_table(self.definition, items=self.definition.model.items),)

    def _planned_releases(self) -> list[tuple[DeclaredRelease, ...]]:
        return [self.query(round).releases for round in range(self.terms().rounds)]

    @property
    def rows_per_request(self) -> int:
        return self.terms().slices_per_device

    def check_for_devices(self) -> None:
        if self.definition.WhichOneof("local_data") is None:
            raise ConfigurationError("Expected the task definition to name its local data: data or implicit")
        for declared in self.local_data:
            identifier(table=declared.table)
        model, privacy = self.definition.model, self.definition.privacy
        integer(low=1, high=MOST_ITEMS, items=model.items)
        integer(low=0, high=min(MOST_RANK, model.items), rank=model.rank)
        self._check_data()
        integer(low=1, high=min(MOST_ITEMS_PER_USER, model.items), max_items_per_user=privacy.max_items_per_user)
        self.check()

    def _check_data(self) -> None:
        """Raises ConfigurationError for a declared range of values beyond the limits."""
