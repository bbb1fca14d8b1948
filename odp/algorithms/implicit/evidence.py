"""How much of a direction that rounds found is taste: what a fresh round confirms, beyond two kinds of noise.

Let M [h, h] be the mean of x x' over users, x a user's weighted interactions of length 1. A direction u that earlier
rounds found follows from their noise. The last round's does not: of what it releases, u' M u has one entry's noise. Two
things make that energy large where users have no tastes. The diagonal of M alone gives u the mean of its items'
variances. And u follows from the very users that are measured: as far as rounds resolve it, it turns to where they
happen to agree.

All of it is post-processing of releases.

Source: Hutchinson 1990 and Bekas, Kokiopoulou, Saad 2007 for the diagonal from random columns; Marchenko and Pastur
1967 for the spectrum of a sample without tastes. What rounds make of that spectrum is derived here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from odp.numerics.arrays import Float64Array

# Items of like mass share the estimate of their variance.
_MASS_GROUPS = 4
# Standard errors of a direction's energy that never count as taste. Chosen on invented visits with tastes and without,
# likes of MovieLens-1M and the validation part of Gowalla.
_MARGIN = 0.5
_SPECTRUM_POINTS = 400
_MOST_NOISE = 1e6


@dataclass(frozen=True)
class Products:
    """One round: ``values`` [h, d] are M ``start``, of orthonormal columns, with noise of ``noise_std`` per entry."""

    start: Float64Array
    values: Float64Array
    noise_std: float


def evidence(
    directions: Float64Array, mass: Float64Array, *, random: Products, last: Products, users: float, rounds: int
) -> Float64Array:
    """Share of each direction's energy that is taste, float64 [d] from 0 to 1.

    Args:
      directions: orthonormal columns [h, d] that the rounds before ``last`` found; the start of that is of their space.
      mass: estimated masses of the items [h].
      random: of the first round, the columns that started at random; none if there are no such columns.
      last: of the last round.
      users: number of them.
      rounds: number of factor rounds.
    """
    inside = last.start.T @ directions
    energy = np.einsum("hk,hk->k", last.start @ inside, last.values @ inside)
    floor = _variance_along(directions, mass, random)
    # Most directions of a round are no tastes: this is all that is known without random columns.
    floor = np.minimum(floor, max(float(np.median(energy)), 0.0))
    noise = min(last.noise_std / max(float(floor.mean()), 1e-300), _MOST_NOISE) ** 2 * len(mass)
    floor *= chance_energy(len(mass) / max(users, 1.0), noise=noise, rounds=rounds)
    return np.asarray(np.maximum(energy - floor - _MARGIN * last.noise_std, 0.0) / np.maximum(energy, 1e-300))


def _variance_along(directions: Float64Array, mass: Float64Array, random: Products) -> Float64Array:
    """Mean variance of the items of each direction, float64 [d]; infinite without random columns.

    What all users have in common is left out. Directions are not: they follow from what the random columns got.
    """
    popular = mass / np.linalg.norm(mass)
    start, values = (columns - np.outer(popular, popular @ columns) for columns in (random.start, random.values))
    variances = np.empty(len(mass))
    for items in np.array_split(np.argsort(-mass, kind="stable"), _MASS_GROUPS):
        length = float(np.square(start[items]).sum())
        total = float(np.einsum("hd,hd->", start[items], values[items]))
        variances[items] = max(total, 0.0) / length if length else math.inf
    return np.asarray(np.square(directions).T @ variances)


def chance_energy(ratio: float, *, noise: float, rounds: int) -> float:
    """Expected energy of a direction that rounds find where there are no tastes, over that of a random one.

    The spectrum of M is that of Marchenko and Pastur. A round multiplies by it, and the mean of s rounds adds white
    noise: so energy moves to large eigenvalues, at most to (1 + sqrt(ratio))^2, as far as that noise allows.

    Args:
      ratio: items by users.
      noise: energy of the noise of one round along a direction, over that of a random direction times M.
      rounds: their number; the last one does not choose directions.
    """
    low, high = (1.0 - math.sqrt(ratio)) ** 2, (1.0 + math.sqrt(ratio)) ** 2
    angle = (np.arange(_SPECTRUM_POINTS) + 0.5) * (math.pi / _SPECTRUM_POINTS)
    values = (low + high) / 2 + (high - low) / 2 * np.cos(angle)
    # More items than users: the other eigenvalues are 0.
    density = np.sin(angle) ** 2 / values
    density *= min(1.0, 1.0 / ratio) / density.sum()
    values, density = np.append(values, 0.0), np.append(density, max(1.0 - 1.0 / ratio, 0.0))
    energy = np.ones(len(values))
    for finished in range(1, rounds):
        energy = values**2 * energy + noise / finished
        energy /= float(density @ energy)
    return float(density @ (energy * values))
