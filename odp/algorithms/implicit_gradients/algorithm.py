"""Gradients of an item table from implicit feedback as the platform sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from odp.algorithms.capabilities import RecommenderClient, RecommenderPopulation, RecommenderServer
from odp.algorithms.declared import DeclaredRelease
from odp.algorithms.implicit import algorithm
from odp.algorithms.implicit.terms import FACTOR_COLUMNS, ITEMS_TABLE, WEIGHT_COLUMN, Terms as ImplicitTerms
from odp.algorithms.implicit_gradients.terms import ROOT_TABLE, terms_of
from odp.algorithms.item_gradients.terms import Terms
from odp.algorithms.seam import ModelTable, Query
from odp.numerics.arrays import Float32Array
from odp.protocol.wire.model import ModelVersion

if TYPE_CHECKING:
    from odp.models.item_files import ItemColumns
    from odp.models.warm_start import WarmStart


class TaskAlgorithm(algorithm.TaskAlgorithm):
    """``odp.algorithms.capabilities.Recommender`` of tasks by gradients on implicit feedback."""

    def gradients(self) -> Terms[ImplicitTerms]:
        """The definition, read and checked."""
        return terms_of(self.definition)

    def terms(self) -> ImplicitTerms:
        """Those of the model alone."""
        return self.gradients().model

    @property
    def tables(self) -> tuple[ModelTable, ...]:
        terms = self.terms()
        items = ModelTable(ITEMS_TABLE, terms.items, terms.width, True)
        return items, ModelTable(ROOT_TABLE, terms.rank, terms.rank, False)

    def server(self, *, item_features: Float32Array | None = None) -> RecommenderServer:
        from odp.algorithms.implicit_gradients.server import ImplicitGradientServer

        return ImplicitGradientServer(self.definition, item_features)

    def client(self) -> RecommenderClient:
        from odp.algorithms.implicit_gradients.client import ImplicitGradientClient

        return ImplicitGradientClient(self.definition)

    def query(self, round: int) -> Query:
        from odp.algorithms.item_gradients.query import ItemGradientQuery

        return ItemGradientQuery(self.gradients(), round)

    def population(self) -> RecommenderPopulation:
        from odp.algorithms.implicit_gradients.population import ImplicitGradientPopulation

        return ImplicitGradientPopulation(self.definition)

    def warm_start(self, model: ModelVersion, item_keys: Sequence[str]) -> WarmStart:
        from odp.models.warm_start import WarmStart

        rows = model.keyed.rows.astype(np.float64)
        return WarmStart(
            keys=item_keys,
            popularity=rows[:, WEIGHT_COLUMN] * self.definition.cohort.goal,
            biases=np.zeros(len(rows)),
            factors=rows[:, 1 + FACTOR_COLUMNS :],
        )

    def item_columns(self, model: ModelVersion) -> ItemColumns:
        return super().item_columns(model)._replace(shares=None)

    def _planned_releases(self) -> list[tuple[DeclaredRelease, ...]]:
        return [self.query(round).releases for round in range(self.gradients().rounds)]
