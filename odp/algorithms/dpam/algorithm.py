"""DPAM as the platform sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from odp import _validate
from odp.algorithms.capabilities import RecommenderClient, RecommenderPopulation, RecommenderServer
from odp.algorithms.dpam.terms import (
    BIAS_COLUMN,
    COUNT_COLUMN,
    FACTOR_COLUMNS,
    GLOBALS_TABLE,
    ITEMS_TABLE,
    TRUST_COLUMN,
    Terms,
)
from odp.algorithms.factorization.algorithm import Factorization
from odp.algorithms.seam import ModelTable, Query
from odp.errors import ConfigurationError
from odp.models.computing_cost import SEALED_SECONDS, VECTOR_BYTES, ComputingCost, Product
from odp.numerics.arrays import Float32Array
from odp.protocol.aggregation import mode_of
from odp.protocol.wire.encoding import Encoding, encoding_of
from odp.protocol.wire.model import ModelVersion

if TYPE_CHECKING:
    from odp.models.item_files import IndexColumns, ItemColumns
    from odp.models.rated_items import RatedItems
    from odp.models.warm_start import WarmStart

# Of the covariance of one item row: at all, and of the square and the cube of its learned numbers. And of a number that
# has a place in a vector of all items.
_COVARIANCE_SECONDS, _SQUARE_SECONDS, _CUBE_SECONDS, _PLACED_SECONDS = 3e-6, 6e-8, 8e-10, 1e-6


class TaskAlgorithm(Factorization):
    """``odp.algorithms.capabilities.Recommender`` of tasks that train on explicit ratings."""

    dense = True

    @property
    def encoding(self) -> Encoding:
        return encoding_of(self.definition.dpam.items_encoding)

    @property
    def tables(self) -> tuple[ModelTable, ...]:
        terms = self.terms()
        items = ModelTable(ITEMS_TABLE, terms.items, terms.width, True)
        return items, ModelTable(GLOBALS_TABLE, 1, terms.globals_width, False)

    def _check_data(self) -> None:
        data = self.definition.data
        _validate.within(low=-1e6, high=1e6, data_low=data.low, data_high=data.high)
        if not data.low < data.high:
            raise ConfigurationError(f"Expected data.low={data.low!r} to be below data.high={data.high!r}")

    def terms(self) -> Terms:
        return Terms.of(self.definition)

    @property
    def computing_cost(self) -> ComputingCost:
        terms, cost = self.terms(), super().computing_cost
        if terms.gradient:
            row = _COVARIANCE_SECONDS + _SQUARE_SECONDS * terms.learned**2 + _CUBE_SECONDS * terms.learned**3
            cost = cost.plus(Product(row, "slices_per_device"))
        if not mode_of(self.definition.cohort).dense_only:
            return cost
        numbers = max(self.query(round).releases[0].coordinates for round in range(min(terms.rounds, 2)))
        return cost.plus(
            Product(_PLACED_SECONDS * max(terms.learned, 2), "max_items_per_user"),
            Product(SEALED_SECONDS * numbers),
            memory=(Product(VECTOR_BYTES * numbers),),
        )

    def check(self) -> None:
        terms, mode = self.terms(), mode_of(self.definition.cohort)
        if mode.dense_only:
            if terms.steps and not terms.gradient:
                raise ConfigurationError(
                    f"Expected step='gradient' or steps=0 with aggregation={mode.name!r}: a device would have to send "
                    "Gram matrices of all items"
                )
            for round in range(min(terms.rounds, 2)):  # all later ones are as the second
                self.query(round)

    def server(self, *, item_features: Float32Array | None = None) -> RecommenderServer:
        if self.definition.dpam.gradient_steps:
            from odp.algorithms.dpam.gradient_server import GradientServer

            return GradientServer(self.definition, item_features)
        from odp.algorithms.dpam.server import DpamServer

        return DpamServer(self.definition, item_features)

    def client(self) -> RecommenderClient:
        from odp.algorithms.dpam.client import DpamClient

        return DpamClient(self.definition)

    def query(self, round: int) -> Query:
        from odp.algorithms.dpam.query import declared_query

        return declared_query(self.definition, self.terms(), round)

    def population(self) -> RecommenderPopulation:
        from odp.algorithms.dpam.population import DpamPopulation

        return DpamPopulation(self.definition)

    def warm_start(self, model: ModelVersion, item_keys: Sequence[str]) -> WarmStart:
        from odp.algorithms.dpam.warm_start import warm_start

        return warm_start(model, item_keys)

    @property
    def rated_items(self) -> RatedItems:
        from odp.models.rated_items import RatedItems

        terms = self.terms()
        return RatedItems(items=terms.items, rank=terms.rank, low=terms.low, high=terms.high, centre=terms.centre)

    def item_columns(self, model: ModelVersion) -> ItemColumns:
        from odp.models.item_files import ItemColumns

        rows, terms = model.keyed.rows, self.terms()
        return ItemColumns(
            factors=rows[:, FACTOR_COLUMNS:], biases=rows[:, BIAS_COLUMN], popularity=rows[:, COUNT_COLUMN],
            offset=terms.centre, user_bias=True,
        )  # fmt: skip

    def index_columns(self, model: ModelVersion) -> IndexColumns:
        from odp.models.item_files import IndexColumns

        rows = model.keyed.rows
        return IndexColumns(rows[:, FACTOR_COLUMNS:], rows[:, BIAS_COLUMN], rows[:, TRUST_COLUMN])

    def index_rows(self, columns: IndexColumns) -> Float32Array:
        import numpy as np

        rows = np.zeros((len(columns.biases), self.terms().width), dtype=np.float32)
        rows[:, BIAS_COLUMN], rows[:, TRUST_COLUMN] = columns.biases, columns.trust
        rows[:, FACTOR_COLUMNS:] = columns.factors
        return rows
