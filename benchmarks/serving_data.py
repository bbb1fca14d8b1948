"""Catalogues of any size, as a trained model has them, and people who rated some of their items."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import odp
from odp.algorithms.registry import recommender_for
from odp.algorithms.seam import LocalData, LocalRows
from odp.numerics.arrays import Float32Array
from odp.protocol.wire.model import ModelVersion, Slices, TableValues
from odp.serving.item_index import ItemIndex
from odp.serving.ranking import index_of_model
from odp.v1 import common_pb2

RANK = 32
_LOW, _HIGH, _OWN = 1.0, 5.0, 100
#: Standard deviations of factors fall by this from one to the next, as those of a model of MovieLens do.
_DECAY = 0.93
_FACTOR, _BIAS, _NOISE = 0.3, 0.4, 0.9
#: Ridges of a person's row and bias, in ratings.
_RIDGES = (2.0, 4.0)


@dataclass(frozen=True)
class Catalogue:
    """A model of ratings with random item rows; ``rows`` are those of its table, float32 [items, 3 + rank]."""

    task: common_pb2.SignedTask
    rows: Float32Array

    @property
    def model(self) -> ModelVersion:
        """The whole model."""
        ridges = np.array([_RIDGES], dtype=np.float32)
        return ModelVersion(3, (TableValues("items", self.rows, True), TableValues("globals", ridges, False)))

    @property
    def definition(self) -> common_pb2.TaskDefinition:
        """Of the task."""
        return common_pb2.TaskDefinition.FromString(self.task.definition)

    def index(self, rows: Float32Array | None = None) -> ItemIndex:
        """The index of this version, or of one with other rows."""
        keys = [f"item-{place:07d}" for place in range(len(self.rows))]
        model = self.model if rows is None else self.model.with_rows(rows)
        return index_of_model(self.task, model, keys, {"task": "benchmark"})

    def person(self, seed: int) -> LocalData:
        """Ratings of 100 items by a person whose taste is linear in the items' rows, with noise."""
        generator = np.random.default_rng([2, seed])
        items = np.sort(generator.choice(len(self.rows), _OWN, replace=False))
        row = generator.standard_normal(RANK) * _DECAY ** np.arange(RANK)
        values = 3.5 + self.rows[items, 1] + self.rows[items, 3:] @ row + _NOISE * generator.standard_normal(_OWN)
        rows = LocalRows(items.astype(np.int64), np.clip(np.rint(values), _LOW, _HIGH).astype(np.float64))
        return recommender_for(self.definition).data_of(rows)

    def slices(self, first: int, end: int, own: LocalData) -> Slices:
        """Float rows of a range of items, and of a person's own."""
        client = recommender_for(self.definition).client()
        keys = np.union1d(np.arange(first, end, dtype=np.int64), client.items(own))
        return Slices(3, keys, self.rows[keys], self.model.dense)


def catalogue(items: int) -> Catalogue:
    """Invented rows of ``items`` items, the same at every call."""
    generator = np.random.default_rng([1, items])
    rows = np.ones((items, 3 + RANK), dtype=np.float32)
    rows[:, 0] = generator.integers(1, 1000, items)
    rows[:, 1] = _BIAS * generator.standard_normal(items, dtype=np.float32)
    scales = (_FACTOR * _DECAY ** np.arange(RANK)).astype(np.float32)
    rows[:, 3:] = generator.standard_normal((items, RANK), dtype=np.float32) * scales
    definition = odp.Task(
        name="benchmark",
        model=odp.MatrixFactorization(items=items, rank=RANK),
        data=odp.RatingsData(low=_LOW, high=_HIGH),
        privacy=odp.UserLevelDP(epsilon=8.0, delta=1e-6),
        training=odp.DPAM(steps=2),
        cohort=odp.Cohort(minimum=100, goal=1000),
    ).definition()
    return Catalogue(common_pb2.SignedTask(definition=definition.SerializeToString(deterministic=True)), rows)
