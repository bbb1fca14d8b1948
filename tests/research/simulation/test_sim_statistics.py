"""Simulated statistics with noise in shares: the law that devices would give, its size, and its charge."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

import odp
from odp.algorithms.registry import algorithm_for
from odp.datasets.ratings import Ratings
from odp.privacy import accounting
from odp.privacy.events import DistributedRelease

USERS, BINS = 60, 3000


@pytest.fixture(scope="module")
def people() -> Ratings:
    rng = np.random.default_rng(4)
    items = np.concatenate([np.sort(rng.choice(BINS, 20, replace=False)) for _ in range(USERS)])
    offsets = np.arange(USERS + 1) * 20
    return Ratings("people", offsets, items.astype(np.int32), np.ones(len(items), np.float32), BINS, 1.0, 5.0)


def task(**cohort: object) -> odp.Statistics:
    return odp.Statistics(
        name="hours",
        queries={"hours": odp.Histogram(bins=BINS, clip=5.0)},
        privacy=odp.UserLevelDP(epsilon=1, delta=1e-6),
        cohort=odp.Cohort(**{"minimum": 40, "goal": USERS, "aggregation": "secagg+", **cohort}),
    )


def test_the_noise_of_a_simulation_is_that_of_every_devices_share(people: Ratings) -> None:
    """3,000 numbers; margin 4.9 deviations (false alarm 1e-6). It is larger than what is charged, by what is known."""
    asked = task(corrupt_fraction=0.2)
    run = odp.simulate(asked, people, seed=3)
    difference = run.results["hours"].counts - run.exact["hours"].counts
    (event,) = run.charges
    assert isinstance(event, DistributedRelease)
    assert event.sharers == asked.definition().cohort.secagg.sharers < 40
    stated = 5.0 * event.noise_std * math.sqrt(USERS / event.sharers)
    margin = 4.9 * math.sqrt(2.0 / BINS)
    assert abs(np.square(difference).mean() / stated**2 - 1.0) < margin
    assert run.results["hours"].std == pytest.approx(stated)
    assert not abs(np.square(difference).mean() / (5.0 * event.noise_std) ** 2 - 1.0) < margin
    assert run.epsilon == accounting.epsilon([event], delta=1e-6) <= 1.0
    again = odp.simulate(asked, people, seed=3).results["hours"].counts
    np.testing.assert_array_equal(again, run.results["hours"].counts)


def test_the_modes_agree_with_noise_off_to_the_rounding_of_their_grids(people: Ratings) -> None:
    """Grids differ with the noise; each contribution rounds a number by less than one step."""
    shared, plain = task(), task(aggregation="enclave")
    one, other = (odp.simulate(each, people, noise=False).results["hours"].counts for each in (shared, plain))
    step = algorithm_for(shared.definition()).query(0).releases[0].step
    assert np.abs(one - other).max() < 5.0 * step * USERS
    assert one.sum() == pytest.approx(other.sum(), rel=0.02)


def test_more_users_than_the_goal_do_not_fit_a_session(people: Ratings) -> None:
    smaller = dataclasses.replace(task(), cohort=odp.Cohort(minimum=40, goal=50, aggregation="secagg+"))
    with pytest.raises(odp.errors.DataError, match="1 to 50 users"):
        odp.simulate(smaller, people)


def test_fewer_users_than_share_the_charged_noise_are_refused(people: Ratings) -> None:
    """Their shares together would be less noise than the stated epsilon is computed from."""
    asked = task(corrupt_fraction=0.2)
    sharers = asked.definition().cohort.secagg.sharers
    odp.simulate(asked, people.select_users(range(sharers)))
    with pytest.raises(odp.errors.DataError, match=f"at least {sharers} users"):
        odp.simulate(asked, people.select_users(range(sharers - 1)))
