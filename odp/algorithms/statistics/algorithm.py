"""Statistics as the platform sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from odp.algorithms.capabilities import Answers
from odp.algorithms.dense.inquiry import VectorInquiry
from odp.algorithms.seam import LocalTable, most_rows
from odp.algorithms.statistics.terms import RELEASE, Terms
from odp.models.left_out import LeftOut
from odp.numerics.arrays import Float64Array

if TYPE_CHECKING:
    from odp.datasets.ratings import Ratings

_OWN = frozenset({"ratings", "events"})


class TaskAlgorithm(VectorInquiry):
    """``odp.algorithms.capabilities.Inquiry`` of tasks that ask for statistics."""

    release = RELEASE

    def terms(self) -> Terms:
        return Terms.of(self.definition)

    @property
    def local_data(self) -> tuple[LocalTable, ...]:
        return tuple(
            LocalTable(
                part.name, part.table, _OWN, part.events, most_rows(part.events), by_id=True, labels=part.item_labels
            )
            for part in self.terms().parts
        )

    def left_out(self, users: Ratings) -> dict[str, LeftOut]:
        from odp.algorithms.statistics.bins import rows_left_out

        return rows_left_out(self.terms().parts, users)

    def answers(
        self, released: Mapping[str, Float64Array], *, contributions: int, epsilon: float, noisy: bool = True
    ) -> Answers:
        from odp.algorithms.statistics.results import results_of

        return results_of(self.definition, released[RELEASE], contributions=contributions, epsilon=epsilon, noisy=noisy)
