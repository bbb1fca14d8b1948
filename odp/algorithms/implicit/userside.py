"""What a device computes, for a batch of devices at once: ``client.py`` runs it for one, ``population.py`` for many.

Arrays are padded to the longest user of the batch; ``mask`` tells real entries. A user's entries stand in the order of
``odp.algorithms.factorization.slices``, so the first ``max_items`` of them are the ones that the user contributes.

What a device makes of the rows of a model on implicit feedback, which come from an untrusted server.

The rows that a device receives follow from what it holds, so nothing in them is refused: weights are brought within
0 .. 1, factors within +-2^8 (a typical row of a finished model has norm 1), and a row with a number that is not finite
is all zeros. A user's row is a sum of these with weights of length 1, so it is finite whatever a user has. The
simulator applies the same to all rows of a model.

A task with a confidence reads values as counts, which multiply the weights of a person's own items (Hu, Koren, Volinsky
2008). Weights are brought to the same length as without: so bounds and sensitivity do not depend on any count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.algorithms.factorization.codec import (
    ROW_UNITS,
    Contributions,
    adaptive_weights,
    fit,
    shortened,
    uniform_weights,
)
from odp.algorithms.factorization.slices import within
from odp.algorithms.implicit.terms import FACTOR_COLUMNS, LARGEST_FACTOR, WEIGHT_COLUMN, Terms
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float32Array, Float64Array, Int64Array
from odp.v1 import common_pb2

LEAST_CONFIDENCE, MOST_CONFIDENCE = 1e-3, 1e3
MOST_COUNT = 2.0**53


@dataclass(frozen=True)
class Batch:
    """Local data of n users: items int64 [n, L], mask [n, L], item rows float64 [n, L, width].

    ``confidence`` [n, L] > 0 multiplies the weight that an item's row gives it; None does not.
    """

    items: Int64Array
    mask: npt.NDArray[np.bool_]
    rows: Float64Array
    confidence: Float64Array | None = None

    @property
    def relative(self) -> Float64Array:
        """Weights of the users' items float64 [n, L] before any bound; 0 without an item."""
        weights = np.where(self.mask, np.maximum(self.rows[:, :, WEIGHT_COLUMN], 0.0), 0.0)
        return weights if self.confidence is None else weights * self.confidence


def confidence_of(definition: common_pb2.TaskDefinition) -> float:
    """Of a task on implicit data; 0 where values are no counts.

    Raises:
      ConfigurationError: it is out of range, or the task does not use it.
    """
    if confidence := definition.implicit.confidence:
        _validate.within(confidence=confidence, low=LEAST_CONFIDENCE, high=MOST_CONFIDENCE)
        if definition.dpam.weighting != common_pb2.DpamTraining.WEIGHTING_ADAPTIVE:
            raise ConfigurationError(
                f"Expected no confidence={confidence!r}: it is for odp.ImplicitDPAM with weighting='adaptive'"
            )
    return confidence


def confidences(counts: Float64Array, confidence: float) -> Float64Array | None:
    """What multiplies weights, for ``counts`` of any shape; None without a confidence.

    Source: Hu, Koren, Volinsky 2008, equation 6 with an epsilon of 1.
    """
    return 1.0 + confidence * np.log1p(np.clip(counts, 0.0, MOST_COUNT)) if confidence else None


def user_rows(batch: Batch) -> Float64Array:
    """Each user's row float64 [n, rank], before any clip: u = sum over own items of w v, with weights of length 1.

    That is x V for the user's weighted interactions x: the least-squares row where V has orthonormal columns. A user
    whose items all have weight 0 has the row 0.

    Source: Cremonesi, Koren, Turrin 2010 (PureSVD).
    """
    return np.asarray((_weights(batch)[:, None, :] @ batch.rows[:, :, FACTOR_COLUMNS:])[:, 0])


def _weights(batch: Batch) -> Float64Array:
    """Of each user's items [n, L], of length 1 or all 0."""
    weights = batch.relative
    norm = np.sqrt((weights * weights).sum(axis=1, keepdims=True))
    return np.asarray(weights / np.where(norm > 0, norm, 1.0))


def shares(batch: Batch, rows: Float64Array) -> Float64Array:
    """What each item of the one user in ``batch`` adds to its scores of item rows [k, width], float64 [k, L]."""
    return np.asarray(rows[:, FACTOR_COLUMNS:] @ (_weights(batch)[0][:, None] * batch.rows[0][:, FACTOR_COLUMNS:]).T)


def scoring_rows(terms: Terms, batch: Batch, *, version: int) -> Float64Array:
    """``user_rows`` as they score items: of a user without an item that counts, the row of the released popularity.

    The last factor of a finished model with noise is the popularity of items (``server.py``). Other models have no such
    factor, and that row is 0. What users contribute never depends on it.
    """
    rows = user_rows(batch)
    if terms.has_popularity(version):
        nothing = ~(batch.mask & (batch.rows[:, :, WEIGHT_COLUMN] > 0)).any(axis=1)
        rows[nothing, -1] = 1.0
    return rows


def popularity(terms: Terms, rows: Float64Array, *, version: int) -> Float64Array:
    """What ranks items of rows float64 [n, width] by popularity, float64 [n]: all that a person without items has."""
    if terms.has_popularity(version):
        return rows[:, -1]
    # Adaptive weights fall with the noisy count, and are 0 for items that are not learned.
    weights = rows[:, WEIGHT_COLUMN]
    return np.asarray(np.where(weights > 0, 1.0 / np.where(weights > 0, weights, 1.0), 0.0))


def counted(terms: Terms, items: Int64Array, mask: npt.NDArray[np.bool_]) -> Contributions:
    """Contributions of the round of counts: the first ``max_items`` items of each user."""
    rows = np.zeros((len(items), 0), dtype=np.int64)
    weights = fit(mask, terms.max_items).astype(np.int64)
    return Contributions(rows=rows, items=fit(items, terms.max_items), weights=weights)


def contributions(terms: Terms, batch: Batch, rows: Float64Array) -> Contributions:
    """Clipped, weighted, rounded to integer units: what leaves the devices in a factor round."""
    first = slice(None, terms.max_items)
    weights = quantised_weights(terms, batch.relative[:, first])
    return Contributions(
        rows=quantised_rows(terms, rows),
        items=fit(batch.items[:, first], terms.max_items),
        weights=fit(weights, terms.max_items),
    )


def quantised_rows(terms: Terms, rows: Float64Array) -> Int64Array:
    """Rows [n, rank] scaled down to L2 norm ``row_clip`` where longer, in integer units."""
    return shortened(rows * (ROW_UNITS / terms.row_clip), ROW_UNITS**2)


def quantised_weights(terms: Terms, relative: Float64Array) -> Int64Array:
    """Weights [n, k] with sum of squares at most 2^20 per user, in units of sqrt(K) / 2^10.

    Items outside the head have the relative weight 0 and are not sent. Uniform: 1 for each other item. Adaptive: in
    proportion to ``relative`` and up to the bound, so a user with few items gives each a larger weight.
    """
    return adaptive_weights(relative) if terms.adaptive else uniform_weights(relative > 0, terms.max_items)


def usable_rows(rows: Float32Array) -> Float32Array:
    """Item rows float32 [.., width] within the bounds of this module."""
    low, high = np.full(rows.shape[-1], -LARGEST_FACTOR), np.full(rows.shape[-1], LARGEST_FACTOR)
    low[WEIGHT_COLUMN], high[WEIGHT_COLUMN] = 0.0, 1.0
    return within(rows, low, high)
