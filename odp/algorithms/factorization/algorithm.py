"""What the trainings of a matrix factorization are to the platform."""

from __future__ import annotations

import abc

from odp._validate import identifier, integer
from odp.algorithms.capabilities import Recommender
from odp.algorithms.factorization.terms import CommonTerms
from odp.algorithms.seam import DeclaredRelease
from odp.errors import ConfigurationError

MOST_ITEMS = 2**24
MOST_RANK = 64
MOST_ITEMS_PER_USER = 4096


class Factorization(Recommender):
    """Devices read one table of their own, and ask for rows of items by number."""

    @abc.abstractmethod
    def terms(self) -> CommonTerms:
        """The definition, read and checked."""

    def check(self) -> None:
        self.terms()

    def _planned_releases(self) -> list[tuple[DeclaredRelease, ...]]:
        return [self.query(round).releases for round in range(self.terms().rounds)]

    @property
    def rows_per_request(self) -> int:
        return int(self.definition.dpam.slices_per_device)

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
