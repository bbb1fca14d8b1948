"""The epsilon of every local mechanism, measured from outside: its worst event under two inputs.

10^5 samples per side or more: at epsilon = 8 the rarer event has a probability of 1 in 6,000. The lower confidence
bound (Clopper-Pearson, 1e-4 for either side) has to be at most the stated epsilon, which fails for a right mechanism in
2e-4 of seeds at most, and within 5 % of it, which a mechanism with too much noise fails. Seeds are fixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
from scipy.stats import beta

from odp.evaluation.noise import SeededNoise
from odp.privacy.mechanisms import (
    GaussianMean,
    GridScalar,
    LaplaceMean,
    RandomizedResponse,
    RandomSource,
    ScalarDP,
    ScalarRelDP,
    UnaryEncoding,
)

LEVEL = 1e-4
SAMPLES = {1.0: 200_000, 2.0: 100_000, 4.0: 100_000, 8.0: 1_000_000}
#: Whether the worst event happened, under either input, in so many samples.
Events = Callable[[RandomSource, int], tuple[np.ndarray, np.ndarray]]
EPSILONS = (1.0, 2.0, 4.0, 8.0)


def lower_bound(hits: int, others: int, samples: int) -> float:
    """Of epsilon, from an event that happened so often under either input."""
    low = beta.ppf(LEVEL, hits, samples - hits + 1)
    high = beta.ppf(1 - LEVEL, others + 1, samples - others)
    return math.log(low / high)


def of_choices(choices: int) -> Callable[[float], tuple[float, Events]]:
    def audited(epsilon: float) -> tuple[float, Events]:
        mechanism = RandomizedResponse(choices=choices, asked=epsilon)

        def events(source: RandomSource, n: int) -> tuple[np.ndarray, np.ndarray]:
            same, other = (mechanism.randomize(np.full(n, truth), source=source) == 1 for truth in (1, 0))
            return same, other

        return mechanism.epsilon, events

    return audited


def of_unary(kind: Literal["optimized", "symmetric"]) -> Callable[[float], tuple[float, Events]]:
    def audited(epsilon: float) -> tuple[float, Events]:
        mechanism = UnaryEncoding(choices=2, asked=epsilon, kind=kind)

        def events(source: RandomSource, n: int) -> tuple[np.ndarray, np.ndarray]:
            same, other = (mechanism.randomize(np.full(n, truth), source=source)[:, 0] == 1 for truth in (0, 1))
            return same, other

        return mechanism.epsilon, events

    return audited


def of_scalar(mechanism: ScalarDP | ScalarRelDP | GridScalar) -> tuple[float, Events]:
    ends = float(mechanism.points[-1]), float(mechanism.points[0])

    def events(source: RandomSource, n: int) -> tuple[np.ndarray, np.ndarray]:
        top = len(mechanism.points) - 1
        same, other = (mechanism.randomize(np.full(n, value), source=source) == top for value in ends)
        return same, other

    return mechanism.epsilon, events


def of_laplace(epsilon: float) -> tuple[float, Events]:
    mechanism = LaplaceMean(asked=epsilon, low=-1.0, high=1.0)

    def events(source: RandomSource, n: int) -> tuple[np.ndarray, np.ndarray]:
        same, other = (mechanism.randomize(np.full(n, x), source=source) >= mechanism.steps for x in (1.0, -1.0))
        return same, other

    return mechanism.epsilon, events


MECHANISMS: dict[str, Callable[[float], tuple[float, Events]]] = {
    "binary": of_choices(2),
    "k-RR": of_choices(5),
    "unary": of_unary("optimized"),
    "rappor": of_unary("symmetric"),
    "ScalarDP": lambda epsilon: of_scalar(ScalarDP(asked=epsilon, high=2.0)),
    "ScalarDP beyond its range": lambda epsilon: of_scalar(Beyond(asked=epsilon, high=2.0, clip=True)),
    "ScalarRelDP": lambda epsilon: of_scalar(ScalarRelDP(asked=epsilon, high=2.0, ratio=1.5, levels=4)),
    "grid": lambda epsilon: of_scalar(GridScalar(asked=epsilon, grid=(-1.0, 0.0, 5.0))),
    "laplace": of_laplace,
}


class Beyond(ScalarDP):
    """Gets what a broken or hostile app may give: ten times the largest value, and no number at all."""

    def randomize(self, values: np.ndarray, *, source: RandomSource) -> np.ndarray:
        return super().randomize(np.where(values > 0, 10 * values, math.nan), source=source)


@pytest.mark.parametrize("epsilon", SAMPLES)
@pytest.mark.parametrize("name", MECHANISMS)
def test_the_worst_event_has_the_stated_epsilon_and_no_more(name: str, epsilon: float) -> None:
    stated, events = MECHANISMS[name](epsilon)
    assert stated <= epsilon
    samples = SAMPLES[epsilon]
    hits, others = (int(event.sum()) for event in events(RandomSource(SeededNoise(round(epsilon))), samples))
    assert 0.95 * stated <= lower_bound(hits, others, samples) <= stated


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0])
def test_the_gaussian_has_the_stated_delta_at_its_worst_event(epsilon: float) -> None:
    """Above where the loss is epsilon. Within 4.9 standard deviations: false alarms 1e-6 each."""
    mechanism, samples = GaussianMean(asked=epsilon, delta=0.05, high=1.0), 400_000
    edge = mechanism.steps / 2 + epsilon * mechanism.std**2 / mechanism.steps
    source, odds = RandomSource(SeededNoise(3)), math.exp(epsilon)
    same, other = (
        float((mechanism.randomize(np.full(samples, value), source=source) > edge).mean()) for value in (1.0, 0.0)
    )
    deviation = math.sqrt((same * (1 - same) + odds**2 * other * (1 - other)) / samples)
    assert deviation < 0.06 * mechanism.delta
    assert abs(same - odds * other - mechanism.delta) < 4.9 * deviation


def test_the_audit_finds_a_coin_of_another_epsilon() -> None:
    _, events = MECHANISMS["k-RR"](2.2)
    hits, others = (int(event.sum()) for event in events(RandomSource(SeededNoise(1)), 100_000))
    assert lower_bound(hits, others, 100_000) > 2.1
