"""Quantiles as the platform sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from odp.algorithms.capabilities import Answers
from odp.algorithms.dense.inquiry import VectorInquiry
from odp.algorithms.quantiles.terms import RELEASE, ROWS, Terms
from odp.algorithms.seam import LocalTable, most_rows
from odp.models.left_out import LeftOut
from odp.numerics.arrays import Float64Array

if TYPE_CHECKING:
    from odp.datasets.ratings import Ratings


class TaskAlgorithm(VectorInquiry):
    """``odp.algorithms.capabilities.Inquiry`` of tasks that ask for quantiles."""

    release = RELEASE

    def terms(self) -> Terms:
        return Terms.of(self.definition)

    @property
    def local_data(self) -> tuple[LocalTable, ...]:
        terms = self.terms()
        readable = frozenset({"ratings"})
        return (LocalTable(ROWS, terms.table, readable, terms.events, most_rows(terms.events), by_id=True),)

    def left_out(self, users: Ratings) -> dict[str, LeftOut]:
        from odp.algorithms.dense.population import require_values

        require_values(users, f"the task {self.definition.name!r}")
        return {}

    def answers(
        self, released: Mapping[str, Float64Array], *, contributions: int, epsilon: float, noisy: bool = True
    ) -> Answers:
        from odp.algorithms.quantiles.results import QuantileResults

        terms = self.terms()
        return QuantileResults(
            counts=released[RELEASE],
            std=terms.grid.std_of(contributions) if noisy else 0.0,
            edges=terms.edges,
            at=terms.at,
            contributions=contributions,
            epsilon=epsilon,
            delta=self.definition.privacy.delta,
        )
