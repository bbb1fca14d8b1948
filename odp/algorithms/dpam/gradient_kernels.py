"""The device's part of a gradient step in machine code, for many users: the arithmetic of ``userside.py``.

A user's result depends on nothing but the user's own entries, and sums are of integers, so results do not depend on
blocks or threads. Import needs numba; nothing imports this module at the top. Releases the interpreter lock.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from odp.algorithms.dpam.gradient_codec import MOMENTS_CLIP, UNITS
from odp.algorithms.dpam.gradient_userside import MOST_RESIDUAL, MOST_SQUARE
from odp.algorithms.dpam.kernels import CONTRIBUTED, UNUSED
from odp.algorithms.dpam.terms import DERIVED_FACTORS
from odp.numerics import tiles

_FUSED = {"contract", "nsz"}
_TINY = 1e-300


@numba.njit(nogil=True, cache=True, fastmath=_FUSED)
def add_gradients(
    offsets: Any, items: Any, values: Any, use: Any, model: Any, limits: Any, gradients: Any, moments: Any
) -> None:  # fmt: skip
    """Adds users' gradients and moments, in integer units.

    Args:
      offsets: int64 [n + 1], from the first of ``items``.
      items, values, use: entries of the users; those UNUSED take no part, and only those CONTRIBUTED are sent.
      model: (design float64 [m, 1 + rank], base [m], trust [m], trusted covariances of factors, packed, [m, f],
        ridges [1 + rank]); the base in values, all else in units of a rating's standard deviation.
      limits: (that standard deviation, released residual variance, row clip, gradient clip, unit of second moments).
      gradients: int64 [m, learned], added to.
      moments: int64 [p], added to.
    """
    design, base, trust, covariances, ridges = model
    unit, released, row_clip, clip, second_unit = limits
    width, learned = design.shape[1], gradients.shape[1]
    factors = learned - 1
    height = tiles.even(width + 1)
    points, weights = tiles.columns_of(height), np.empty(tiles.CHUNK)
    system, normal = np.empty((height, height)), np.empty((width, width))
    covariance_sums, row, moment = np.empty(covariances.shape[1]), np.empty(factors), np.empty(len(moments))
    for user in range(len(offsets) - 1):
        system[:] = 0.0
        covariance_sums[:] = 0.0
        filled, sent = 0, 0
        for entry in range(offsets[user], offsets[user + 1]):
            if use[entry] == UNUSED:
                continue
            item = items[entry]
            sent += use[entry] == CONTRIBUTED
            for column in range(width):
                points[column, filled] = design[item, column]
            points[width, filled], weights[filled] = (values[entry] - base[item]) / unit, trust[item]
            filled += 1
            for pair in range(len(covariance_sums)):
                covariance_sums[pair] += covariances[item, pair]
            if filled == tiles.CHUNK:
                tiles.add_outer(points, weights, system, filled)
                filled = 0
        if sent == 0:
            continue
        tiles.add_outer(points, weights, system, filled)
        for first in range(width):
            for second in range(first, width):
                normal[first, second] = system[first, second]
        pair = 0
        for first in range(width - factors, width):
            for second in range(first, width):
                normal[first, second] += covariance_sums[pair]
                pair += 1
        for first in range(width):
            normal[first, first] += ridges[first]
            for second in range(first):
                normal[first, second] = normal[second, first]
        covariance = np.linalg.inv(normal)
        solution = covariance @ np.ascontiguousarray(system[:width, width])
        covariance *= released
        norm = 0.0
        for factor in range(factors):
            row[factor] = solution[width - factors + factor]
            norm += row[factor] * row[factor]
        row *= min(1.0, row_clip / max(np.sqrt(norm), _TINY))

        vectors = np.empty((sent, learned))
        squares, errors, place = 0.0, 0.0, 0
        for entry in range(offsets[user], offsets[user + 1]):
            if use[entry] != CONTRIBUTED:
                continue
            item = items[entry]
            error = (values[entry] - base[item]) / unit
            for column in range(width):
                error -= design[item, column] * solution[column]
            vectors[place, 0] = error
            errors += error * error
            squares += error * error
            for factor in range(factors):
                correction = 0.0
                for other in range(factors):
                    correction += (
                        covariance[width - factors + factor, width - factors + other]
                        * (design[item, width - factors + other])
                    )
                number = error * row[factor] - correction
                vectors[place, 1 + factor] = number
                squares += number * number
            place += 1
        norm = np.sqrt(squares)
        scale = UNITS / max(norm, clip)
        place = 0
        for entry in range(offsets[user], offsets[user + 1]):
            if use[entry] != CONTRIBUTED:
                continue
            for column in range(learned):
                gradients[items[entry], column] += np.int64(np.trunc(vectors[place, column] * scale))
            place += 1

        shortened = min(1.0, clip / max(norm, _TINY)) * np.sqrt(sent) / second_unit
        pair = 0
        for first in range(learned):
            for second in range(first, learned):
                left = 1.0 if first == 0 else row[first - 1]
                right = 1.0 if second == 0 else row[second - 1]
                product = left * right
                if first > 0:
                    product += covariance[width - learned + first, width - learned + second]
                moment[pair] = shortened * product
                pair += 1
        moment[pair] = min(errors / max(sent - 1, 1), MOST_RESIDUAL)
        for derived in range(DERIVED_FACTORS):
            square = solution[1 + derived] ** 2 + covariance[1 + derived, 1 + derived]
            moment[pair + 1 + derived] = 0.5 * min(square, MOST_SQUARE)
        norm = np.sqrt((moment * moment).sum())
        scale = UNITS / max(norm, MOMENTS_CLIP)
        for number in range(len(moment)):
            moments[number] += np.int64(np.trunc(moment[number] * scale))
