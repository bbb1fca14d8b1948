"""Fits a side prior: which bias and row people of a category begin with, from a public panel and a trained model.

The item rows of the model are released or public, and so is the panel: what follows from both costs no privacy. Each
panel user's bias and row are solved as on a device, and regressed on the categories; a few times over, each solve
starting from what the regression said before, since a solve that starts from 0 stays too near to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from odp.algorithms.choices import TrainingTask
from odp.algorithms.dpam import userside
from odp.algorithms.dpam.terms import BIAS_COLUMN, FACTOR_COLUMNS, FIRST_FACTOR_ROUND, TRUST_COLUMN, Terms
from odp.datasets.ratings import Ratings
from odp.errors import DataError
from odp.models.side_prior import SidePrior, items_sha256
from odp.models.warm_start import checked_keys
from odp.numerics.arrays import Float64Array
from odp.protocol.wire.model import ModelVersion

#: Ridge on a category's difference, in users: categories of few panel users stay near to what all have in common.
_RIDGE = 20.0
_ITERATIONS = 5


def side_prior(
    task: TrainingTask,
    model: ModelVersion,
    item_keys: Sequence[str],
    *,
    panel: Ratings,
    panel_keys: Sequence[str],
    side: Mapping[str, Sequence[str]],
) -> SidePrior:
    """A public map from categories to where a person's local solve begins.

    Of a released model it is post-processing, and the panel is public: it costs no privacy.

    Args:
      task: what trained the model, an ``odp.DPAM`` task.
      model: ``handle.model()``, or ``model`` of a simulation's result.
      item_keys: catalogue keys of its items, in the order of their numbers.
      panel: ratings of people who are public, on the task's scale.
      panel_keys: catalogue keys of the panel's items.
      side: by attribute, the category of each panel user; an empty text where a user said nothing.

    Raises:
      ConfigurationError: the task is of another kind, or a key or a category is none.
      DataError: sizes differ, or the panel has no item of the model.
    """
    terms = Terms.of(task.definition())
    ours, theirs = checked_keys(item_keys, name="item_keys"), checked_keys(panel_keys, name="panel_keys")
    stamp = items_sha256(model.keyed.rows)
    model = userside.usable(terms, model)
    table = model.keyed.rows.astype(np.float64)
    if (len(ours), len(theirs)) != (len(table), panel.n_items):
        raise DataError(
            f"Expected {len(table)} item_keys and {panel.n_items} panel_keys (got {len(ours)} and {len(theirs)})"
        )
    for name, values in side.items():
        if len(values) != panel.n_users:
            raise DataError(f"Expected side[{name!r}] to have a category per panel user, {panel.n_users}")
    places = {key: place for place, key in enumerate(ours)}
    at = np.array([places.get(key, -1) for key in theirs], dtype=np.int64)
    if not (at >= 0).any():
        raise DataError(f"Expected the panel to have an item of the model: it has {theirs[0]!r}, the model {ours[0]!r}")
    rank = terms.rank if model.version >= FIRST_FACTOR_ROUND else 0
    ridges = userside.ridges(terms, model.dense)
    empty = SidePrior(
        attributes={name: sorted({value for value in values if value}) for name, values in side.items()},
        rows=np.zeros((1 + sum(len({value for value in values if value}) for values in side.values()), 1 + rank)),
        items_sha256=stamp,
    )
    design = empty.design([{name: values[user] for name, values in side.items()} for user in range(panel.n_users)])
    normal, right = np.empty((panel.n_users, 1 + rank, 1 + rank)), np.empty((panel.n_users, 1 + rank))
    for user in range(panel.n_users):  # each has a system of their own; a panel is some thousand users
        items, rated = panel.user(user)
        has_row = at[items] >= 0
        rows = table[at[items[has_row]]]
        features = np.column_stack((np.ones(len(rows)), rows[:, FACTOR_COLUMNS : FACTOR_COLUMNS + rank]))
        weighted = features.T * rows[:, TRUST_COLUMN]
        normal[user] = weighted @ features
        residual = np.clip(rated[has_row], terms.low, terms.high) - terms.centre - rows[:, BIAS_COLUMN]
        right[user] = weighted @ residual
    penalty = np.diag(np.concatenate((ridges[1:2], np.full(rank, ridges[0]))))
    categories = design.T @ design + _RIDGE * np.diag(np.arange(design.shape[1]) > 0) + 1e-9 * np.eye(design.shape[1])
    fitted: Float64Array = np.zeros((design.shape[1], 1 + rank))
    for _ in range(_ITERATIONS):
        prior = design @ fitted
        off = right - np.einsum("npq,nq->np", normal, prior)
        solved = prior + np.linalg.solve(normal + penalty, off[:, :, None])[:, :, 0]
        fitted = np.asarray(np.linalg.solve(categories, design.T @ solved))
    return SidePrior(attributes=empty.attributes, rows=fitted, items_sha256=empty.items_sha256)
