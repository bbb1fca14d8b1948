"""DPAM on implicit feedback as the platform sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from odp.algorithms.capabilities import RecommenderClient, RecommenderPopulation, RecommenderServer
from odp.algorithms.factorization.algorithm import Factorization
from odp.algorithms.implicit.terms import FACTOR_COLUMNS, ITEMS_TABLE, WEIGHT_COLUMN, Terms
from odp.algorithms.seam import ModelTable, Query
from odp.numerics.arrays import Float32Array
from odp.protocol.wire.model import ModelVersion

if TYPE_CHECKING:
    from odp.models.item_files import IndexColumns, ItemColumns
    from odp.models.warm_start import WarmStart

#: An index keeps a weight to this power in 8 bits: weights differ by orders of magnitude, and only their ratios count.
_TRUST_EXPONENT = 0.25
#: An index keeps the popularity of items in more bits than their factors, as biases that are too small to rank a person
#: who has items.
_POPULARITY_UNIT = 2.0**-24


class TaskAlgorithm(Factorization):
    """``odp.algorithms.capabilities.Recommender`` of tasks that train on implicit feedback."""

    @property
    def tables(self) -> tuple[ModelTable, ...]:
        terms = self.terms()
        return (ModelTable(ITEMS_TABLE, terms.items, terms.width, True),)

    def terms(self) -> Terms:
        return Terms.of(self.definition)

    def server(self, *, item_features: Float32Array | None = None) -> RecommenderServer:
        from odp.algorithms.implicit.server import ImplicitServer

        return ImplicitServer(self.definition, item_features)

    def client(self) -> RecommenderClient:
        from odp.algorithms.implicit.client import ImplicitClient

        return ImplicitClient(self.definition)

    def query(self, round: int) -> Query:
        from odp.algorithms.implicit.query import ImplicitQuery

        return ImplicitQuery(self.terms(), round)

    def population(self) -> RecommenderPopulation:
        from odp.algorithms.implicit.population import ImplicitPopulation

        return ImplicitPopulation(self.definition)

    def warm_start(self, model: ModelVersion, item_keys: Sequence[str]) -> WarmStart:
        from odp.algorithms.implicit.warm_start import warm_start

        return warm_start(self.terms(), model, item_keys)

    def item_columns(self, model: ModelVersion) -> ItemColumns:
        from odp.models.item_files import ItemColumns

        rows = model.keyed.rows
        none = np.zeros(len(rows), dtype=np.float32)
        return ItemColumns(
            rows[:, FACTOR_COLUMNS:], none, None, offset=0.0, user_bias=False, shares=rows[:, WEIGHT_COLUMN]
        )

    def index_columns(self, model: ModelVersion) -> IndexColumns:
        from odp.models.item_files import IndexColumns

        rows = model.keyed.rows
        trust = np.clip(rows[:, WEIGHT_COLUMN], 0.0, 1.0) ** _TRUST_EXPONENT
        popular = rows[:, -1] if self.terms().has_popularity(model.version) else np.zeros(len(rows), dtype=np.float32)
        biases = (popular * _POPULARITY_UNIT).astype(np.float32)
        return IndexColumns(rows[:, FACTOR_COLUMNS:], biases, trust.astype(np.float32))

    def index_rows(self, columns: IndexColumns) -> Float32Array:
        rows = np.zeros((len(columns.biases), self.terms().width), dtype=np.float32)
        rows[:, WEIGHT_COLUMN] = columns.trust ** (1.0 / _TRUST_EXPONENT)
        rows[:, FACTOR_COLUMNS:] = columns.factors
        if columns.biases.any():
            rows[:, -1] = columns.biases / np.float32(_POPULARITY_UNIT)
        return rows
