"""Intervals hold at their confidence, in the regimes of much and of little noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from algorithms.model_evaluation import worlds
from algorithms.model_evaluation.worlds import LOGISTIC, evaluation, people, vector
from hypothesis import given, settings, strategies as st

import odp
from odp.algorithms.estimates import Estimate
from odp.algorithms.model_evaluation.curves import Histograms
from odp.algorithms.model_evaluation.results import EvaluationResults
from odp.numerics.arrays import Float64Array

DRAWS = 1000
#: Of 1,000 draws at a confidence of 90%, fewer hold by chance once in 10^6 runs: 4.75 deviations of sqrt(90).
LEAST = DRAWS * 0.9 - 4.75 * math.sqrt(DRAWS * 0.09)


def share_of(distribution: Float64Array, users: float) -> Float64Array:
    return distribution / distribution.sum() * users


def shapes(bins: int) -> dict[str, tuple[Float64Array, Float64Array]]:
    """With the label and without: overlapping, far apart, and in few bins."""
    middles = (np.arange(bins) + 0.5) / bins
    narrow = np.zeros(bins)
    narrow[:2] = 1.0
    return {
        "overlapping": (middles, 1.0 - middles),
        "apart": (middles**8, (1.0 - middles) ** 8),
        "few bins": (narrow + 1e-9, narrow[::-1] + 1e-9),
    }


def holds(found: Estimate, truth: float) -> bool:
    return found.low - 1e-12 <= truth <= found.high + 1e-12


@pytest.mark.parametrize("shape", shapes(20))
@pytest.mark.parametrize("users", [30.0, 300.0, 10_000.0])
@pytest.mark.slow
def test_intervals_of_areas_and_of_calibration_hold(shape: str, users: float) -> None:
    labelled, others = shapes(20)[shape]
    true = Histograms(share_of(labelled, 0.3 * users), share_of(others, 0.7 * users), 0.0)
    area, calibration = true.auc(0.9).value, true.calibration(users, 0.9)
    generator, std = np.random.default_rng(11), 8.0
    held, error_held = 0, 0
    group_held = np.zeros(len(calibration.groups), dtype=int)
    for _ in range(DRAWS):
        noise = generator.normal(size=(2, 20)) * std
        noisy = Histograms(true.labelled + noise[0], true.others + noise[1], std)
        held += holds(noisy.auc(0.9), area)
        found = noisy.calibration(users + generator.normal() * std, 0.9)
        error_held += holds(found.error, calibration.error.value)
        group_held += [
            holds(one.observed, exact.observed.value)
            for one, exact in zip(found.groups, calibration.groups, strict=True)
        ]
    assert held >= LEAST
    assert error_held >= LEAST
    assert (group_held >= LEAST).all()


def test_the_interval_of_an_area_is_narrow_where_users_are_many() -> None:
    labelled, others = shapes(20)["overlapping"]
    found = Histograms(share_of(labelled, 5e4), share_of(others, 5e4), 8.0).auc(0.95)
    assert found.high - found.low < 0.005


@settings(max_examples=200, deadline=None)
@given(
    labelled=st.lists(st.floats(-50, 50), min_size=4, max_size=4),
    others=st.lists(st.floats(-50, 50), min_size=4, max_size=4),
    std=st.floats(0, 30),
)
def test_areas_and_curves_of_any_noise_are_areas_and_monotone(
    labelled: list[float], others: list[float], std: float
) -> None:
    found = Histograms(np.array(labelled), np.array(others), std)
    area = found.auc(0.95)
    assert 0.0 <= area.low <= area.value <= area.high <= 1.0
    for axis in found.curve():
        assert axis[0] == 0.0
        assert axis[-1] == pytest.approx(1.0)
        assert (np.diff(axis) >= 0).all()
    error = found.calibration(10.0, 0.95).error
    assert 0.0 <= error.low <= error.value <= error.high <= 1.0


def exact_sums(task: odp.Evaluation, users: odp.data.UsersExamples, *, seed: int) -> EvaluationResults:
    exact = odp.simulate(task, users, seed=seed, noise=False).results
    assert isinstance(exact, EvaluationResults)
    return exact


def with_noise(exact: EvaluationResults, *, seed: int, std: float) -> EvaluationResults:
    """The answers to an evaluation with noise of ``std``, in users."""
    noise = np.random.default_rng(seed).normal(size=len(exact.sums)) * std
    return EvaluationResults(exact.terms, exact.sums + noise, std, exact.contributions, 1.0, 1e-6)


def test_intervals_of_metrics_hold() -> None:
    task, users = evaluation(300), people(300)
    exact = odp.simulate(task, users, noise=False).results
    assert isinstance(exact, EvaluationResults)
    truth = {name: one.value for name, one in exact.items()}
    generator, std = np.random.default_rng(5), 12.0
    held = dict.fromkeys(truth, 0)
    for _ in range(DRAWS):
        sums = exact.sums + generator.normal(size=len(exact.sums)) * std
        found = EvaluationResults(exact.terms, sums, std, 300, 1.0, 1e-6).models(0.9)["model"].metrics
        for name in truth:
            held[name] += holds(found[name], truth[name])
    assert min(held.values()) >= LEAST


@pytest.fixture(scope="module")
def drawn() -> tuple[dict[str, float], list[EvaluationResults]]:
    """The differences over 20,000 users, and 300 evaluations without noise, each of 200 of them."""
    everybody = people(20_000, seed=8)
    first, second = vector(LOGISTIC), vector(LOGISTIC, seed=9)
    large = {"users": 20_000, "privacy": odp.UserLevelDP(epsilon=4, delta=1e-6)}
    whole = [
        odp.simulate(evaluation(**large, of=one), everybody, noise=False).results  # type: ignore[arg-type]
        for one in (first, second)
    ]
    truth = {name: whole[1][name].value - whole[0][name].value for name in ("loss", "accuracy", "auc")}  # type: ignore[index]
    task, generator = evaluation(200, against=second), np.random.default_rng(4)
    users = (everybody.select_users(generator.integers(0, 20_000, 200)) for _ in range(300))
    return truth, [exact_sums(task, some, seed=draw) for draw, some in enumerate(users)]


@pytest.mark.parametrize("std", [0.0, 6.0])
@pytest.mark.slow
def test_intervals_of_differences_hold_for_the_population_that_users_come_from(
    std: float, drawn: tuple[dict[str, float], list[EvaluationResults]]
) -> None:
    """Of 300 at 90%, fewer than 245 hold by chance once in 10^6 runs."""
    truth, evaluations = drawn
    held = dict.fromkeys(truth, 0)
    for draw, exact in enumerate(evaluations):
        found = with_noise(exact, seed=draw, std=std).differences(0.9)
        for name in truth:
            held[name] += holds(found[name], truth[name])
    assert min(held.values()) >= 245


def test_what_noise_hides_has_the_whole_range_as_its_interval() -> None:
    for changes in ({}, {"against": vector(LOGISTIC, seed=9)}, {"personal": odp.PersonalTraining()}):
        terms = worlds.terms_of(evaluation(**changes))  # type: ignore[arg-type]
        found = EvaluationResults(terms, np.zeros(terms.layout.size), 5.0, 3, 1.0, 1e-6)
        for model in found.models().values():
            assert (model.metrics["accuracy"].low, model.metrics["accuracy"].high) == (0.0, 1.0)
            assert (model.metrics["auc"].low, model.metrics["auc"].high) == (0.0, 1.0)
            assert model.metrics["loss"].high == pytest.approx(2 * math.log(2))
        for name, one in found.differences().items():
            assert one.high == -one.low == pytest.approx(2 * math.log(2) if name == "loss" else 1.0)
