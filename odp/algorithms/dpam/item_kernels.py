"""The server's inner loops in machine code: which item matrices are positive definite, and posteriors of item rows.

The same as the numpy forms in ``estimation.py`` and ``features.py``, one item at a time; symmetric matrices are
packed upper triangles [p]. Import needs numba; nothing imports this module at the top. All functions release the
interpreter lock.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

# Below this share of the diagonal, a pivot may be rounding.
_SMALLEST = 1e-11
_FUSED = {"contract", "nsz"}


@numba.njit(nogil=True, cache=True, fastmath=_FUSED)
def _eliminate(system: Any, size: int, right: int, growing: bool) -> bool:
    """[M | R | I] becomes [U | U^-T R | U^-T] with M = U'U; False where M [size, size] is not clearly positive.

    Of M the upper triangle counts. ``right`` is the number of columns of R; without ``growing``, no identity stands
    beside it.
    """
    largest = max(system[0, 0], system[size - 1, size - 1])
    for k in range(size):
        if not system[k, k] > _SMALLEST * largest:
            return False
        scale = 1.0 / np.sqrt(system[k, k])
        # Column j of U^-T is zero above row j.
        last = size + right + (k + 1 if growing else 0)
        for column in range(k, last):
            system[k, column] *= scale
        for row in range(k + 1, size):
            factor = system[k, row]
            for column in range(row, last):
                system[row, column] -= factor * system[k, column]
    return True


@numba.njit(nogil=True, cache=True)
def _unpack(packed: Any, size: int, system: Any) -> None:
    place = 0
    for row in range(size):
        for column in range(row, size):
            system[row, column] = packed[place + column - row]
        place += size - row


@numba.njit(nogil=True, cache=True)
def _identity_from(system: Any, first: int) -> None:
    system[:, first:] = 0.0
    for row in range(len(system)):
        system[row, first + row] = 1.0


@numba.njit(nogil=True, cache=True)
def positive(matrices: Any, out: Any) -> None:
    """Whether each symmetric matrix [k, w, w] is clearly positive definite, bool [k]."""
    for item in range(len(matrices)):
        out[item] = _eliminate(matrices[item].copy(), matrices.shape[1], 0, False)


@numba.njit(nogil=True, cache=True, fastmath=_FUSED)
def evidence(packed: Any, right: Any, noise: Any, sampling: Any, information: Any, information_right: Any) -> None:
    """H = A (noise I + sampling A)^-1 A and A (noise I + sampling A)^-1 b, per item.

    Args:
      packed: A, positive semidefinite [k, p].
      right: b [k, w].
      noise, sampling: > 0 [k].
      information: H packed [k, p], to fill.
      information_right: [k, w] to fill.
    """
    size = right.shape[1]
    system, root = np.empty((size, 2 * size + 1)), np.zeros((size, size))
    for item in range(len(packed)):
        _unpack(packed[item], size, system)
        for row in range(size):
            for column in range(row, size):
                system[row, column] *= sampling[item]
            system[row, row] += noise[item]
            system[row, size] = right[item, row]
        _identity_from(system, size + 1)
        _eliminate(system, size, 1, True)
        # T = U'U, so U^-T A = (U - noise U^-T) / sampling: less work than a substitution for A, and about as exact as
        # the noise leaves it.
        for row in range(size):
            for column in range(row + 1):
                root[row, column] = -noise[item] / sampling[item] * system[row, size + 1 + column]
            root[row, row] += system[row, row] / sampling[item]
            for column in range(row + 1, size):
                root[row, column] = system[row, column] / sampling[item]
        information[item] = 0.0
        information_right[item] = 0.0
        for k in range(size):
            place = 0
            for row in range(size):
                factor = root[k, row]
                for column in range(row, size):
                    information[item, place + column - row] += factor * root[k, column]
                place += size - row
                information_right[item, row] += factor * system[k, size]


@numba.njit(nogil=True, cache=True, fastmath=_FUSED)
def posterior(
    information: Any,
    information_right: Any,
    first_precision: Any,
    precision: Any,
    mean: Any,
    variance: Any,
    covariance: Any,
    summed: bool,
) -> None:
    """Means and variances of the rows of posterior precision H + prior precision, per item.

    Args:
      information, information_right: as filled by :func:`evidence`.
      first_precision: prior precision of the first entry [k].
      precision: prior precision of the others [w - 1, w - 1].
      mean, variance: [k, w] to fill.
      covariance: [w, w], to which the posterior covariances are added.
      summed: whether they are.
    """
    size = information_right.shape[1]
    system, total = np.empty((size, 2 * size + 1)), np.zeros((size, size))
    inverse = system[:, size + 1 :]
    for item in range(len(information)):
        _unpack(information[item], size, system)
        system[0, 0] += first_precision[item]
        for row in range(1, size):
            for column in range(row, size):
                system[row, column] += precision[row - 1, column - 1]
        system[:, size] = information_right[item]
        _identity_from(system, size + 1)
        _eliminate(system, size, 1, True)
        mean[item] = 0.0
        variance[item] = 0.0
        for k in range(size):
            for column in range(k + 1):
                mean[item, column] += inverse[k, column] * system[k, size]
                variance[item, column] += inverse[k, column] ** 2
            if summed:
                for row in range(k + 1):
                    factor = inverse[k, row]
                    for column in range(row + 1):
                        total[row, column] += factor * inverse[k, column]
    if summed:
        for row in range(size):
            for column in range(row):
                covariance[row, column] += total[row, column]
                covariance[column, row] += total[row, column]
            covariance[row, row] += total[row, row]
