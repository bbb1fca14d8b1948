"""The device's half: one clipped gradient of the person's own rows, and discrete Laplace noise on every weight.

Guarantee, of one report, for any instance that the server drew:

- pure epsilon ``Terms.feature_epsilon`` between any two inputs that change the gradient of one weight alone;
- pure epsilon ``Terms.model_epsilon``, that times the number of weights, between any two inputs: what is charged.

A device without usable rows reports its instance with noise alone. Length, time and number of reports do not depend on
rows; the instance may be anything that ``Terms.decode`` takes, since the noise does not depend on it.

Source: Pihur et al. 2018, "Differentially-Private 'Draw and Discard' Machine Learning", algorithm 1.
"""

from __future__ import annotations

import numpy as np

from odp.algorithms.draw_and_discard.terms import Terms
from odp.algorithms.seam import LocalRows
from odp.numerics.arrays import Float64Array, Int64Array
from odp.privacy.mechanisms.random_source import RandomSource


def report(terms: Terms, instance: bytes, rows: LocalRows, *, source: RandomSource) -> bytes:
    """What a device sends for the instance ``instance``.

    Raises:
      ConfigurationError: ``instance`` has another length or a weight beyond the bound: the same for any rows.
      PrivacyError: the task has no noise.
    """
    terms.require_noise()
    model = terms.decode(instance).astype(np.int64)
    numbers, targets = terms.rows(rows)
    with np.errstate(over="ignore"):
        gradient = terms.gradient(np.multiply(model, terms.step, dtype=np.float64), numbers, targets)
    moved = model + descent(terms, gradient, source=source)
    moved += source.discrete_laplace(terms.noise_scale, terms.weights)
    return terms.encode(np.clip(moved, -terms.largest, terms.largest).astype(np.int32))


def descent(terms: Terms, gradient: Float64Array, *, source: RandomSource) -> Int64Array:
    """Minus ``rate`` times a gradient in steps, int64 [weights], within the ``movement``: rounded at random, unbiased.

    Each rounding is a mixture of two movements within the bound, so the guarantee is that of the bound.
    """
    exact = np.clip(gradient * (-terms.rate / terms.step), -terms.movement, terms.movement)
    lower = np.floor(exact)
    chance = np.ldexp(exact - lower, 64)  # below 2^64: the difference is below 1 by 2^-53 at least
    rounded = lower.astype(np.int64) + source.coins(chance.astype(np.uint64), len(exact))
    return np.clip(rounded, -terms.movement, terms.movement)
