"""Numbers and categories under local privacy: published error formulas beside measured errors.

Every measurement runs the mechanisms that devices use, on fixed data, many times, and compares mean squared errors with
exact formulas. A measured error agrees where it is within ``AGREES`` of its own standard errors.

Sources: Bellet, "Lecture 6: Beyond the Centralized Model of Differential Privacy" (k-RR, Laplace, 1/n against 1/n^2);
Bhowmick et al. 2018, section 4.3 (ScalarDP, lemma 4.3); Wang et al. 2017, table 2 (unary encoding).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from odp import _validate
from odp.evaluation.noise import SeededNoise
from odp.numerics.arrays import Float64Array, Int64Array
from odp.privacy.mechanisms.categorical import UnaryEncoding
from odp.privacy.mechanisms.local_means import LAPLACE_STEPS, LaplaceMean
from odp.privacy.mechanisms.random_source import RandomSource
from odp.privacy.mechanisms.randomized_response import RandomizedResponse
from odp.privacy.mechanisms.scalar import ScalarDP, best_levels, published_levels

FREQUENCIES = (0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.1, 0.1, 0.2, 0.3)
"""Of the ten categories; the others, where there are more, are empty."""
AGREES = 5.0
"""Standard errors. A run of 1,000 repeats compares some 80 numbers: a right formula fails in one of 5,000 seeds."""
EPSILONS = (1.0, 2.0, 4.0, 8.0, 10.0)
PEOPLE = (100, 1000, 10_000, 100_000)
_HISTOGRAMS = ((2, 1.0), (10, 1.0), (10, 2.0), (10, 4.0), (100, 4.0))
_SCALAR_DRAWS = 400_000
_PEOPLE_OF_HISTOGRAMS = 2000
_MEAN_EPSILON = 1.0
_BATCH = 1 << 21  # answers that are held at once


@dataclass(frozen=True)
class Frequency:
    """One estimated frequency; errors are mean squared errors times n.

    ``error_std`` is the standard deviation of ``measured``. ``printed`` is what was published.
    """

    mechanism: str
    choices: int
    epsilon: float
    frequency: float
    measured: float
    error_std: float
    exact: float
    printed: float

    @property
    def agrees(self) -> bool:
        """Whether the exact formula is that of the measured error."""
        return abs(self.measured - self.exact) <= AGREES * self.error_std

    @property
    def printed_agrees(self) -> bool:
        """Whether the published formula is."""
        return abs(self.measured - self.printed) <= AGREES * self.error_std


@dataclass(frozen=True)
class Scalar:
    """ScalarDP and Laplace noise on [0, 1], at the value where the error of ScalarDP is largest; mean squared errors.

    ``bound`` is the largest ratio of the exact error to the published bound, over all values; ``best`` is the largest
    error with the best number of levels.
    """

    epsilon: float
    levels: int
    measured: float
    error_std: float
    exact: float
    bound: float
    best_levels: int
    best: float
    laplace_measured: float
    laplace_error_std: float
    laplace: float

    @property
    def agrees(self) -> bool:
        """Whether both measured errors are the exact ones."""
        return (
            abs(self.measured - self.exact) <= AGREES * self.error_std
            and abs(self.laplace_measured - self.laplace) <= AGREES * self.laplace_error_std
        )


@dataclass(frozen=True)
class Mean:
    """Mean squared errors of a mean of n numbers within [0, 1] at epsilon = 1."""

    people: int
    local_laplace: float
    local_scalar: float
    central_laplace: float


@dataclass(frozen=True)
class Result:
    """One run."""

    seed: int
    repeats: int
    frequencies: tuple[Frequency, ...]
    scalars: tuple[Scalar, ...]
    means: tuple[Mean, ...]
    seconds: float

    def slope(self, name: str) -> float:
        """d log error / d log n of a column of ``means``, by least squares."""
        errors = [math.log(getattr(row, name)) for row in self.means]
        return float(np.polyfit(np.log([row.people for row in self.means]), errors, 1)[0])

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {
            "slopes": {name: self.slope(name) for name in ("local_laplace", "local_scalar", "central_laplace")}
        }


def reproduce(*, seed: int = 1, repeats: int = 1000) -> Result:
    """All measurements; some 20 seconds at 1,000 repeats.

    Args:
      seed: of all random numbers.
      repeats: how often each histogram and mean is estimated, from 50 to 10,000.

    Raises:
      ConfigurationError: an argument is out of range.
    """
    _validate.integer(low=0, high=2**62, seed=seed)
    _validate.integer(low=50, high=10_000, repeats=repeats)
    began, source = time.perf_counter(), RandomSource(SeededNoise(seed))
    frequencies = [
        row
        for choices, epsilon in _HISTOGRAMS
        for row in histogram_errors(choices, epsilon, repeats=repeats, source=source)
    ]
    scalars = [scalar_errors(epsilon, source=source) for epsilon in EPSILONS]
    means = [mean_errors(people, repeats=repeats, source=source) for people in PEOPLE]
    return Result(seed, repeats, tuple(frequencies), tuple(scalars), tuple(means), time.perf_counter() - began)


def histogram_errors(
    choices: int, epsilon: float, *, repeats: int, source: RandomSource, people: int = _PEOPLE_OF_HISTOGRAMS
) -> list[Frequency]:
    """Errors of k-RR and, from ten choices on, of optimized unary encoding, at each distinct frequency."""
    shares = np.zeros(choices)
    shares[: len(FREQUENCIES)] = FREQUENCIES if choices >= len(FREQUENCIES) else (0.7, 0.3)
    truths = np.repeat(np.arange(choices), np.rint(shares * people).astype(np.int64))
    odds = math.exp(epsilon)
    response = RandomizedResponse(choices=choices, asked=epsilon)
    printed = (choices - 2 + odds) / (odds - 1) ** 2

    def of_response() -> Int64Array:
        return response.counts(response.randomize(truths, source=source))

    frequencies = _errors_of("k-RR", response, of_response, len(truths), shares, repeats, printed)
    if choices >= len(FREQUENCIES):
        unary = UnaryEncoding(choices=choices, asked=epsilon)

        def of_unary() -> Int64Array:
            return unary.counts(unary.randomize(truths, source=source))

        frequencies += _errors_of("unary", unary, of_unary, len(truths), shares, repeats, 4 * odds / (odds - 1) ** 2)
    return frequencies


def scalar_errors(epsilon: float, *, source: RandomSource, draws: int = _SCALAR_DRAWS) -> Scalar:
    """Errors of ScalarDP with the published number of levels, and of Laplace noise."""
    levels, laplace = published_levels(epsilon), LaplaceMean(asked=epsilon, high=1.0)
    mechanism = ScalarDP(asked=epsilon, high=1.0, levels=levels)
    values = np.linspace(0.0, 1.0, 10_001)
    exact = mechanism.variance(values)
    worst = float(values[exact.argmax()])
    inputs = np.full(draws, worst)
    squares = (mechanism.decode(mechanism.randomize(inputs, source=source)) - worst) ** 2
    others = (laplace.decode(laplace.randomize(inputs, source=source)) - worst) ** 2
    best = ScalarDP(asked=epsilon, high=1.0)
    return Scalar(
        epsilon=epsilon,
        levels=levels,
        measured=float(squares.mean()),
        error_std=float(squares.std()) / math.sqrt(draws),
        exact=float(exact.max()),
        bound=float((exact / published_bound(epsilon, values)).max()),
        best_levels=best_levels(epsilon),
        best=best.largest_variance,
        laplace_measured=float(others.mean()),
        laplace_error_std=float(others.std()) / math.sqrt(draws),
        laplace=laplace.largest_variance,
    )


def published_bound(epsilon: float, values: Float64Array) -> Float64Array:
    """Lemma 4.3 on [0, 1]: at least the variance of ScalarDP with the published number of levels at ``values``."""
    odds, k = math.exp(epsilon), published_levels(epsilon)
    rest = 1 / (4 * k**2)
    spread = (2 * k + 1) * (odds + k) / (6 * k * (odds - 1))
    return np.asarray((k + 1) / (odds - 1) * (values**2 + rest + spread) + rest)


def mean_errors(people: int, *, repeats: int, source: RandomSource) -> Mean:
    """Errors of a mean of fixed numbers: noise of each person, or noise of the sum alone."""
    values = np.linspace(0.05, 0.65, people)
    laplace = LaplaceMean(asked=_MEAN_EPSILON, high=1.0)
    scalar = ScalarDP(asked=_MEAN_EPSILON, high=1.0)
    rows = max(1, _BATCH // people)
    blocks = [min(rows, repeats - start) for start in range(0, repeats, rows)]

    def of(mechanism: LaplaceMean | ScalarDP) -> float:
        total = 0.0
        for count in blocks:
            answers = mechanism.randomize(np.tile(values, count), source=source)
            means = mechanism.decode(answers).reshape(count, people).mean(axis=1)
            total += float(((means - values.mean()) ** 2).sum())
        return total / repeats

    # A sum of whole steps, of which one person moves at most LAPLACE_STEPS: the noise is that of one person.
    noise = source.discrete_laplace(laplace.scale, repeats) / LAPLACE_STEPS / people
    return Mean(people, of(laplace), of(scalar), float((noise**2).mean()))


def _errors_of(
    name: str,
    mechanism: RandomizedResponse | UnaryEncoding,
    counts: Callable[[], Int64Array],
    n: int,
    shares: Float64Array,
    repeats: int,
    printed: float,
) -> list[Frequency]:
    """Mean squared errors times ``n`` over ``repeats`` drawn counts, averaged over the categories of one frequency."""
    estimates = np.stack([mechanism.estimate(counts(), n) for _ in range(repeats)])
    squares = n * (estimates - shares) ** 2
    exact = n * mechanism.variance(shares, n)
    frequencies = []
    for share in np.unique(shares):
        chosen = shares == share
        each = squares[:, chosen].mean(axis=1)
        frequencies.append(
            Frequency(
                mechanism=name,
                choices=mechanism.choices,
                epsilon=mechanism.asked,
                frequency=float(share),
                measured=float(each.mean()),
                error_std=float(each.std()) / math.sqrt(repeats),
                exact=float(exact[chosen].mean()),
                printed=printed,
            )
        )
    return frequencies
