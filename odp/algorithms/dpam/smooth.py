"""Predictions on a device: a linear model of the item rows, plus a smooth one for what is not linear in them.

Training learns item rows for users whose taste is linear in them. A person who likes one half of a genre and not the
other has a taste that no row of theirs can tell. A Gaussian process over the same item rows can: items whose rows are
close are liked alike. It is fitted together with bias and row on the person's own data, on the device, each time
something is predicted. Nothing of it is sent, so it costs no privacy. The same fit says how far a prediction may be off
(``intervals.py``).

    value - base  =  bias + <row, item row> + f(item row) + noise,    f ~ GP(0, kernel_variance k(distance of rows))

k is the rational quadratic kernel (1 + d^2 / (2 a l^2))^-a with a = 16: close to the squared exponential, and four
squarings instead of an exponential. ``f`` is a sum of kernels around at most 128 of the person's own items, so the time
of a fit is linear in their number.

Sources: Rasmussen and Williams 2006, *Gaussian Processes for Machine Learning*, sections 2.7 (explicit basis
functions), 4.2.1 (rational quadratic), 8.3.1 (subset of regressors) and 8.3.3 (its variance far from the own items).
"""

from __future__ import annotations

from dataclasses import dataclass

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
    rated: Float64Array,
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
      wanted: rows of the items to predict [n, rank].
      own, residual, trust, row_ridge, bias_ridge: as in ``fitted``.
      variance: of the smooth part, in units of the residual variance; > 0.
    """
    fit = fitted(rated, residual, trust, row_ridge=row_ridge, bias_ridge=bias_ridge, variance=variance)
    return fit.added(wanted)


@dataclass(frozen=True)
class Basis:
    """What a prediction is a sum of: 1, the item's row, and kernels around some of the person's own items.

    Attributes:
      middle: rows of these items [c, rank]; none of a linear model.
      mean: of these rows [rank].
      scale: what squared distances of rows are multiplied by.
    """

    middle: Float64Array
    mean: Float64Array
    scale: float

    def kernels(self, rows: Float64Array) -> Float64Array:
        """Of items with ``rows`` [n, rank]: [n, c]."""
        # Around the mean, since differences of large squares would be inexact.
        off, others = rows - self.mean, self.middle - self.mean
        squares = (off**2).sum(axis=1)[:, None] + (others**2).sum(axis=1) - 2.0 * off @ others.T
        kernels = 1.0 / (1.0 + self.scale * np.maximum(squares, 0.0))
        for _ in range(SQUARINGS):
            kernels *= kernels
        return np.asarray(kernels)

    def own_kernels(self) -> Float64Array:
        """Of the items that kernels stand around, [c, c], a matrix that can be inverted."""
        kernels = self.kernels(self.middle)
        kernels[np.diag_indices(len(kernels))] += JITTER
        return kernels

    def design(self, rows: Float64Array) -> Float64Array:
        """[n, 1 + rank + c]."""
        return np.concatenate((np.ones((len(rows), 1)), rows, self.kernels(rows)), axis=1)


@dataclass(frozen=True)
class Fit:
    """One person's bias, row and smooth part, fitted to their own values.

    Attributes:
      basis: what predictions are sums of, p terms.
      variance: of the smooth part.
      normal, right: the system of equations [p, p] and [p].
    """

    basis: Basis
    variance: float
    normal: Float64Array
    right: Float64Array

    def added(self, rows: Float64Array) -> Float64Array:
        """What is added to the base values of items with ``rows`` [n, rank], float64 [n]."""
        return np.asarray(self.basis.design(rows) @ np.linalg.solve(self.normal, self.right))

    def with_variances(self, rows: Float64Array) -> tuple[Float64Array, Float64Array, Float64Array]:
        """(``added``, its variances, variances beside it), float64 [n] each, in units of the residual variance.

        The second are those of the sums given the own values; the third is what the process may do that no sum of its
        kernels does: 0 at an item with a kernel.
        """
        design = self.basis.design(rows)
        inverse = np.linalg.inv(self.normal)
        added, variances = design @ (inverse @ self.right), ((design @ inverse) * design).sum(axis=1)
        unexplained = np.zeros(len(rows))
        if len(self.basis.middle):
            kernels = design[:, -len(self.basis.middle) :]
            explained = ((kernels @ np.linalg.inv(self.basis.own_kernels())) * kernels).sum(axis=1)
            unexplained = self.variance * np.maximum(1.0 - explained, 0.0)
        return added, np.maximum(variances, 0.0), unexplained


def fitted(
    rated: Float64Array,
    residual: Float64Array,
    trust: Float64Array,
    *,
    row_ridge: float,
    bias_ridge: float,
    variance: float,
) -> Fit:
    """The fit to one person's own values.

    Args:
      rated: rows of the own items [k, rank], in ascending order of the items.
      residual: own values less the items' base values [k].
      trust: weight of each entry [k], from 0 to 1.
      row_ridge, bias_ridge: as in ``userside.solve``.
      variance: of the smooth part, in units of the residual variance; 0 for a linear model, as ``userside.solve``.
    """
    size, rank = rated.shape
    middle = rated[centres(size)] if variance else rated[:0]
    mean = middle.mean(axis=0) if len(middle) else np.zeros(rank)
    spread = float(((middle - mean) ** 2).sum())
    scale = 0.0
    if spread > SAME * float((middle**2).sum()):
        scale = 0.5 / (2**SQUARINGS * LENGTH * spread / (len(middle) - 1))
    else:
        middle = middle[:0]
    basis = Basis(middle, mean, scale)
    design = basis.design(rated)
    weighted = design.T * trust
    normal = weighted @ design
    row = row_ridge / ROW_SHARE if variance else row_ridge
    normal[np.diag_indices(1 + rank)] += np.concatenate(([bias_ridge], np.full(rank, row)))
    if len(middle):
        normal[1 + rank :, 1 + rank :] += basis.own_kernels() / variance
    return Fit(basis, variance, normal, weighted @ residual)
