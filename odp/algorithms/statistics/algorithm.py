"""Statistics as the platform sees them."""

from __future__ import annotations

from collections.abc import Mapping

from odp.algorithms.capabilities import Answers
from odp.algorithms.dense.inquiry import VectorInquiry
from odp.algorithms.seam import LocalTable, most_rows
from odp.algorithms.statistics.terms import RELEASE, Terms
from odp.numerics.arrays import Float64Array

_OWN = frozenset({"ratings", "events"})


class TaskAlgorithm(VectorInquiry):
    """``odp.algorithms.capabilities.Inquiry`` of tasks that ask for statistics."""

    release = RELEASE

    def terms(self) -> Terms:
        return Terms.of(self.definition)

    @property
    def local_data(self) -> tuple[LocalTable, ...]:
        return tuple(
            LocalTable(part.name, part.table, _OWN, part.events, most_rows(part.events)) for part in self.terms().parts
        )

    def answers(
        self, released: Mapping[str, Float64Array], *, contributions: int, epsilon: float, noisy: bool = True
    ) -> Answers:
        from odp.algorithms.statistics.results import results_of

        return results_of(self.definition, released[RELEASE], contributions=contributions, epsilon=epsilon, noisy=noisy)
