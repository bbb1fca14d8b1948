"""What one simulated user's device would show: the client's own computations on the whole model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from odp.algorithms.capabilities import IntervalClient, RecommenderClient
from odp.algorithms.registry import recommender_for
from odp.algorithms.seam import LocalData, LocalRows
from odp.datasets.ratings import Ratings
from odp.errors import ConfigurationError
from odp.models.intervals import Intervals
from odp.numerics.arrays import Int64Array
from odp.protocol.wire.model import ModelVersion, Slices
from odp.tasks.task import Task


def recommend(task: Task, model: ModelVersion, history: Ratings, user: int, *, count: int) -> list[tuple[int, float]]:
    """The ``count`` items with the highest predicted value that ``user`` does not have, best first.

    Values are within the declared range.
    """
    client, everything, data, items = _device(task, model, history, user)
    unseen = np.setdiff1d(everything.keys, items)
    scores = client.predict(everything, data, unseen)
    best = np.argsort(-scores, kind="stable")[:count]
    return [*zip(unseen[best].tolist(), client.on_scale(scores[best]).tolist(), strict=True)]


def intervals(
    task: Task, model: ModelVersion, history: Ratings, user: int, items: Sequence[int], *, level: float
) -> Intervals:
    """As ``RunResult.intervals``."""
    client, everything, data, _ = _device(task, model, history, user)
    if not isinstance(client, IntervalClient):
        raise ConfigurationError(f"task {task.name!r} predicts no values, so there are no ranges: call recommend")
    return client.intervals(everything, data, np.asarray(items, dtype=np.int64), level=level)


def _device(
    task: Task, model: ModelVersion, history: Ratings, user: int
) -> tuple[RecommenderClient, Slices, LocalData, Int64Array]:
    """The client, the whole model, the user's data, and the items of these."""
    items, values = history.user(user)
    table = model.keyed.rows
    algorithm = recommender_for(task.definition())
    rows = LocalRows(items.astype(np.int64), values.astype(np.float64))
    everything = Slices(model.version, np.arange(len(table)), table, model.dense)
    return algorithm.client(), everything, algorithm.data_of(rows), rows.items
