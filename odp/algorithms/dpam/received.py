"""What a device makes of the numbers of a model, which come from an untrusted server.

- The *ridges* are the same for every device of a round. A model whose ridges would let a solve fail is refused, by
  every device alike.
- The *rows* that a device receives follow from what it holds, so nothing in them is refused: their numbers are brought
  within bounds. With them and the ridges, a user's system of equations is positive definite, and its rounding errors
  stay below its smallest eigenvalue for up to 4,096 items of rank 64.

==============  ==========================================  =============================================
column          within                                      a row with a number that is not finite
==============  ==========================================  =============================================
count           1 .. 2^40                                   1
bias, factors   +-2^8 standard deviations of a residual     0
trust           0 .. 1                                      0: the row takes no part in the solve
==============  ==========================================  =============================================

The simulator applies the same to all rows of a model, so that its users compute what devices do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from odp import _validate
from odp.algorithms.dpam.terms import COUNT_COLUMN, GLOBALS_TABLE, LEAST_RIDGE, TRUST_COLUMN, Terms
from odp.algorithms.factorization.slices import within
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float32Array, Float64Array
from odp.protocol.wire.model import ModelVersion

_LARGEST_COUNT = 2.0**40
_LARGEST_DEVIATIONS = 2.0**8
_LARGEST_RIDGE = 2.0**40
# A ridge travels as float32.
_ROUNDING = 1e-6


def ridges(terms: Terms, dense: Mapping[str, Float32Array]) -> Float64Array:
    """The ridges float64 [2] of a model, on a user's row and on its bias.

    Raises:
      ConfigurationError: one is below the least that a definition may ask for, not finite, or huge.
    """
    ridge_pair = np.asarray(dense[GLOBALS_TABLE][0], dtype=np.float64)
    least = LEAST_RIDGE * (1.0 - _ROUNDING)
    try:
        if terms.rank:
            unit = terms.residual_variance
            _validate.within(row_ridge=float(ridge_pair[0]), low=least * unit, high=_LARGEST_RIDGE * unit)
        _validate.within(bias_ridge=float(ridge_pair[1]), low=least, high=_LARGEST_RIDGE)
    except ConfigurationError as error:
        raise ConfigurationError(f"the model cannot be trained on: {error}") from None
    return ridge_pair


def usable_rows(terms: Terms, rows: Float32Array) -> Float32Array:
    """Item rows float32 [.., width] within the bounds of this module's table."""
    most = _LARGEST_DEVIATIONS * math.sqrt(terms.residual_variance)
    low, high = np.full(terms.width, -most), np.full(terms.width, most)
    low[COUNT_COLUMN], high[COUNT_COLUMN] = 1.0, _LARGEST_COUNT
    low[TRUST_COLUMN], high[TRUST_COLUMN] = 0.0, 1.0
    return within(rows, low, high)


def usable(terms: Terms, broadcast: ModelVersion) -> ModelVersion:
    """A whole model as devices use it. Raises ConfigurationError as ``ridges``."""
    ridges(terms, broadcast.dense)
    return broadcast.with_rows(usable_rows(terms, broadcast.keyed.rows))
