"""Predictions on a device: a linear model of the item rows, plus a smooth one for what is not linear in them.

Training learns item rows for users whose taste is linear in them. A person who likes one half of a genre and not the
other has a taste that no row of theirs can tell. A Gaussian process over the same item rows can: items whose rows are
close are liked alike. It is fitted together with bias and row on the person's own data, on the device, each time
something is predicted. Nothing of it is sent, so it costs no privacy.

    value - base  =  bias + <row, item row> + f(item row) + noise,    f ~ GP(0, kernel_variance k(distance of rows))

k is the rational quadratic kernel (1 + d^2 / (2 a l^2))^-a with a = 16: close to the squared exponential, and four
squarings instead of an exponential. ``f`` is a sum of kernels around at most 128 of the person's own items, so the time
of a fit is linear in their number.

Sources: Rasmussen and Williams 2006, *Gaussian Processes for Machine Learning*, sections 2.7 (explicit basis
functions), 4.2.1 (rational quadratic) and 8.3.1 (subset of regressors).
"""

from __future__ import annotations

import numpy as np

from odp.numerics.arrays import Float64Array

#: Own items that kernels stand around.
MOST_CENTRES = 128
#: The kernel's exponent a is 2 to this power.
SQUARINGS = 4
#: Squared length scale l^2, as a share of the variance of the own items' rows.
LENGTH = 0.4
#: Prior variance of the row, beside what it is without the smooth part, which explains some of the same.
ROW_SHARE = 0.7
#: Added to the kernels' own products, so that two items with the same row are no singular system.
JITTER = 1e-4
#: Rows that differ by less, as a share of their squares, count as the same one: there is nothing to be smooth over.
SAME = 1e-12


def centres(entries: int) -> slice:
    """Which of a person's entries, in the order of their items, have a kernel."""
    return slice(None, None, max(1, -(-entries // MOST_CENTRES)))


def predictions(
    own: Float64Array,
    residual: Float64Array,
    trust: Float64Array,
    wanted: Float64Array,
    *,
    row_ridge: float,
    bias_ridge: float,
    variance: float,
) -> Float64Array:
    """What one person's predictions add to the base values of items, float64 [n].

    Args:
      own: rows of the own items [k, rank], in ascending order of the items.
      residual: own values less the items' base values [k].
      trust: weight of each entry [k], from 0 to 1.
      wanted: rows of the items to predict [n, rank].
      row_ridge, bias_ridge: as in ``userside.solve``.
      variance: of the smooth part, in units of the residual variance; > 0.
    """
    size, rank = own.shape
    middle = own[centres(size)]
    mean = middle.mean(axis=0) if size else np.zeros(rank)
    spread = float(((middle - mean) ** 2).sum())
    scale = 0.0
    if spread > SAME * float((middle**2).sum()):
        scale = 0.5 / (2**SQUARINGS * LENGTH * spread / (len(middle) - 1))
    else:
        middle = middle[:0]

    def design(rows: Float64Array) -> Float64Array:
        # Around the mean, since differences of large squares would be inexact.
        off, others = rows - mean, middle - mean
        squares = (off**2).sum(axis=1)[:, None] + (others**2).sum(axis=1) - 2.0 * off @ others.T
        kernels = (1.0 + scale * np.maximum(squares, 0.0)) ** -(2.0**SQUARINGS)
        return np.concatenate((np.ones((len(rows), 1)), rows, kernels), axis=1)

    given = design(own)
    weighted = given.T * trust
    normal = weighted @ given
    ridges = np.concatenate(
        ([bias_ridge], np.full(rank, row_ridge / ROW_SHARE), np.full(len(middle), JITTER / variance))
    )
    normal[np.diag_indices(len(ridges))] += ridges
    normal[1 + rank :, 1 + rank :] += design(middle)[:, 1 + rank :] / variance
    return np.asarray(design(wanted) @ np.linalg.solve(normal, weighted @ residual))
