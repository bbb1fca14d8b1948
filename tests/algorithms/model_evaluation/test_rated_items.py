"""Items of models of ratings, tested on the ratings of devices."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from algorithms.model_evaluation.worlds import slices_of, terms_of

import odp
from odp.algorithms.dense.grid import NUMBER
from odp.algorithms.model_evaluation.terms import RELEASE, Terms
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import LocalRows
from odp.crypto.keyed_hash import key_of, keyed_hash
from odp.errors import ConfigurationError
from odp.evaluation.users import user_seeds

USERS, ITEMS, RANK = 120, 40, 2
RATINGS = odp.data.synthetic_movielens(n_users=USERS, n_items=ITEMS, ratings_per_user=14)
MODEL = odp.RatedItems(items=ITEMS, rank=RANK)


def _trained(*, rank: int = RANK, steps: int = 1, users: int = USERS) -> object:
    task = odp.Task(
        name="films",
        model=odp.MatrixFactorization(items=ITEMS, rank=rank),
        data=odp.RatingsData(),
        privacy=odp.UserLevelDP(epsilon=8.0, delta=1e-5),
        training=odp.DPAM(steps=steps),
        cohort=odp.Cohort(minimum=20, goal=users),
    )
    return odp.simulate(task, RATINGS, noise=False).model


@functools.cache
def _good() -> object:
    return _trained()


def _evaluation(**changes: object) -> odp.Evaluation:
    given = {
        "name": "versions",
        "model": MODEL,
        "data": odp.RatingsData(),
        "of": _good(),
        "privacy": odp.UserLevelDP(epsilon=4.0, delta=1e-6),
        "cohort": odp.Cohort(minimum=20, goal=USERS),
    }
    return odp.Evaluation(**(given | changes))


def _squared_errors(user: int) -> np.ndarray:
    """A loop over ratings, with a system per rating, from the published table alone."""
    items, values = RATINGS.user(user)
    table, ridges = _good().keyed.rows.astype(np.float64), _good().dense["globals"][0].astype(np.float64)
    fold = keyed_hash(key_of("folds of ratings"), items.astype(np.int64)) >> np.uint64(63)
    errors = []
    for item, value, own in zip(items, values, fold, strict=True):
        others = items[fold != own]
        design = np.column_stack((np.ones(len(others)), table[others, 3:]))
        trust = np.diag(table[others, 2])
        left = design.T @ trust @ design + np.diag([ridges[1], *[ridges[0]] * RANK])
        right = design.T @ trust @ (values[fold != own] - 3.5 - table[others, 1])
        local = np.linalg.solve(left, right)
        predicted = 3.5 + table[item, 1] + local @ np.concatenate(([1.0], table[item, 3:]))
        errors.append(min((np.clip(predicted, 1, 5) - value) ** 2, 4.0))
    return np.array(errors)


def test_the_loss_is_the_squared_error_of_ratings_that_the_person_was_not_solved_on() -> None:
    found = odp.simulate(_evaluation(), RATINGS, noise=False).results
    expected = np.mean([_squared_errors(user).mean() for user in range(USERS) if len(RATINGS.user(user)[0])])
    assert found["loss"].value == pytest.approx(expected, abs=2e-3)


def test_a_device_contributes_what_the_simulation_sums() -> None:
    task = _evaluation(against=_trained(rank=0, steps=0), most_examples=10)
    algorithm = algorithm_for(task.definition())
    slices, client = slices_of(task), algorithm.client()
    seeds = user_seeds(RATINGS, 3)
    total = np.zeros(terms_of(task).layout.size, dtype=np.int64)
    for user in range(USERS):
        items, values = RATINGS.user(user)
        turned = slice(None, None, -1)  # a store may keep rows in any order
        rows = LocalRows(items.astype(np.int64)[turned], values.astype(np.float64)[turned])
        payload, kept = client.contribute(slices, algorithm.data_of(rows), round=0, seed=int(seeds[user]))
        assert kept == b""
        total += np.frombuffer(payload, NUMBER).astype(np.int64)
    server = algorithm.server(item_features=task.public_matrix)
    broadcast = server.broadcast(server.start())
    simulated = algorithm.population().contribute(broadcast, RATINGS, round=0, seeds=seeds)[RELEASE]
    assert np.abs(total - simulated).max() <= 2
    assert np.count_nonzero(simulated) > 4


def test_a_half_of_the_users_tests_each_version_and_the_better_one_is_found() -> None:
    bad = np.array(MODEL.parameters(_good()))
    bad[2:] = np.random.default_rng(1).permutation(bad[2:].reshape(ITEMS, -1)).ravel()  # rows of other items
    task = _evaluation(against=bad)
    found = odp.simulate(task, RATINGS, noise=False).results
    assert found.differences()["loss"].low > 0.0
    halves = terms_of(task).halves(user_seeds(RATINGS, 1))
    assert 0.3 < halves.mean() < 0.7
    assert np.array_equal(halves, terms_of(task).halves(user_seeds(RATINGS, 1))), "a device stays in its half"
    other = terms_of(_evaluation(against=bad, name="another")).halves(user_seeds(RATINGS, 1))
    assert not np.array_equal(halves, other), "another experiment draws anew"


def test_a_version_of_lower_rank_is_filled_with_zeros() -> None:
    wide = odp.RatedItems(items=ITEMS, rank=5)
    one, other = (odp.simulate(_evaluation(model=model), RATINGS, noise=False).results for model in (MODEL, wide))
    assert other["loss"].value == pytest.approx(one["loss"].value, abs=1e-4)


def test_numbers_of_a_server_that_means_harm_end_in_a_contribution_of_the_same_size() -> None:
    items, values = RATINGS.user(5)
    rows = LocalRows(np.append(items, 10**6).astype(np.int64), np.append(values, 3.0).astype(np.float64))
    for number in (3e38, -3e38, 0.0):
        task = _evaluation(of=np.full(MODEL.size, number, dtype=np.float32))
        algorithm = algorithm_for(task.definition())
        payload, _ = algorithm.client().contribute(slices_of(task), algorithm.data_of(rows), round=0, seed=1)
        assert len(payload) == len(algorithm.client().empty(0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": odp.RatingsData(low=0.5)}, "ratings from 1 to 5"),
        ({"data": odp.Examples({"x": odp.Tensor((2,), 0, 1)}, label_low=1.0, label_high=5.0)}, "odp.RatingsData"),
        ({"model": odp.RatedItems(items=ITEMS, rank=1)}, "rank of at most 1"),
        ({"model": odp.RatedItems(items=ITEMS + 1, rank=RANK)}, "41 items"),
        ({"personal": odp.PersonalTraining()}, "no personal model"),
        ({"metrics": ["accuracy"]}, "to be of loss"),
        ({"of": np.zeros(3)}, "finite parameters"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Terms.of(_evaluation(**changes).definition())


def test_rated_items_are_never_trained() -> None:
    with pytest.raises(ConfigurationError, match="Expected model to be an"):
        odp.Task(
            name="films", model=MODEL, data=odp.Examples({"x": odp.Tensor((1,), 0, 1)}), training=odp.DPFedAvg(),
            privacy=odp.UserLevelDP(epsilon=1.0, delta=1e-6),
        )  # fmt: skip
    with pytest.raises(ConfigurationError, match="low"):
        odp.RatedItems(items=3, rank=1, low=5.0, high=1.0)
    with pytest.raises(ConfigurationError, match="rank"):
        odp.RatedItems(items=3, rank=65)


@pytest.mark.parametrize("places", [[[0, 1]], [0.0, float("nan")], [0.5], [-2], [ITEMS], [None]])
def test_places_that_are_none_are_refused(places: list[object]) -> None:
    with pytest.raises(ConfigurationError, match=f"places of whole numbers from -1 to {ITEMS - 1}"):
        MODEL.parameters(_good(), places)


def test_an_item_that_a_release_does_not_have_is_predicted_by_the_persons_mean() -> None:
    """Of new items alone, rated 5 each: nearly 5, as by a training that knows the items and has no ratings of them."""
    vector = MODEL.parameters(_good(), np.full(ITEMS, -1))
    items, values = np.arange(ITEMS, dtype=np.float32)[:, None], np.full(ITEMS, 5.0, dtype=np.float32)
    assert MODEL.tested(vector, items, values, ranked=False).losses.mean() < 0.5
