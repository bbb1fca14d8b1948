"""Baselines: each is as good as its name, and the private ones are as private as theirs."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

import odp
from odp.datasets import Ratings, Split, random_split
from odp.evaluation import baselines as module
from odp.evaluation.baselines import Baselines, baseline_outcomes, item_mean_events, rmse
from odp.privacy.accounting import epsilon, mu, mu_for

SPLIT = random_split(odp.data.synthetic_movielens(n_users=500, n_items=60, ratings_per_user=25, seed=2), seed=1)


def _baselines(*, eps: float = 8.0, seed: int = 1, train: Ratings = SPLIT.train) -> Baselines:
    return Baselines.of(baseline_outcomes(_task(train, eps, 25), dataclasses.replace(SPLIT, train=train), seed=seed))


def _task(ratings: Ratings, eps: float, bound: int) -> odp.Task:
    return odp.Task(
        name="baselines",
        model=odp.MatrixFactorization(items=ratings.n_items),
        data=odp.RatingsData(low=ratings.low, high=ratings.high),
        privacy=odp.UserLevelDP(epsilon=eps, delta=1e-6, max_items_per_user=bound),
    )


@pytest.fixture(scope="module")
def found() -> Baselines:
    return _baselines()


def test_more_knowledge_gives_a_smaller_error(found: Baselines) -> None:
    assert found.als_ceiling < found.dp_item_mean < found.global_mean
    assert found.als_ceiling < found.user_mean < found.global_mean


def test_a_seed_repeats_the_baselines(found: Baselines) -> None:
    assert _baselines() == found
    assert _baselines(seed=2).dp_item_mean != found.dp_item_mean


def test_privacy_costs_the_item_mean_accuracy_and_nothing_else(found: Baselines) -> None:
    private, open_ = _baselines(eps=0.2), _baselines(eps=math.inf)
    assert open_.dp_item_mean < found.dp_item_mean < private.dp_item_mean
    for field in dataclasses.fields(Baselines):
        if not field.name.startswith("dp_item"):
            assert getattr(private, field.name) == getattr(open_, field.name) == getattr(found, field.name)


@pytest.mark.parametrize("eps", [0.5, 1.0, 8.0])
@pytest.mark.parametrize("bound", [1, 50, 300])
def test_the_item_mean_declares_noise_for_its_whole_budget_and_no_more(eps: float, bound: int) -> None:
    events = item_mean_events(
        epsilon=eps, delta=1e-6, low=1.0, high=5.0, n_items=3706, max_items_per_user=bound
    )  # fmt: skip
    allowed = mu_for(epsilon=eps, delta=1e-6, coordinates=2 * 3706)
    assert mu(events) == pytest.approx(allowed, rel=1e-12)
    assert 0.9999 * eps < epsilon(events, delta=1e-6) <= eps
    counts, sums = events
    assert counts.sensitivity == pytest.approx(math.sqrt(bound))
    assert sums.sensitivity == pytest.approx(2.0 * math.sqrt(bound)), "half the range, from the middle"
    assert counts.coordinates == sums.coordinates == 3706


class _Recorder:
    """In place of the noise: none, and it remembers the sizes that were asked for."""

    asked: list[tuple[float, int]]

    def __init__(self, _source: object) -> None:
        _Recorder.asked = []

    def sample(self, ratio: float, count: int) -> np.ndarray:
        _Recorder.asked.append((ratio, count))
        return np.zeros(count, dtype=np.int64)


def test_the_item_mean_draws_the_noise_that_it_declares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GaussianNoise", _Recorder)
    module.dp_item_mean(_task(SPLIT.train, 8.0, 25), SPLIT, 1)
    declared = item_mean_events(epsilon=8.0, delta=1e-6, low=1.0, high=5.0, n_items=60, max_items_per_user=25)
    assert _Recorder.asked == [(event.noise_std / 2.0**-10, 60) for event in declared]


def test_one_user_moves_the_sums_by_no_more_than_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds between grid points: the sums without noise, with and without one extreme user."""
    seen: list[np.ndarray] = []

    def keep(event: object, exact: np.ndarray, *, step: float, noise: object) -> np.ndarray:
        assert step == 2.0**-10
        seen.append(exact)
        return exact * step

    monkeypatch.setattr(module, "noised", keep)
    rng = np.random.default_rng(3)
    users = np.repeat(np.arange(6), 8)
    items = np.concatenate([np.sort(rng.permutation(12)[:8]) for _ in range(6)])
    values = np.where(users == 5, 9.9, rng.uniform(-9.9, 9.9, len(users)))
    whole = Ratings.from_triples("x", users, items, values, low=-9.9, high=9.9, n_users=6, n_items=12)
    without = whole.take(whole.users() != 5)
    for ratings in (whole, without):
        none = ratings.take(np.zeros(ratings.n_ratings, dtype=bool))  # without a validation part one setting is tried
        module.dp_item_mean(_task(ratings, 1.0, 5), Split(train=ratings, validation=none, test=ratings), 1)
    counts, sums = item_mean_events(epsilon=1.0, delta=1e-6, low=-9.9, high=9.9, n_items=12, max_items_per_user=5)
    for before, after, event in ((seen[0], seen[2], counts), (seen[1], seen[3], sums)):
        moved = (before - after) * 2.0**-10
        assert 0 < np.linalg.norm(moved) <= event.sensitivity * (1 + 1e-12)
        assert np.count_nonzero(moved) == 5
        assert np.abs(moved).max() <= event.sensitivity / math.sqrt(5) * (1 + 1e-12)
        assert before.dtype == np.int64, "sums lie on the grid of the noise"


def test_a_users_mean_needs_nothing_from_other_users() -> None:
    """The baseline that 'leaves the device' nothing: shuffling the training ratings of everybody changes nothing."""
    shuffled = dataclasses.replace(SPLIT.train, values=SPLIT.train.values[::-1].copy())
    one = SPLIT.test.take(SPLIT.test.users() == 0)
    own = np.flatnonzero(SPLIT.train.users() == 0)
    values = shuffled.values.copy()
    values[own] = SPLIT.train.values[own]
    kept = dataclasses.replace(SPLIT.train, values=values)
    ours = module.user_mean_predictions(dataclasses.replace(SPLIT, test=one))
    assert np.array_equal(module.user_mean_predictions(dataclasses.replace(SPLIT, train=kept, test=one)), ours)


def test_the_error_of_nothing_is_no_number() -> None:
    assert math.isnan(rmse(np.zeros(0), SPLIT.test.take(np.zeros(SPLIT.test.n_ratings, dtype=bool))))
    assert rmse(SPLIT.test.values.astype(np.float64) + 0.5, SPLIT.test) == pytest.approx(0.5)
