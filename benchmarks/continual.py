"""A budget of many trainings by the matrix mechanism of DP-FTRL, beside noise that is new in each training.

Every user takes part in each of n trainings. A stream with the encoder matrix C of a sensitivity S has the noise
covariance s^2 S^2 (C'C)^-1. Independent noise of variance s^2 S^2 / d_t in training t costs the same privacy if the
d_t sum up to S^2. Write X = C'C, let no entry of X be negative, as of every matrix of ``odp.privacy.matrix``, and take
d = X 1, the row sums:

- they sum up to 1'X 1, which is S^2: the worst user adds the same vector in all trainings;
- diag(d) - X is the Laplacian of a graph, so it has no negative eigenvalue, and X^-1 - diag(d)^-1 has none either.

So whoever holds the independent releases can add noise of its own, of that difference, and has the stream's releases.
Whatever can be computed of the stream, by any filter, can be computed of the independent releases as well, at the same
lifetime ε. (For any signs and vectors of at least n numbers: the sensitivity is the root of the least sum of d with
diag(d) >= X, by duality of the semidefinite programme, and the rest is the same.) What remains to choose are the shares
d, which is what ``odp.living.Schedule`` does.

``run`` checks both claims in numbers, and measures what the noise makes of statistics that drift: sums of ratings above
3.5 of each item over the last twelve weeks, as of ``drifting_ratings``, with the noise that DPAM's round of biases has.
The server's filter is the best linear one for every noise alike; what it knows of the drift is measured on other data.

Source of the mechanism: Denisov et al. 2022, "Improved differential privacy for SGD via optimal private linear
operators on adaptive streams".
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.harness import Figure, Limit
from odp.datasets.drifting import drifting_ratings
from odp.errors import OdpError
from odp.numerics.arrays import Float64Array
from odp.pictures import style
from odp.privacy.accounting import mu_for
from odp.privacy.matrix import Participation, TreeMatrix
from odp.privacy.matrix.design import banded_toeplitz, blt, optimal_toeplitz
from odp.privacy.matrix.encoding import EncoderMatrix
from odp.trainings.schedule import FRONT_LOADED, UNIFORM, Schedule

_TRAININGS, _QUICK = 105, 20
_EPSILON, _DELTA = 20.0, 1e-6
_WINDOW = 12
_CENTRE = 3.5
#: As DPAM's preset: a user's targets together, and the part of mu^2 that their sums get.
_BOUND = 0.6 * math.sqrt(300.0)
_SHARE = 0.3 * 0.75
_MONTH = 4


@dataclass(frozen=True)
class Tracked:
    """Error of what a server knows after each training: root mean square over items, in stars of an item's mean."""

    error: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over all trainings."""
        return math.fsum(self.error) / len(self.error)


def independent_shares(matrix: Float64Array) -> Float64Array:
    """Squared sensitivities d [n] of independent noise that tells at least as much as the stream of ``matrix`` [n, n].

    They sum up to the squared sensitivity of the stream where each user is in all of its rounds. See the module.
    """
    gram = matrix.T @ matrix
    return np.asarray(gram.sum(axis=1))


def streams(trainings: int) -> dict[str, EncoderMatrix]:
    """Matrices for everybody in every training, by name."""
    allowed = Participation(rounds=trainings, most=trainings, separation=1)
    return {
        "matrix of prefix sums": optimal_toeplitz(trainings),
        f"banded matrix, {_WINDOW} bands": banded_toeplitz(trainings, min(_WINDOW, trainings)),
        "BLT for this participation": blt(allowed),
        "binary tree": TreeMatrix(trainings),
    }


def noises(trainings: int) -> tuple[dict[str, Float64Array], dict[str, float]]:
    """(covariance [n, n] of the releases' noise by rule, all at one lifetime ε; least eigenvalue of each Laplacian)."""
    allowed = Participation(rounds=trainings, most=trainings, separation=1)
    unit = (_BOUND / (mu_for(epsilon=_EPSILON, delta=_DELTA) * math.sqrt(_SHARE))) ** 2
    found: dict[str, Float64Array] = {}
    least: dict[str, float] = {}
    for rule in (UNIFORM, FRONT_LOADED):
        schedule = Schedule(
            every="7d", horizon=f"{trainings}w", lifetime_epsilon=_EPSILON, delta=_DELTA, rule=rule, least_epsilon=0.01
        )
        mus = np.array([mu_for(epsilon=one.epsilon, delta=_DELTA) for one in schedule.budgets()])
        found[rule] = np.asarray(np.diag(_BOUND**2 / (_SHARE * mus**2)), dtype=np.float64)
    for name, stream in streams(trainings).items():
        matrix = stream.matrix()
        gram = matrix.T @ matrix
        squared = stream.sensitivity(allowed) ** 2
        found[name] = np.asarray(unit * squared * np.linalg.inv(gram), dtype=np.float64)
        laplacian = np.diag(independent_shares(matrix)) - gram
        least[name] = float(np.linalg.eigvalsh(laplacian).min() / np.linalg.eigvalsh(gram).max())
    return found, least


def tracked(truth: Float64Array, prior: Float64Array, noise: Float64Array, *, ratings: float, seed: int = 1) -> Tracked:
    """What the best linear filter makes of noisy statistics.

    Args:
      truth: of each training and item, [n, items].
      prior: covariance of an item's statistics over trainings, [n, n].
      noise: covariance of the releases' noise, [n, n].
      ratings: of an item, the mean.
      seed: of the noise.
    """
    drawn = np.linalg.cholesky(noise) @ np.random.Generator(np.random.PCG64(seed)).standard_normal(truth.shape)
    released = truth + drawn
    errors = []
    for last in range(1, len(truth) + 1):
        known = slice(0, last)
        weights = np.linalg.solve(prior[known, known] + noise[known, known], prior[known, last - 1])
        off = weights @ released[known] - truth[last - 1]
        errors.append(float(np.sqrt(np.mean(off**2))) / ratings)
    return Tracked(tuple(errors))


def statistics(trainings: int, *, users: int, items: int, seed: int) -> tuple[Float64Array, float]:
    """(sums of ratings above the centre [n, items], ratings of an item) of what devices hold at each training."""
    sums, count = [], 0
    for week in drifting_ratings(weeks=trainings, n_users=users, n_items=items, new_items=0, seed=seed):
        train = week.split.train
        above = np.asarray(train.values, dtype=np.float64) - _CENTRE
        sums.append(np.bincount(train.items, weights=above, minlength=items))
        count += train.n_ratings
    return np.array(sums), count / (trainings * items)


def stationary(sums: Float64Array) -> Float64Array:
    """Covariance [n, n] of an item's statistics as a stationary process, positive semidefinite."""
    trainings, items = sums.shape
    product = sums @ sums.T / items
    lags = np.array([np.diagonal(product, lag).mean() for lag in range(trainings)])
    place = np.arange(trainings)
    values, vectors = np.linalg.eigh(lags[np.abs(place[:, None] - place)])
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)


def compared(
    covariances: Mapping[str, Float64Array], *, users: int, items: int, runs: Sequence[int] = (1, 2, 3)
) -> dict[str, Tracked]:
    """Errors by rule of ``noises``, as the mean over runs of the noise."""
    trainings = len(covariances[UNIFORM])
    truth, ratings = statistics(trainings, users=users, items=items, seed=1)
    prior = stationary(statistics(trainings, users=users, items=items, seed=2)[0])
    found = {}
    for name, noise in covariances.items():
        errors = [tracked(truth, prior, noise, ratings=ratings, seed=seed).error for seed in runs]
        found[name] = Tracked(tuple(np.mean(errors, axis=0).tolist()))
    return found


def run(quick: bool) -> list[Figure]:
    """The benchmark ``continual``. Goals are what the proof says."""
    covariances, least = noises(_QUICK if quick else _TRAININGS)
    errors = compared(covariances, users=300 if quick else 2000, items=100 if quick else 500)
    best = Limit(UNIFORM, errors[UNIFORM].mean)
    found = [Figure("error of statistics, uniform", errors[UNIFORM].mean, "stars")]
    found.append(Figure("error of statistics, front-loaded", errors[FRONT_LOADED].mean, "stars", limit=best))
    for name, eigenvalue in least.items():
        found.append(Figure(f"error of statistics, {name}", errors[name].mean, "stars", limit=best))
        found.append(Figure(f"least eigenvalue of the Laplacian, {name}", eigenvalue, "of the largest", ">= -1e-9"))
    return found


def draw(errors: Mapping[str, Tracked], path: Path) -> None:
    """Error after each training by rule, as the mean of four trainings.

    Raises:
      DataError: the file cannot be written, or its ending names no format of pictures.
    """
    drawn, (panel,) = style.figure(width=8.6, height=4.2)
    ours = [style.ours(name, place) for place, name in enumerate((UNIFORM, FRONT_LOADED))]
    others = [replace(look, name=name) for look, name in zip(style.GREYS, list(errors)[2:], strict=False)]
    for look in (*ours, *others):
        values = np.array(errors[look.name].error)
        smooth = [float(values[max(0, end - _MONTH) : end].mean()) for end in range(1, len(values) + 1)]
        style.line(panel, list(range(len(smooth))), smooth, look, text=f"{look.name}  {errors[look.name].mean:.3f}")
    panel.set_ylim(0.0, None)
    panel.set_xlabel("training")
    style.whole_numbers(panel)
    style.head(panel, "", "error of an item's mean rating (stars), mean of 4 trainings; numbers: mean of all trainings")
    style.save(drawn, path, title="error of drifting statistics under one lifetime budget")


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m benchmarks.continual PICTURE`` draws, and prints the numbers."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.continual", description="Draw the errors of each rule.")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--trainings", type=int, default=_TRAININGS)
    parser.add_argument("--users", type=int, default=2000)
    parser.add_argument("--items", type=int, default=500)
    given = parser.parse_args(arguments)
    try:
        errors = compared(noises(given.trainings)[0], users=given.users, items=given.items)
        draw(errors, given.picture)
    except OdpError as error:
        print(f"continual: {error}", file=sys.stderr)
        return 1
    for name, one in errors.items():
        first, last = np.mean(one.error[:_MONTH]), np.mean(one.error[-_MONTH:])
        print(f"{name:<32} first month {first:.4f}  last month {last:.4f}  all {one.mean:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
