"""A trained model of implicit feedback as the start of another."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from odp.algorithms.implicit.terms import FACTOR_COLUMNS, ITEMS_TABLE, TAIL_WEIGHT, WEIGHT_COLUMN, Terms
from odp.errors import ConfigurationError
from odp.models.warm_start import WarmStart
from odp.protocol.wire.model import ModelVersion

_LEAST_WEIGHT = 1e-6
_MOST_USERS = 1e12


def warm_start(terms: Terms, model: ModelVersion, item_keys: Sequence[str]) -> WarmStart:
    """The items of a model that the task of ``terms`` trained, for ``MatrixFactorization(start=..)`` of another one.

    Of a released model it is post-processing and costs no privacy. Popularity is what weights tell of noisy counts;
    equal weights tell nothing, and all items count as equally popular. Factors are those of an item's average user.

    Raises:
      ConfigurationError: the model is of another task or no possible one, the keys are not as many as its items, or
        one stands twice.
    """
    if [(table.name, table.rows.shape) for table in model.tables] != [(ITEMS_TABLE, (terms.items, terms.width))]:
        raise ConfigurationError("Expected the model of a task on implicit feedback, with as many items and factors")
    if len(item_keys) != terms.items:
        raise ConfigurationError(f"Expected item_keys for {terms.items} items of the model (got {len(item_keys)})")
    rows = model.keyed.rows.astype(np.float64)
    weights, factors = rows[:, WEIGHT_COLUMN], rows[:, FACTOR_COLUMNS:]
    wrong = np.flatnonzero(~(np.isfinite(rows).all(axis=1) & (weights >= 0.0)))
    if len(wrong):
        raise ConfigurationError(
            f"Expected finite numbers and no negative weight in the model, which item {wrong[0]} has not (nor"
            f" {len(wrong) - 1} more): no server of this task makes such a model"
        )
    # The last column of a model with noise is popularity, of which the next task has counts of its own: a common part
    # of the head, and at most a thousandth of it behind.
    directions = factors[:, :-1] if terms.noisy else factors
    head = factors[:, -1] > 0.5 * factors[:, -1].max() if terms.noisy else directions.any(axis=1)
    relative = np.where(head, weights, weights / TAIL_WEIGHT)
    if not terms.noisy:
        # Such a model's weights and factors are those of the method, times and by the relative weight.
        relative = np.sqrt(relative)
        directions = directions * relative[:, None]
    relative = np.clip(relative, _LEAST_WEIGHT, 1.0)
    exponent = terms.weight_exponent if terms.adaptive else 0.0
    popularity = np.ones(terms.items)
    if exponent:
        popularity = np.exp(np.minimum(-np.log(relative) / exponent, math.log(_MOST_USERS)))
    return WarmStart(
        keys=item_keys,
        popularity=popularity,
        biases=np.zeros(terms.items),
        factors=directions / (popularity * relative)[:, None],
    )
