"""A trained model as the start of another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from odp.algorithms.dpam.terms import (
    BIAS_COLUMN,
    COUNT_COLUMN,
    DERIVED_FACTORS,
    FACTOR_COLUMNS,
    GLOBALS_TABLE,
    ITEMS_TABLE,
)
from odp.algorithms.registry import starting_for
from odp.errors import ConfigurationError
from odp.models.warm_start import WarmStart, checked_keys
from odp.protocol.wire.model import ModelVersion

if TYPE_CHECKING:
    from odp.algorithms.choices import TrainingTask


def warm_start(model: ModelVersion, item_keys: Sequence[str], *, task: TrainingTask | None = None) -> WarmStart:
    """The items of a trained model, for ``MatrixFactorization(start=..)`` of another task.

    Of a released model it is post-processing and costs no privacy; a model that was trained without privacy tells of
    the people it was trained on, and should be of public data.

    Args:
      model: what a task ended with: ``handle.model()``, or ``model`` of a simulation's result.
      item_keys: keys of its items, in the order of their numbers.
      task: the one that trained it; a model of ratings tells enough without.

    Raises:
      ConfigurationError: the model is of another kind, the keys are not as many as its items, or one stands twice.
    """
    if not isinstance(model, ModelVersion):
        raise ConfigurationError(
            f"Expected the model of a task, such as handle.model() or result.model (got {type(model).__name__})"
        )
    item_keys = checked_keys(item_keys, name="item_keys")
    if task is not None:
        return starting_for(task.definition()).warm_start(model, item_keys)
    keyed = [table for table in model.tables if table.keyed]
    if [table.name for table in keyed] != [ITEMS_TABLE] or set(model.dense) != {GLOBALS_TABLE}:
        raise ConfigurationError("Expected a model of ratings, or task= with the task that trained the model")
    rows = model.keyed.rows
    if len(item_keys) != len(rows):
        raise ConfigurationError(f"Expected item_keys for {len(rows)} items of the model (got {len(item_keys)})")
    # The first factors repeat what biases and popularity say.
    factors = rows[:, min(FACTOR_COLUMNS + DERIVED_FACTORS, rows.shape[1]) :]
    return WarmStart(keys=item_keys, popularity=rows[:, COUNT_COLUMN], biases=rows[:, BIAS_COLUMN], factors=factors)
