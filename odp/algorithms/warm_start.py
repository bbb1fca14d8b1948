"""A trained model as the start of another, of whatever data it was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from odp.algorithms.dpam import warm_start as of_ratings
from odp.algorithms.registry import starting_for

if TYPE_CHECKING:
    from odp.models.warm_start import WarmStart
    from odp.task import Task
    from odp.wire.model import ModelVersion


def warm_start(model: ModelVersion, item_keys: Sequence[str], *, task: Task | None = None) -> WarmStart:
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
    if task is not None:
        return starting_for(task.definition()).warm_start(model, item_keys)
    return of_ratings.warm_start(model, item_keys)
