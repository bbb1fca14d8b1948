"""Gradients of an item table as the platform sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from odp.algorithms.capabilities import RecommenderClient, RecommenderPopulation, RecommenderServer
from odp.algorithms.declared import DeclaredRelease
from odp.algorithms.dpam import algorithm
from odp.algorithms.dpam.terms import FACTOR_COLUMNS, Terms as RatingTerms
from odp.algorithms.item_gradients.terms import Terms, terms_of
from odp.algorithms.seam import Query
from odp.numerics.arrays import Float32Array
from odp.protocol.wire.encoding import Encoding
from odp.protocol.wire.model import ModelVersion

if TYPE_CHECKING:
    from odp.models.warm_start import WarmStart


class TaskAlgorithm(algorithm.TaskAlgorithm):
    """``odp.algorithms.capabilities.Recommender`` of tasks by gradients on ratings: DPAM's model, trained otherwise."""

    dense = False

    @property
    def encoding(self) -> Encoding:
        return "float32"

    def gradients(self) -> Terms[RatingTerms]:
        """The definition, read and checked."""
        return terms_of(self.definition)

    def terms(self) -> RatingTerms:
        """Those of the model alone."""
        return self.gradients().model

    def server(self, *, item_features: Float32Array | None = None) -> RecommenderServer:
        from odp.algorithms.item_gradients.server import ItemGradientServer

        return ItemGradientServer(self.definition, item_features)

    def client(self) -> RecommenderClient:
        from odp.algorithms.item_gradients.client import ItemGradientClient

        return ItemGradientClient(self.definition)

    def query(self, round: int) -> Query:
        from odp.algorithms.item_gradients.query import ItemGradientQuery

        return ItemGradientQuery(self.gradients(), round)

    def population(self) -> RecommenderPopulation:
        from odp.algorithms.item_gradients.population import ItemGradientPopulation

        return ItemGradientPopulation(self.definition)

    def warm_start(self, model: ModelVersion, item_keys: Sequence[str]) -> WarmStart:
        """As of DPAM, but no factor repeats what biases and popularity say."""
        return replace(super().warm_start(model, item_keys), factors=model.keyed.rows[:, FACTOR_COLUMNS:])

    def _planned_releases(self) -> list[tuple[DeclaredRelease, ...]]:
        return [self.query(round).releases for round in range(self.gradients().rounds)]
