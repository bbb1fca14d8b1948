"""Which encoder matrix to use: closed forms, and matrices that are optimised for a number of rounds.

The worst error std of a prefix sum, over the noise that mu = 1 needs, is ``sensitivity * max norm of a row of A C^-1``;
the root mean square takes the mean of squared norms instead. Public numbers decide everything here, so it costs no
privacy, and a task definition holds the result.

====================  =================================================  ==========================================
matrix                for                                                found by
====================  =================================================  ==========================================
``optimal_toeplitz``  one participation; state as long as the stream     closed form
``banded_toeplitz``   separation >= bands                                L-BFGS, O(rounds bands) per step
``blt``               any participation, long streams, few buffers       L-BFGS from a rational approximation
``TreeMatrix``        return times that nobody knows                     nothing to find
====================  =================================================  ==========================================

Worst and root-mean-square error of 2,000 rounds, at most 6 per user, 313 or more apart, and what an encoder keeps:

=============================  =====  =====  ====================
matrix                         worst  mean   vectors kept
=============================  =====  =====  ====================
tree                           25.9   19.1   11 of 64 bits
banded Toeplitz, 31 bands      21.7   16.2   30 of 32 bits
banded Toeplitz, 313 bands     10.5   9.0    312 of 32 bits
optimal Toeplitz               11.5   11.0   1,999 of 32 bits
BLT, 2 buffers                 10.9   9.4    2 of 64 bits
BLT, 4 buffers                 10.8   9.7    4 of 64 bits
=============================  =====  =====  ====================

So a banded matrix has as many bands as the separation, and where those are too many to keep, a BLT is next to it.

Sources: Fichtenberger, Henzinger, Upadhyay 2023 (closed form); Dvijotham et al. 2024 (rational approximations of
1 / sqrt(1 - x)).
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import numpy as np

from odp import _validate
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float64Array
from odp.privacy.matrix.banded import DEFAULT_BITS, BandedMatrix
from odp.privacy.matrix.blt import MOST_BUFFERS, BufferedMatrix, inverse_coefficients, toeplitz_sensitivity
from odp.privacy.matrix.sensitivity import MOST_ROUNDS, Participation

_MOST_STEPS = 500
_TOLERANCE = 1e-12
_MOST_BANDS = 16  # vectors of 32 bits: as much state as that of a BLT of 8 buffers


class Error(enum.Enum):
    """What is made small: the worst prefix sum, or the mean over all of them (of squares)."""

    WORST = "worst"
    MEAN = "mean"


def recommended(allowed: Participation, *, error: Error = Error.WORST) -> BandedMatrix | BufferedMatrix:
    """The matrix to take unless there is a reason: banded where the bands are few, else a BLT, by the table above."""
    if allowed.separation <= _MOST_BANDS:
        return banded_toeplitz(allowed.rounds, allowed.separation, error=error)
    return blt(allowed, error=error)


def optimal_coefficients(rounds: int) -> Float64Array:
    """``binom(2i, i) / 4^i`` for i below ``rounds``, float64 [rounds]: the power series of 1 / sqrt(1 - x).

    Squared sensitivity of one participation and largest squared row norm of A C^-1 are both the sum of their squares.
    """
    _validate.integer(low=1, high=MOST_ROUNDS, rounds=rounds)
    places = np.arange(1, rounds, dtype=np.float64)
    return np.concatenate(([1.0], np.cumprod((2.0 * places - 1.0) / (2.0 * places))))


def optimal_toeplitz(rounds: int, *, bits: int = DEFAULT_BITS) -> BandedMatrix:
    """The Toeplitz matrix of ``optimal_coefficients``, as many bands as rounds."""
    return BandedMatrix.toeplitz(optimal_coefficients(rounds), rounds=rounds, bits=bits)


def banded_toeplitz(rounds: int, bands: int, *, error: Error = Error.WORST, bits: int = DEFAULT_BITS) -> BandedMatrix:
    """The Toeplitz matrix with ``bands`` falling diagonals of least error, for a separation of ``bands`` or more.

    Raises ConfigurationError for more bands than rounds.
    """
    _validate.integer(low=1, high=MOST_ROUNDS, rounds=rounds)
    _validate.integer(low=1, high=rounds, bands=bands)
    start = optimal_coefficients(bands)
    if bands == 1:
        return BandedMatrix.toeplitz(start, rounds=rounds, bits=bits)
    weights = np.ones(rounds) if error is Error.WORST else 1.0 - np.arange(rounds) / rounds

    def cost(tail: Float64Array) -> tuple[float, Float64Array]:
        return _toeplitz_cost(np.concatenate(([1.0], tail)), weights)

    coefficients = _least(cost, start[1:], bounds=[(0.0, 1.0)] * (bands - 1), tolerance=_TOLERANCE)
    # The closed form of the sensitivity is for falling coefficients, which these are but for the last digits.
    return BandedMatrix.toeplitz(np.minimum.accumulate(np.concatenate(([1.0], coefficients))), rounds=rounds, bits=bits)


def _toeplitz_cost(coefficients: Float64Array, weights: Float64Array) -> tuple[float, Float64Array]:
    """Logarithm of (sum of squared coefficients) times (weighted sum of squared coefficients of A C^-1); its gradient.

    With the series e = 1 / c and b = e / (1 - x): the derivative of b by c_i is -x^i b e, so the gradient of a sum of
    w b^2 is a correlation of b with the sums 2 w b, filtered by e in reversed time.
    """
    from scipy.signal import lfilter

    rounds, bands = len(weights), len(coefficients)
    series = lfilter([1.0], coefficients, np.ones(rounds))
    weighted = weights * series
    adjoint = lfilter([1.0], coefficients, weighted[::-1])[::-1]
    squares, error = float(coefficients @ coefficients), float(weighted @ series)
    by_error = np.array([-2.0 * float(adjoint[i:] @ series[: rounds - i]) for i in range(1, bands)])
    return float(np.log(squares) + np.log(error)), 2.0 * coefficients[1:] / squares + by_error / error


def blt(allowed: Participation, *, buffers: int = 4, error: Error = Error.WORST) -> BufferedMatrix:
    """The BLT of least error under ``allowed``, from a rational approximation of 1 / sqrt(1 - x).

    Raises ConfigurationError for a number of buffers out of range.
    """
    _validate.integer(low=1, high=MOST_BUFFERS, buffers=buffers)
    rounds = allowed.rounds
    scales, decays = rational_approximation(rounds, buffers)
    if rounds == 1:
        return BufferedMatrix(scales.tolist(), decays.tolist(), rounds)
    weights = np.ones(rounds) if error is Error.WORST else 1.0 - np.arange(rounds) / rounds
    powers = np.arange(rounds - 1)

    def parts(point: Float64Array) -> tuple[Float64Array, Float64Array]:
        # Scales of at most 1 together, and decays that neither reach 1 nor outlast the stream by far.
        raw = np.exp(point[:buffers])
        slowness = np.exp(point[buffers:])
        return raw / max(1.0, float(raw.sum())), 1.0 - (slowness / (1.0 + slowness)).clip(0.1 / rounds, 1.0)

    def cost(point: Float64Array) -> float:
        scales, decays = parts(point)
        column = np.concatenate(([1.0], (decays[None, :] ** powers[:, None]) @ scales))
        prefix = np.cumsum(inverse_coefficients(scales, decays, rounds))
        moved = toeplitz_sensitivity(column, allowed)
        return 2.0 * float(np.log(moved)) + float(np.log(weights @ np.square(prefix)))

    slow = 1.0 - decays
    solution = _least_without_gradient(cost, np.concatenate((np.log(scales), np.log(slow / (1.0 - slow)))))
    scales, decays = parts(solution)
    return BufferedMatrix(scales.tolist(), decays.tolist(), rounds)


def rational_approximation(rounds: int, buffers: int) -> tuple[Float64Array, Float64Array]:
    """(scales, decays), float64 [buffers] each, whose BLT is near ``optimal_coefficients(rounds)``.

    Those are moments: ``c_i = integral over u from 0 to 1 of u^(i-1) w(u) du``, ``w(u) = sqrt(u / (1 - u)) / pi``. With
    u = 1 - x^2, cut into pieces of equal ratio of 1 - u, each piece becomes its mass at its mean.
    """
    edges = np.concatenate(([0.0], np.geomspace(min(0.5, 1.0 / rounds), 1.0, buffers)))  # of 1 - u
    middle, weight = np.polynomial.legendre.leggauss(64)
    scales, decays = np.zeros(buffers), np.zeros(buffers)
    for place in range(buffers):
        low, high = np.arcsin(np.sqrt(edges[place : place + 2]))  # 1 - u = sin^2: w du = 2 cos^2 / pi
        angle = 0.5 * (high - low) * middle + 0.5 * (high + low)
        mass = 0.5 * (high - low) * weight * 2.0 * np.cos(angle) ** 2 / np.pi
        scales[place] = mass.sum()
        decays[place] = (mass @ np.cos(angle) ** 2) / mass.sum()
    return scales, decays.clip(0.0, 1.0 - 0.1 / rounds)


def _least(
    cost: Callable[[Float64Array], tuple[float, Float64Array]],
    start: Float64Array,
    *,
    bounds: list[tuple[float, float]] | None,
    tolerance: float,
) -> Float64Array:
    from scipy.optimize import minimize

    options = {"maxiter": _MOST_STEPS, "maxfun": 4 * _MOST_STEPS, "ftol": tolerance}
    return _finite(minimize(cost, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x)


def _least_without_gradient(cost: Callable[[Float64Array], float], start: Float64Array) -> Float64Array:
    from scipy.optimize import minimize

    solution = minimize(cost, start, method="L-BFGS-B", options={"maxiter": _MOST_STEPS, "maxfun": 40 * _MOST_STEPS})
    return _finite(solution.x)


def _finite(point: Float64Array) -> Float64Array:
    if not np.isfinite(point).all():
        raise ConfigurationError("No encoder matrix was found for these rounds: take another number of bands")
    return point
