"""Where the numbers of contributions stand in the whole vectors of masks; what enclaves open needs none of it."""

from __future__ import annotations

import numpy as np

from odp.algorithms.dpam import gradient_codec
from odp.algorithms.dpam.codec import Contributions
from odp.algorithms.dpam.terms import COUNTS_ROUND, Terms
from odp.algorithms.factorization.laid_out import Placed, placed_items, placed_vectors
from odp.algorithms.factorization.query import count_units


def placed_in(terms: Terms, round: int, contributions: Contributions | gradient_codec.Contributions) -> list[Placed]:
    """What each user has in each release of a round without Gram matrices, in their order: integers of the sums."""
    items, weights = contributions.items, contributions.weights
    if isinstance(contributions, gradient_codec.Contributions):
        if round != COUNTS_ROUND:
            gradients = placed_items(items, contributions.gradients, terms.learned)
            return [gradients, placed_vectors(contributions.moments)]
        devices = (weights > 0).any(axis=1, keepdims=True).astype(np.int64) * gradient_codec.DEVICE_UNITS
        return [placed_items(items, weights), placed_vectors(np.asarray(devices))]
    if round == COUNTS_ROUND:
        return [placed_items(items, weights * count_units(terms))]
    return [placed_items(items, weights), placed_items(items, weights * contributions.targets)]
