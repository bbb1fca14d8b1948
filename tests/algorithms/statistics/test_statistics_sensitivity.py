"""One user more or less moves the released vector by at most its declared bound, and the worst user reaches it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import odp
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import LocalRows
from odp.algorithms.statistics.terms import RELEASE, Terms
from odp.datasets import Ratings
from odp.evaluation.users import user_seeds
from odp.protocol.wire.model import Slices

NOTHING = Slices(0, np.zeros(0, dtype=np.int64), np.zeros((0, 0), dtype=np.float32), {})
QUERIES: dict[str, dict[str, odp.Histogram | odp.Mean]] = {
    "users": {"seen": odp.Histogram(bins=12)},
    "clipped users": {"seen": odp.Histogram(bins=12, clip=1.5)},
    "records": {"lengths": odp.Histogram(low=0, high=10, bins=5, counts="records", clip=3.0)},
    "shares": {"lengths": odp.Histogram(edges=(0, 1, 3, 10), counts="shares")},
    "mean": {"length": odp.Mean(low=0, high=10, max_records=4)},
    "all of them": {
        "seen": odp.Histogram(bins=12, share=3),
        "lengths": odp.Histogram(low=0, high=10, bins=5, counts="records", clip=3.0),
        "shares": odp.Histogram(edges=(0, 1, 3, 10), counts="shares"),
        "length": odp.Mean(low=0, high=10, max_records=4, share=0.5),
    },
}


def task(queries: dict[str, odp.Histogram | odp.Mean]) -> odp.Statistics:
    return odp.Statistics(
        name="asked",
        queries=queries,
        privacy=odp.UserLevelDP(epsilon=1, delta=1e-6),
        cohort=odp.Cohort(minimum=20, goal=100),
    )


def drawn(data: st.DataObject, users: int) -> Ratings:
    """Users with up to 12 records each, values also outside of every declared range."""
    rows = []
    for user in range(users):
        items = data.draw(st.lists(st.integers(0, 15), max_size=12, unique=True))
        rows += [(user, item, data.draw(st.floats(-50, 50, width=32))) for item in items]
    user, item, value = (np.array(column) for column in zip(*rows, strict=True)) if rows else (np.zeros(0),) * 3
    kinds = user.astype(np.int64), item.astype(np.int64), value.astype(np.float64)
    return Ratings.from_triples("drawn", *kinds, low=-50, high=50, n_users=users, n_items=16)


@pytest.mark.parametrize("kind", QUERIES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_removing_a_user_moves_the_sum_by_no_more_than_the_bound(kind: str, data: st.DataObject) -> None:
    asked = task(QUERIES[kind])
    algorithm = algorithm_for(asked.definition())
    (release,) = algorithm.query(0).releases
    ratings = drawn(data, 4)
    seeds = user_seeds(ratings, 1)
    broadcast = algorithm.server().broadcast(b"")
    whole = algorithm.population().contribute(broadcast, ratings, round=0, seeds=seeds)[RELEASE]
    for gone in range(4):
        rest = [user for user in range(4) if user != gone]
        less = algorithm.population().contribute(broadcast, ratings.select_users(rest), round=0, seeds=seeds[rest])
        moved = [int(number) for number in whole - less[RELEASE]]
        units = round(release.sensitivity / release.step)
        assert sum(number * number for number in moved) <= units * units


@pytest.mark.parametrize("kind", QUERIES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_devices_payload_is_accepted_and_their_sum_is_the_populations(kind: str, data: st.DataObject) -> None:
    asked = task(QUERIES[kind])
    algorithm = algorithm_for(asked.definition())
    query, ratings = algorithm.query(0), drawn(data, 3)
    seeds = user_seeds(ratings, 2)
    total, client = query.new_sum(), algorithm.client()
    for user in range(3):
        items, values = ratings.user(user)
        own = algorithm.data_of(LocalRows(items.astype(np.int64), values.astype(np.float64)))
        payload, local = client.contribute(NOTHING, own, round=0, seed=int(seeds[user]))
        query.check(payload)
        total.add([payload])
        assert local == b""
    broadcast = algorithm.server().broadcast(b"")
    simulated = algorithm.population().contribute(broadcast, ratings, round=0, seeds=seeds)
    np.testing.assert_array_equal(total.totals()[RELEASE], simulated[RELEASE])


def test_the_worst_user_reaches_the_bound_within_one_percent() -> None:
    """Every part at its own bound: all bins seen, counts beyond the clip, one long record, values at the upper end."""
    asked = task(QUERIES["all of them"])
    algorithm, terms = algorithm_for(asked.definition()), Terms.of(asked.definition())
    worst = algorithm.data_of(LocalRows(np.arange(12), np.full(12, 10.0)))
    payload, _ = algorithm.client().contribute(NOTHING, worst, round=0, seed=3)
    numbers = np.frombuffer(payload, dtype="<i4").astype(np.float64) * terms.grid.step
    assert 0.99 * terms.grid.clip <= np.linalg.norm(numbers) <= terms.grid.clip
    shares = {"seen": 3 / 5.5, "lengths": 1 / 5.5, "shares": 1 / 5.5, "length": 0.5 / 5.5}
    for part in terms.parts:
        reached = np.linalg.norm(numbers[part.place])
        assert math.isclose(reached, math.sqrt(shares[part.name]) * terms.grid.clip, rel_tol=0.01), part.name


def test_all_queries_together_cost_exactly_the_budget() -> None:
    from odp.algorithms.release import charges_of
    from odp.privacy.accounting import epsilon

    for queries in QUERIES.values():
        (event,) = charges_of(algorithm_for(task(queries).definition()).query(0))
        assert 1.0 - 1e-6 < epsilon([event], delta=1e-6) <= 1.0


def test_a_device_without_records_contributes_zeros() -> None:
    asked = task(QUERIES["all of them"])
    algorithm = algorithm_for(asked.definition())
    empty = algorithm.data_of(LocalRows(np.zeros(0, dtype=np.int64), np.zeros(0)))
    payload, _ = algorithm.client().contribute(NOTHING, empty, round=0, seed=1)
    assert payload == bytes(len(payload))


def test_records_outside_of_all_bins_and_values_that_are_not_finite_are_left_out() -> None:
    asked = task(
        {"lengths": odp.Histogram(edges=(0, 1, 3), counts="records", clip=9.0), "mean": odp.Mean(low=0, high=4)}
    )
    algorithm, terms = algorithm_for(asked.definition()), Terms.of(asked.definition())
    values = np.array([-0.1, 0.0, 1.0, 2.9, 3.0, 3.1, math.nan, math.inf])
    payload, _ = algorithm.client().contribute(
        NOTHING, algorithm.data_of(LocalRows(np.arange(8), values)), round=0, seed=1
    )
    numbers = np.frombuffer(payload, dtype="<i4") * terms.grid.step
    lengths, mean = (numbers[part.place] / part.scale for part in terms.parts)
    np.testing.assert_allclose(lengths, [1.0, 3.0], atol=1e-3)
    known = np.clip(values[:6], 0, 4)
    np.testing.assert_allclose(mean, [(known.mean() - 2.0) / 2.0, 1.0], atol=1e-3)
